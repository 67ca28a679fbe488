// Promises to the kernel under READ leases of directories (client/scope.h), and that a change waits until the
// kernel has forgotten what it affects, and for nothing else.
#include "tests/client/scopes.h"

namespace nacre::client {
namespace {

class QuietScopes : public Scopes {
 protected:
  QuietScopes() {
    (void)StatTree();
    (void)StatTree();
    (void)a_->Lookup("g", directory_);
  }

  void RunFor(Duration time) {
    harness_.world.RunUntil([] { return false; }, time);
  }
  Duration Now() { return harness_.world.clock().Now(); }
  Duration ValidOf(const std::string& name) {
    Duration negative{0};
    return a_->Left(a_->Await(a_->fs().Lookup(a_->caller, directory_, name, &negative))->until);
  }
  Duration NegativeValidOf(const std::string& name) {
    Duration negative{0};
    EXPECT_FALSE(a_->Await(a_->fs().Lookup(a_->caller, directory_, name, &negative)).ok());
    return a_->Left(negative);
  }
  template <typename T>
  Duration Takes(Mounted& client, Task<T> change) {
    const Duration began = Now();
    EXPECT_TRUE(client.Await(std::move(change)).ok());
    return Now() - began;
  }
  Task<StatusOr<Known>> Chmod(Mounted& client) {
    SetAttributes set;
    set.mode = 0600;
    return client.fs().Setattr(client.caller, FromProto(b_->Lookup("f", directory_)->attr.fid()), set,
                               nullptr);
  }
};

TEST_F(QuietScopes, ArePromisedToTheKernelAfterAWhile) {
  EXPECT_EQ(ValidOf("f"), 0s);
  EXPECT_EQ(NegativeValidOf("g"), 0s);
  RunFor(4s);
  EXPECT_GE(ValidOf("f"), 400ms);
  EXPECT_LT(ValidOf("f"), 1s);
  EXPECT_GE(NegativeValidOf("g"), 400ms);
  EXPECT_GE(a_->Left(a_->Await(a_->fs().Getattr(a_->caller, directory_, nullptr))->until), 400ms);
  RunFor(30s);
  EXPECT_EQ(ValidOf("f"), harness_.options.client.kernel_cache);
}

// A listing answers for the name, under the lease of the directory, and for the attributes, under another one
// if the name is a directory's.
TEST_F(QuietScopes, AreNotPromisedByAListingUnderAnotherLease) {
  const Fid below = b_->Mkdir("below", directory_);
  RunFor(7s);
  (void)a_->Stat(below);
  RunFor(4s);
  (void)a_->List(directory_);
  (void)StatTree();
  (void)a_->List(directory_);
  HandlePtr listing = *a_->Await(a_->fs().Opendir(a_->caller, directory_));
  auto entries = a_->Await(a_->fs().Readdir(a_->caller, listing, 0, 100, true));
  ASSERT_TRUE(entries.ok());
  for (const DirEntry& entry : *entries) {
    ASSERT_TRUE(entry.known) << entry.name;
    EXPECT_EQ(entry.known->until, 0s) << entry.name;
  }
  EXPECT_GE(a_->Left(a_->Await(a_->fs().Getattr(a_->caller, below, nullptr))->until), 400ms);
  EXPECT_TRUE(a_->Close(listing).ok());
}

// Several clients work in it, so nobody has a lease of it; the one around it is quiet.
TEST_F(QuietScopes, ANameIsPromisedWhereTheAttributesAreNot) {
  const Fid below = b_->Mkdir("below", directory_);
  RunFor(7s);
  (void)StatTree();
  RunFor(4s);
  for (const std::string name : {"one", "two", "three"}) {
    EXPECT_TRUE(b_->Close(b_->Create(name, O_RDWR, below)).ok());
    (void)a_->Lookup(name, below);
  }
  Duration negative{0};
  for (int i = 0; i < 2; ++i) {  // asked of the MDS, and asked of it because of the attributes only
    const Known known = *a_->Await(a_->fs().Lookup(a_->caller, directory_, "below", &negative));
    EXPECT_EQ(known.until, 0s);
    EXPECT_GE(a_->Left(known.name_until), 400ms);
  }
  EXPECT_GE(a_->Left(a_->Await(a_->fs().Lookup(a_->caller, directory_, "f", &negative))->name_until), 400ms);
}

TEST_F(QuietScopes, AChangeWaitsUntilTheKernelHasForgotten) {
  RunFor(4s);
  const Duration valid = ValidOf("f");
  const Duration took = Takes(*b_, Chmod(*b_));
  EXPECT_GE(took, valid);
  EXPECT_LT(took, valid + 500ms);
  EXPECT_EQ(ValidOf("f"), 0s);
}

TEST_F(QuietScopes, AndForNothingElse) {
  RunFor(4s);
  (void)ValidOf("f");
  RunFor(3s);
  EXPECT_LT(Takes(*b_, Chmod(*b_)), 100ms);
}

// `a` has WRITE of the directory, and its kernel has been promised what it knows there.
class QuietWriter : public QuietScopes {
 protected:
  QuietWriter() {
    RunFor(7s);
    (void)a_->Close(a_->Create("own", O_RDWR, directory_));
    RunFor(7s);
    (void)a_->Close(a_->Create("another", O_RDWR, directory_));
    RunFor(30s);
    Duration negative{0};
    until_ = a_->Await(a_->fs().Lookup(a_->caller, directory_, "f", &negative))->until;
    file_ = FromProto(a_->Lookup("f", directory_)->attr.fid());
  }

