// READ leases of directories: what two clients that look at the same tree ask the MDS for, and that neither
// ever sees what the other has changed since as it was.
#include "tests/client/scopes.h"

namespace nacre::client {
namespace {

TEST_F(Scopes, ATreeIsAskedForOnce) {
  EXPECT_EQ(StatTree(), 5u);
  (void)StatTree();
  EXPECT_EQ(Asked([&] { EXPECT_EQ(StatTree(), 5u); }), 0);
}

TEST_F(Scopes, ANameThatIsNotThereIsAskedForOnce) {
  (void)StatTree();
  EXPECT_FALSE(a_->Lookup("g", directory_).ok());
  EXPECT_EQ(Asked([&] { EXPECT_THAT(a_->Lookup("g", directory_).status(), HasErrno(ENOENT)); }), 0);
  ASSERT_NE(b_->Create("g", O_RDWR, directory_), nullptr);
  EXPECT_TRUE(a_->Lookup("g", directory_).ok());
}

TEST_F(Scopes, ADirectoryIsListedOnce) {
  (void)a_->List(directory_);
  (void)StatTree();
  (void)a_->List(directory_);
  std::vector<std::string> names;
  const int asked = Asked([&] { names = a_->List(directory_); });
  EXPECT_EQ(names, std::vector<std::string>{"f"});
  EXPECT_EQ(asked, 0) << "nor to open and close it";
  EXPECT_EQ(a_->requests["readdir"], 2);
}

TEST_F(Scopes, AChangeOfTheOtherIsSeenAtOnce) {
  (void)StatTree();
  (void)StatTree();
  HandlePtr file = b_->OpenName("f", O_RDWR, directory_);
  b_->Write(file, 5, " second");
  EXPECT_EQ(StatTree(), 12u);
}

TEST_F(Scopes, OnesOwnChangeIsSeenAtOnce) {
  (void)StatTree();
  HandlePtr file = a_->OpenName("f", O_RDWR, directory_);
  a_->Write(file, 5, " and more");
  EXPECT_EQ(StatTree(), 14u);
  ASSERT_TRUE(a_->Await(a_->fs().Unlink(a_->caller, directory_, "f")).ok());
  EXPECT_FALSE(a_->Lookup("f", directory_).ok());
}

TEST_F(Scopes, WhatThisClientChangesItKnowsFromTheAnswer) {
  (void)StatTree();
  (void)StatTree();
  HandlePtr file = a_->Create("g", O_RDWR, directory_);
  const Fid fid = file->inode->fid;
  EXPECT_EQ(Asked([&] {
              EXPECT_EQ(FromProto(a_->Lookup("g", directory_)->attr.fid()), fid);
              EXPECT_EQ(a_->Stat(directory_).size(), 2u);
            }),
            0);
  ASSERT_TRUE(a_->Await(a_->fs().Rename(a_->caller, directory_, "g", directory_, "h", 0)).ok());
  EXPECT_EQ(Asked([&] {
              EXPECT_FALSE(a_->Lookup("g", directory_).ok());
              EXPECT_EQ(FromProto(a_->Lookup("h", directory_)->attr.fid()), fid);
            }),
            0);
  a_->Write(file, 0, "seven b");
  EXPECT_EQ(Asked([&] { EXPECT_EQ(a_->Stat(fid).size(), 7u); }), 0);
  HandlePtr other = b_->OpenName("h", O_RDWR, directory_);
  b_->Write(other, 7, "ytes");
  EXPECT_EQ(a_->Stat(fid).size(), 11u);
}

// rename(2) of one name of a file to another one of it does nothing, and says that it has done it.
TEST_F(Scopes, OfTwoNamesOfAFileNeitherGoes) {
  (void)StatTree();
  (void)StatTree();
  const Fid fid = FromProto(a_->Lookup("f", directory_)->attr.fid());
  ASSERT_TRUE(a_->Await(a_->fs().Link(a_->caller, fid, directory_, "h")).ok());
  ASSERT_TRUE(a_->Await(a_->fs().Rename(a_->caller, directory_, "f", directory_, "h", 0)).ok());
  EXPECT_EQ(a_->Stat(directory_).size(), 2u);
  EXPECT_TRUE(a_->Lookup("f", directory_).ok());
  EXPECT_TRUE(a_->Lookup("h", directory_).ok());
}

TEST_F(Scopes, ADirectoryWhoseEntriesAreAllKnownHasNoOthers) {
  (void)StatTree();
  (void)StatTree();
  EXPECT_EQ(Asked([&] { EXPECT_THAT(a_->Lookup("g", directory_).status(), HasErrno(ENOENT)); }), 0);
  (void)a_->Create("g", O_RDWR, directory_);
  EXPECT_EQ(Asked([&] {
              EXPECT_TRUE(a_->Lookup("g", directory_).ok());
              EXPECT_THAT(a_->Lookup("h", directory_).status(), HasErrno(ENOENT));
            }),
            0);
  (void)b_->Create("h", O_RDWR, directory_);
  EXPECT_TRUE(a_->Lookup("h", directory_).ok());
}

// An answer that comes after another change of the same name says what it was.
TEST_F(Scopes, OfChangesThatMeetTheAnswersAreNotTrusted) {
  (void)StatTree();
  (void)StatTree();
  HandlePtr made;
  bool once = false;
  a_->before_reply = [&](const proto::MetadataRequest& request) -> Task<Status> {
    if (!request.has_unlink() || std::exchange(once, true)) co_return OkStatus();
    auto created = co_await a_->fs().Create(a_->caller, directory_, "f", 0644, O_RDWR | O_CREAT);
    if (created.ok()) made = created->handle;
    co_return created.status();
  };
  ASSERT_TRUE(a_->Await(a_->fs().Unlink(a_->caller, directory_, "f")).ok());
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(a_->Stat(directory_).size(), 1u);
  EXPECT_TRUE(a_->Lookup("f", directory_).ok());
}

// libnacre's reads and those of a mount beside others: what the file's content is, is asked for once.
TEST_F(Scopes, AReadAsksTheMdsForNothing) {
  (void)StatTree();
  (void)StatTree();
  HandlePtr file = a_->OpenName("f", O_RDONLY, directory_);
  EXPECT_EQ(a_->Read(file, 0, 10), "first");
  EXPECT_EQ(Asked([&] { EXPECT_EQ(a_->Read(file, 0, 10), "first"); }), 0);
  HandlePtr other = b_->OpenName("f", O_RDWR, directory_);
  b_->Write(other, 0, "FIRST");
  EXPECT_EQ(a_->Read(file, 0, 10), "FIRST");
}

// The reply to a change of names has attributes and no bytes: what is here of the file is not newer by it.
TEST_F(Scopes, ANewLinkIsNotNewContent) {
  (void)StatTree();
  HandlePtr file = a_->OpenName("f", O_RDONLY, directory_);
  EXPECT_EQ(a_->Read(file, 0, 20), "first");
  HandlePtr other = b_->OpenName("f", O_RDWR, directory_);
  b_->Write(other, 0, "FIRST and more");
  const Fid fid = FromProto(a_->Lookup("f", directory_)->attr.fid());
  ASSERT_TRUE(a_->Await(a_->fs().Rename(a_->caller, directory_, "f", directory_, "g", 0)).ok());
  harness_.world.RunUntil([] { return false; }, 7s);
  (void)a_->List(directory_);
  (void)a_->Stat(fid);
  EXPECT_EQ(a_->Read(file, 0, 20), "FIRST and more");
}

// Attributes without bytes, of a change of this client's own, overtake an answer that has both.
TEST_F(Scopes, AnOvertakenAnswerDoesNotMakeOldBytesNew) {
  const Fid fid = FromProto(a_->Lookup("f", directory_)->attr.fid());
  HandlePtr file = a_->Open(fid);
  EXPECT_EQ(a_->Read(file, 0, 20), "first");
  a_->Write(file, 0, "FIRST");
  bool changed = false;
  a_->before_reply = [&](const proto::MetadataRequest& request) -> Task<Status> {
    if (!request.has_getattr() || changed) co_return OkStatus();
    changed = true;
    SetAttributes mode;
    mode.mode = 0600;
    auto set = co_await a_->fs().Setattr(a_->caller, fid, mode, file);
    co_return set.status();
  };
  EXPECT_EQ(a_->Read(file, 0, 20), "FIRST");
  EXPECT_TRUE(changed);
}

// The MDS has done it and the answer is on its way: changes of the file are not announced any more.
TEST_F(Scopes, AFileThatThisClientMovesIsNotTrustedFromThenOn) {
  const Fid other = a_->Mkdir("e");
  harness_.world.RunUntil([] { return false; }, 7s);
  EXPECT_EQ(SizeSeenDuring(a_->fs().Rename(a_->caller, directory_, "f", other, "f", 0)), 1000u);
}

TEST_F(Scopes, NorIsOneThatItGivesASecondLink) {
  const Fid fid = FromProto(a_->Lookup("f", directory_)->attr.fid());
  EXPECT_EQ(SizeSeenDuring(a_->fs().Link(a_->caller, fid, kRootFid, "second")), 1000u);
}

TEST_F(Scopes, NothingIsTrustedAfterAChangeOfUnknownOutcome) {
  const Fid other = a_->Mkdir("e");
  harness_.world.RunUntil([] { return false; }, 7s);
  (void)StatTree();
  const Fid fid = FromProto(a_->Lookup("f", directory_)->attr.fid());
  a_->before_reply = [](const proto::MetadataRequest& request) -> Task<Status> {
    co_return request.has_rename() ? ErrnoError(EIO, "no answer in time") : OkStatus();
  };
  EXPECT_THAT(a_->Await(a_->fs().Rename(a_->caller, directory_, "f", other, "f", 0)), HasErrno(EIO));
  b_->Write(b_->Open(fid), 0, "a longer text");
  EXPECT_EQ(a_->Stat(fid).size(), 13u);
}

TEST_F(Scopes, AFileThatIsMovedIsCoveredByWhereItIs) {
  const Fid other = b_->Mkdir("e");
  harness_.world.RunUntil([] { return false; }, 7s);
  (void)StatTree();
  const Fid file = FromProto(a_->Lookup("f", directory_)->attr.fid());
  ASSERT_TRUE(b_->Await(b_->fs().Rename(b_->caller, directory_, "f", other, "f", 0)).ok());
  (void)a_->Lookup("e");
  (void)a_->Lookup("f", other);
  (void)a_->Stat(file);
  HandlePtr handle = b_->OpenName("f", O_RDWR, other);
  b_->Write(handle, 5, "!");
  EXPECT_EQ(a_->Stat(file).size(), 6u);
}

// --- opens that the MDS does not know of ---

TEST_F(Scopes, AFileIsOpenedReadAndClosedWithoutAQuestion) {
  (void)StatTree();
  const Fid fid = FromProto(a_->Lookup("f", directory_)->attr.fid());
  EXPECT_EQ(Asked([&] {
              HandlePtr file = a_->Open(fid, O_RDONLY);
              EXPECT_EQ(a_->Read(file, 0, 10), "first");
              EXPECT_TRUE(a_->Close(file).ok());
              harness_.world.RunUntil([] { return false; }, 1s);
            }),
            0);
}

TEST_F(Scopes, WhoMayNotReadIsRefused) {
  (void)StatTree();
  const Fid fid = FromProto(a_->Lookup("f", directory_)->attr.fid());
  SetAttributes secret;
  secret.mode = 0600;
  ASSERT_TRUE(b_->Await(b_->fs().Setattr(b_->caller, fid, secret, nullptr)).ok());
  harness_.world.RunUntil([] { return false; }, 7s);
  (void)StatTree();
  Caller other;
  other.uid = other.gid = 1000;
  EXPECT_THAT(a_->Await(a_->fs().Open(other, fid, O_RDONLY)).status(), HasErrno(EACCES));
}

// Reads of them ask the MDS for nothing, and each page is read once.
TEST_F(Scopes, TheKernelKeepsPagesOfAFileThatIsOnlyRead) {
  int forgotten = 0;
  Invalidation invalidation;
  invalidation.data_and_attributes = [&](Fid, uint64_t, uint64_t) -> Task<void> {
    ++forgotten;
    co_return;
  };
  a_->fs().SetInvalidation(std::move(invalidation));
  (void)StatTree();
  const Fid fid = FromProto(a_->Lookup("f", directory_)->attr.fid());
  HandlePtr first = a_->Open(fid, O_RDONLY);
  EXPECT_EQ(a_->fs().PagesFor(first), KernelPages::kNew);
  EXPECT_EQ(Asked([&] {
              EXPECT_TRUE(a_->Await(a_->fs().HoldPages(first, 0, 4096, client::PageUse::kFill)).ok());
              EXPECT_TRUE(a_->Close(first).ok());
              EXPECT_EQ(a_->fs().PagesFor(a_->Open(fid, O_RDONLY)), KernelPages::kKept);
            }),
            0);
  EXPECT_EQ(a_->fs().PagesFor(a_->Open(fid, O_RDWR)), KernelPages::kNone);
  HandlePtr writer = b_->Open(fid);
  EXPECT_EQ(forgotten, 0);
  b_->Write(writer, 0, "other");
  EXPECT_EQ(forgotten, 1);
  EXPECT_TRUE(b_->Close(writer).ok());
  harness_.RunUntil([] { return false; }, 7s);
  (void)StatTree();
  (void)StatTree();
  EXPECT_EQ(a_->fs().PagesFor(a_->Open(fid, O_RDONLY)), KernelPages::kNew);
}

// Seed 1109000262: the kernel had put the bytes of a write into a page that it had, and was made to forget it
// while the write was under way. A read then had the page filled with what was there before.
TEST_F(Scopes, PagesAreFilledAfterTheWritesThatHaveCome) {
  (void)StatTree();
  HandlePtr file = a_->Open(FromProto(a_->Lookup("f", directory_)->attr.fid()), O_RDWR);
  auto write = a_->Await(a_->fs().HoldPages(file, 100, 50, client::PageUse::kWrite));
  ASSERT_TRUE(write.ok());
  auto fill_on = [&](uint64_t page) {
    auto held = std::make_shared<bool>(false);
    Spawn(a_->process()->executor(),
          [](FileSystem* fs, HandlePtr file, uint64_t page, std::shared_ptr<bool> held) -> Task<void> {
            auto pages = co_await fs->HoldPages(file, page * 4096, 4096, client::PageUse::kFill);
            *held = pages.ok();
          }(&a_->fs(), file, page, held));
    return held;
  };
  const auto same = fill_on(0), other = fill_on(1);
  EXPECT_TRUE(harness_.RunUntil([&] { return *other; }));
  harness_.world.RunFor(1s);
  EXPECT_FALSE(*same);
  write = LockedPages{};
  EXPECT_TRUE(harness_.RunUntil([&] { return *same; }));
}

// `dead_oss`, seed 12: a page that was being read stayed locked as long as its OST was away, and kept the
// directory from everybody until this client was evicted.
TEST_F(Scopes, APageThatIsBeingReadKeepsNobodyFromTheDirectory) {
  OneShot<Unit> unlocked;
  int forgetting = 0;
  Invalidation invalidation;
  invalidation.data_and_attributes = [&](Fid, uint64_t, uint64_t) -> Task<void> {
    ++forgetting;
    co_await unlocked.Wait();
  };
  a_->fs().SetInvalidation(std::move(invalidation));
  (void)StatTree();
  const Fid fid = FromProto(a_->Lookup("f", directory_)->attr.fid());
  HandlePtr reader = a_->Open(fid, O_RDONLY);
  ASSERT_EQ(a_->fs().PagesFor(reader), KernelPages::kNew);
  ASSERT_TRUE(a_->Await(a_->fs().HoldPages(reader, 0, 4096, client::PageUse::kFill)).ok());
  const uint64_t epoch = a_->fs().Look().epoch;
  std::optional<Status> made, written;
  Spawn(b_->process()->executor(),
        [](Mounted* by, Fid directory, std::optional<Status>* status) -> Task<void> {
          std::string name = "made";
          auto known = co_await by->fs().Mknod(by->caller, directory, name, S_IFREG | 0644, 0);
          *status = known.status();
        }(b_.get(), directory_, &made));
  EXPECT_TRUE(harness_.RunUntil([&] { return made.has_value(); }, 3s));
  EXPECT_EQ(forgetting, 1);

  // The file itself is waited for, by whoever changes it.
  HandlePtr writer = b_->Open(fid);
  const std::string other = "other";
  Spawn(b_->process()->executor(),
        [](Mounted* by, HandlePtr to, std::string_view bytes, std::optional<Status>* status) -> Task<void> {
          const std::span<const std::byte> piece = std::as_bytes(std::span(bytes));
          auto size = co_await by->fs().Write(to, 0, std::span(&piece, 1));
          *status = size.status();
        }(b_.get(), writer, other, &written));
  harness_.world.RunFor(3s);
  EXPECT_FALSE(written.has_value());
  unlocked.Set({});
  EXPECT_TRUE(harness_.RunUntil([&] { return written.has_value(); }, 3s));
  EXPECT_EQ(a_->fs().Look().epoch, epoch);
}

// The lease of the directory where it was says nothing of it from then on.
TEST_F(Scopes, TheKernelForgetsPagesOfAFileThatThisClientHasMoved) {
  std::vector<Fid> forgotten;
  Invalidation invalidation;
  invalidation.data_and_attributes = [&](Fid fid, uint64_t, uint64_t) -> Task<void> {
    forgotten.push_back(fid);
    co_return;
  };
  const Fid other = b_->Mkdir("e");
  a_->fs().SetInvalidation(std::move(invalidation));
  (void)StatTree();
  const Fid fid = FromProto(a_->Lookup("f", directory_)->attr.fid());
  HandlePtr reader = a_->Open(fid, O_RDONLY);
  ASSERT_EQ(a_->fs().PagesFor(reader), KernelPages::kNew);
  ASSERT_TRUE(a_->Await(a_->fs().Rename(a_->caller, directory_, "f", other, "f", 0)).ok());
  EXPECT_TRUE(forgotten.empty()) << "they have a lease of their own";
  b_->Write(b_->Open(fid), 0, "other");
  EXPECT_THAT(forgotten, testing::Contains(fid));
}

class UntoldOpen : public Scopes {
 protected:
  UntoldOpen() {
    HandlePtr file = b_->OpenName("f", O_RDWR, directory_);
    b_->Write(file, 0, content_);
    EXPECT_TRUE(b_->Close(file).ok());
    harness_.world.RunUntil([] { return false; }, 7s);
    (void)StatTree();
    fid_ = FromProto(a_->Lookup("f", directory_)->attr.fid());
    EXPECT_EQ(Asked([&] { open_ = a_->Open(fid_, O_RDONLY); }), 0);
  }