  Task<StatusOr<Known>> ChmodBySecond() {
    SetAttributes set;
    set.mode = 0600;
    return b_->fs().Setattr(b_->caller, file_, set, nullptr);
  }

  Duration until_{0};
  Fid file_;
};

TEST_F(QuietWriter, WhoOnlyReadsDoesNotWaitForTheKernel) {
  ASSERT_GE(until_ - Now(), 900ms);
  EXPECT_LT(Takes(*b_, b_->fs().Getattr(b_->caller, file_, nullptr)), 100ms);
  RunFor(50ms);  // until the answer has come that grants READ
  (void)a_->Stat(directory_);
  EXPECT_EQ(FromProto(a_->Lookup("f", directory_)->attr.fid()), file_);
  EXPECT_EQ(Asked([&] { (void)a_->Lookup("f", directory_); }), 0) << "READ was kept";
}

TEST_F(QuietWriter, WhoChangesSomethingAfterThatDoes) {
  ASSERT_GE(until_ - Now(), 900ms);
  (void)b_->Stat(file_);
  EXPECT_TRUE(b_->Await(ChmodBySecond()).ok());
  EXPECT_GE(Now(), until_);
}

// The MDS asks for READ before the answer has come that grants it.
TEST_F(QuietWriter, AlsoIfTheLeaseThatIsKeptIsNotKnownYet) {
  ASSERT_GE(until_ - Now(), 900ms);
  Duration changed{0};
  a_->before_reply = [&, once = false](const proto::MetadataRequest& request) mutable -> Task<Status> {
    if (!request.has_release_lease() || std::exchange(once, true)) co_return OkStatus();
    EXPECT_EQ(request.release_lease().keep(), proto::LEASE_READ);
    EXPECT_TRUE((co_await ChmodBySecond()).ok());
    changed = Now();
    co_return OkStatus();
  };
  (void)b_->Stat(file_);
  ASSERT_TRUE(harness_.RunUntil([&] { return changed > Duration(0); }, 10s));
  EXPECT_GE(changed, until_);
}

// The answer is lost with the stream, so what it granted ends; the lease from before is named meanwhile.
TEST_F(QuietWriter, AlsoIfTheAnswerIsLost) {
  ASSERT_GE(until_ - Now(), 900ms);
  int released = 0;
  a_->before_reply = [&](const proto::MetadataRequest& request) -> Task<Status> {
    if (!request.has_release_lease() || released++ > 0) co_return OkStatus();
    co_await a_->LoseStream();
    co_return absl::UnavailableError("the answer was lost with the stream");
  };
  (void)b_->Stat(file_);
  EXPECT_TRUE(b_->Await(ChmodBySecond()).ok());
  EXPECT_GE(released, 2);
  EXPECT_GE(Now(), until_);
}

// Seed 11000047: the MDS had ended it, and the answer was lost; a client that changed things under a lease
// granted since came back after it when the MDS had been started anew, and was refused that lease.
TEST_F(QuietScopes, ALeaseThatMayHaveBeenEndedIsNotNamedAfterALostStream) {
  (void)StatTree();
  uint64_t released = 0;
  std::vector<uint64_t> named;
  a_->before_reply = [&](const proto::MetadataRequest& request) -> Task<Status> {
    for (const proto::Lease& lease : request.reclaim().leases()) named.push_back(lease.id());
    if (!request.has_release_lease() || released != 0) co_return OkStatus();
    released = request.release_lease().id();
    co_await a_->LoseStream();
    co_return absl::UnavailableError("the answer was lost with the stream");
  };
  const int before = a_->requests["reclaim"];
  ASSERT_TRUE(b_->Await(b_->fs().Unlink(b_->caller, directory_, "f")).ok());
  ASSERT_TRUE(harness_.RunUntil([&] { return a_->requests["reclaim"] > before; }, 10s));
  harness_.world.RunFor(3s);
  EXPECT_FALSE(named.empty());
  EXPECT_EQ(std::ranges::count(named, released), 0);
}

// As above libnacre, where no kernel keeps anything.
TEST(Scope, WithNothingToKeepNobodyWaits) {
  HarnessOptions options;
  options.client.kernel_cache = 0s;
  Harness harness(options);
  auto a = harness.Mount();
  (void)a->Close(a->Create("f"));
  const Duration began = harness.world.clock().Now();
  auto b = harness.Mount();
  EXPECT_LT(harness.world.clock().Now() - began, 100ms) << "the lease of the filesystem";
  harness.world.RunFor(7s);
  for (int i = 0; i < 2; ++i) (void)b->Lookup("f");
  harness.world.RunFor(4s);
  (void)b->Lookup("f");
  const Duration before = harness.world.clock().Now();
  ASSERT_NE(a->Create("g"), nullptr);
  EXPECT_LT(harness.world.clock().Now() - before, 100ms) << "the lease of the directory";
}

TEST_F(QuietScopes, TheKernelForgetsAFileThatGetsASecondLink) {
  Invalidation invalidation;
  std::vector<Fid> forgotten;
  invalidation.attributes = [&](Fid fid) {
    if (a_->requests["link"] == 0) forgotten.push_back(fid);
  };
  a_->fs().SetInvalidation(std::move(invalidation));
  RunFor(4s);
  const Fid fid = FromProto(a_->Lookup("f", directory_)->attr.fid());
  EXPECT_LT(Takes(*a_, a_->fs().Link(a_->caller, fid, directory_, "h")), 100ms);
  EXPECT_EQ(forgotten, std::vector<Fid>{fid}) << "before the MDS has done it";
}

TEST_F(QuietScopes, AFileThatIsRemovedWhileItIsOpenIsForgottenToo) {
  Invalidation invalidation;
  std::vector<Fid> forgotten;
  invalidation.attributes = [&](Fid fid) { forgotten.push_back(fid); };
  a_->fs().SetInvalidation(std::move(invalidation));
  RunFor(4s);
  const Fid fid = FromProto(a_->Lookup("f", directory_)->attr.fid());
  const HandlePtr open = a_->Open(fid, O_RDONLY);
  EXPECT_LT(Takes(*a_, a_->fs().Unlink(a_->caller, directory_, "f")), 100ms);
  EXPECT_EQ(forgotten, std::vector<Fid>{fid});
  EXPECT_TRUE(a_->Close(open).ok());
}

// The kernel goes on trusting the name where it is then.
TEST_F(QuietScopes, ANameThatMovesToWhereThereIsNoLeaseIsForgottenFirst) {
  const Fid other = b_->Mkdir("e");
  RunFor(4s);
  const Duration valid = ValidOf("f");
  EXPECT_GE(Takes(*a_, a_->fs().Rename(a_->caller, directory_, "f", other, "f", 0)), valid);
}

// The other client's change waits for that promise; so does this one's, of which it will hear nothing.
TEST_F(QuietScopes, NorWhereTheLeaseIsOnItsWayBack) {
  const Fid other = b_->Mkdir("e");
  RunFor(4s);
  const Duration valid = ValidOf("f");
  const Duration began = Now();
  Spawn(b_->process()->executor(), Chmod(*b_), [](const auto&) {});
  RunFor(50ms);  // the lease is asked back
  ASSERT_EQ(ValidOf("f"), 0s);
  ASSERT_TRUE(a_->Await(a_->fs().Rename(a_->caller, directory_, "f", other, "f", 0)).ok());
  EXPECT_GE(Now() - began, valid);
}

TEST_F(QuietScopes, OneThatStaysUnderALeaseIsNot) {
  RunFor(4s);
  (void)ValidOf("f");
  EXPECT_LT(Takes(*a_, a_->fs().Rename(a_->caller, directory_, "f", directory_, "h", 0)), 100ms);
}

}  // namespace
}  // namespace nacre::client