  // The file has no name any more and is there until its handle is closed.
  void ExpectKept() {
    harness_.world.RunUntil([] { return false; }, 60s);
    EXPECT_EQ(a_->Read(open_, 0, content_.size()), content_);
    EXPECT_TRUE(a_->Close(open_).ok());
    harness_.world.RunUntil([] { return false; }, 60s);
    EXPECT_FALSE(b_->Await(b_->fs().Getattr(b_->caller, fid_, nullptr)).ok()) << "and no longer";
  }
  static Status Unlink(Mounted& by, Fid parent, const std::string& name) {
    return by.Await(by.fs().Unlink(by.caller, parent, name));
  }

  const std::string content_ = Pattern(7, 100'000);
  Fid fid_;
  HandlePtr open_;
};

TEST_F(UntoldOpen, OutlivesARemovalByAnotherClient) {
  ASSERT_TRUE(Unlink(*b_, directory_, "f").ok());
  ExpectKept();
}

TEST_F(UntoldOpen, OutlivesARemovalByItsOwn) {
  ASSERT_TRUE(Unlink(*a_, directory_, "f").ok());
  ExpectKept();
}

TEST_F(UntoldOpen, OutlivesARemovalFromWhereItsOwnClientHasMovedIt) {
  const Fid other = b_->Mkdir("e");
  ASSERT_TRUE(a_->Await(a_->fs().Rename(a_->caller, directory_, "f", other, "f", 0)).ok());
  ASSERT_TRUE(Unlink(*b_, other, "f").ok());
  ExpectKept();
}

TEST_F(UntoldOpen, OutlivesARemovalOfBothItsLinks) {
  ASSERT_TRUE(a_->Await(a_->fs().Link(a_->caller, fid_, kRootFid, "second")).ok());
  ASSERT_TRUE(Unlink(*b_, kRootFid, "second").ok());
  ASSERT_TRUE(Unlink(*b_, directory_, "f").ok());
  ExpectKept();
}

TEST_F(UntoldOpen, OutlivesAFileThatTakesItsPlace) {
  (void)a_->Create("new", O_RDWR, directory_);
  ASSERT_TRUE(a_->Await(a_->fs().Rename(a_->caller, directory_, "new", directory_, "f", 0)).ok());
  ExpectKept();
}

TEST_F(UntoldOpen, OutlivesALostStreamAndARemovalAfterIt) {
  ASSERT_TRUE(a_->Await([](Mounted* a) -> Task<Status> {
                  co_await a->LoseStream();
                  co_return OkStatus();
                }(a_.get()))
                  .ok());
  ASSERT_TRUE(Unlink(*b_, directory_, "f").ok());
  ExpectKept();
}

// The MDS may do two messages in any order: the handle is named when it has done the close of the one before.
TEST_F(UntoldOpen, IsToldBehindACloseThatIsUnderWay) {
  EXPECT_TRUE(a_->Close(open_).ok());
  HandlePtr told = a_->Open(fid_);
  EXPECT_EQ(a_->requests["open"], 1);
  bool closed = false, named_after = false;
  a_->before_reply = [&](const proto::MetadataRequest& request) -> Task<Status> {
    if (request.has_reclaim()) named_after = closed;
    if (!request.has_close()) co_return OkStatus();
    co_await harness_.world.clock().Sleep(1s);
    closed = true;
    co_return OkStatus();
  };
  EXPECT_TRUE(a_->Close(told).ok());
  (void)StatTree();
  open_ = a_->Open(fid_, O_RDONLY);
  ASSERT_EQ(a_->requests["open"], 1);
  ASSERT_TRUE(Unlink(*b_, directory_, "f").ok());
  EXPECT_TRUE(named_after);
  ExpectKept();
}

TEST_F(UntoldOpen, SeveralHandlesAreClosedOneByOne) {
  HandlePtr second = a_->Open(fid_, O_RDONLY);
  ASSERT_TRUE(Unlink(*b_, directory_, "f").ok());
  EXPECT_TRUE(a_->Close(second).ok());
  ExpectKept();
}

// The lease of a directory that had to be forgotten goes back, and does not take a newer one with it.
TEST_F(Scopes, WhatWasForgottenForWantOfMemoryIsAskedForAgain) {
  Options small;
  small.known_bytes = 64 << 10;
  std::unique_ptr<Mounted> c = harness_.Mount(small);
  for (int round = 0; round < 3; ++round) {
    (void)c->Lookup("d");
    (void)c->Lookup("f", directory_);
    for (int i = 0; i < 300; ++i) (void)c->Lookup(absl::StrCat("none", i), directory_);
    (void)c->Stat(directory_);
    EXPECT_EQ(c->Lookup("f", directory_)->attr.size(), 5u);
  }
  HandlePtr file = b_->OpenName("f", O_RDWR, directory_);
  b_->Write(file, 5, " second");
  EXPECT_EQ(c->Lookup("f", directory_)->attr.size(), 12u);
}

// And when it comes again instead of going back, what the kernel keeps under it is forgotten all the same.
TEST_F(Scopes, WhatTheKernelKeepsOutlivesADirectoryThatWasForgottenForWantOfMemory) {
  Options small;
  small.known_bytes = 64 << 10;
  std::unique_ptr<Mounted> c = harness_.Mount(small);
  std::vector<Fid> forgotten;
  Invalidation invalidation;
  invalidation.data_and_attributes = [&](Fid fid, uint64_t, uint64_t) -> Task<void> {
    forgotten.push_back(fid);
    co_return;
  };
  c->fs().SetInvalidation(std::move(invalidation));
  (void)c->Lookup("d");
  const Fid fid = FromProto(c->Lookup("f", directory_)->attr.fid());
  HandlePtr reader = c->Open(fid, O_RDONLY);
  ASSERT_EQ(c->fs().PagesFor(reader), KernelPages::kNew);
  std::vector<Fid> others;
  for (int i = 0; i < 400; ++i) others.push_back(b_->Mkdir(absl::StrCat("other", i)));
  forgotten.clear();
  for (const Fid& other : others) (void)c->Stat(other);
  (void)c->Lookup("f", directory_);
  b_->Write(b_->Open(fid), 0, "other");
  EXPECT_THAT(forgotten, testing::Contains(fid));
}

}  // namespace
}  // namespace nacre::client
