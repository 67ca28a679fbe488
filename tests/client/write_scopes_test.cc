// WRITE leases of directories: what a client changes where it is alone waits for nobody, and whoever comes
// sees all of it.
#include <linux/fs.h>

#include "common/metrics.h"
#include "tests/client/scopes.h"

namespace nacre::client {
namespace {

class WriteScopes : public testing::Test {
 protected:
  WriteScopes() : a_(harness_.Mount()), b_(harness_.Mount()), own_(a_->Mkdir("own")) { Settle(); }
  ~WriteScopes() override { EXPECT_EQ(GetCounter("client.refused_behind").Get(), refused_before_); }

  void Settle() {
    EXPECT_TRUE(harness_.RunUntil([&] { return a_->Behind() == 0; }));
  }
  void Make(const std::string& name, Fid directory, std::string_view bytes = "") {
    (void)a_->Lookup(name, directory);  // as a kernel does
    HandlePtr file = a_->Create(name, O_RDWR | O_EXCL, directory);
    if (!bytes.empty()) a_->Write(file, 0, bytes);
    EXPECT_TRUE(a_->Close(file).ok());
  }
  static Status Unlink(Mounted& by, Fid parent, const std::string& name) {
    return by.Await(by.fs().Unlink(by.caller, parent, name));
  }
  static Status Rename(Mounted& by, Fid from, const std::string& name, Fid to, const std::string& new_name) {
    return by.Await(by.fs().Rename(by.caller, from, name, to, new_name, 0));
  }
  static std::string Content(Mounted& by, const std::string& name, Fid directory) {
    HandlePtr file = by.OpenName(name, O_RDONLY, directory);
    std::string bytes = by.Read(file, 0, 100'000);
    EXPECT_TRUE(by.Close(file).ok());
    return bytes;
  }

  const int64_t refused_before_ = GetCounter("client.refused_behind").Get();
  Harness harness_;
  std::unique_ptr<Mounted> a_, b_;
  Fid own_;
};

// A call into the kernel for each removed file would be a third of what rm -r costs.
TEST_F(WriteScopes, AFileThatCannotBeReachedAnyMoreIsLeftToTheKernel) {
  Invalidation invalidation;
  std::vector<Fid> forgotten;
  invalidation.attributes = [&](Fid fid) { forgotten.push_back(fid); };
  a_->fs().SetInvalidation(std::move(invalidation));
  Make("closed", own_);
  Make("open", own_);
  const HandlePtr open = a_->OpenName("open", O_RDONLY, own_);
  harness_.world.RunUntil([] { return false; }, 4s);
  const Fid kept = FromProto(a_->Lookup("open", own_)->attr.fid());
  (void)a_->Lookup("closed", own_);
  EXPECT_TRUE(harness_.AtOnce([&] {
    EXPECT_TRUE(Unlink(*a_, own_, "closed").ok());
    EXPECT_TRUE(Unlink(*a_, own_, "open").ok());
  }));
  EXPECT_EQ(forgotten, std::vector<Fid>{kept});
  EXPECT_TRUE(a_->Close(open).ok());
}

// git status has read all of a tree that rm -r removes then.
TEST_F(WriteScopes, AFileWhosePagesTheKernelHasIsRemovedAtOnceUnlessItIsOpen) {
  for (const char* name : {"closed", "open"}) Make(name, own_, "some bytes");
  auto read = [&](const std::string& name) {
    HandlePtr file = a_->OpenName(name, O_RDONLY, own_);
    EXPECT_NE(a_->fs().PagesFor(file), KernelPages::kNone);
    EXPECT_TRUE(a_->fs().MayHavePages(file));
    return file;
  };
  EXPECT_TRUE(a_->Close(read("closed")).ok());
  const HandlePtr open = read("open");
  Settle();
  EXPECT_TRUE(harness_.AtOnce([&] { EXPECT_TRUE(Unlink(*a_, own_, "closed").ok()); }));
  EXPECT_FALSE(harness_.AtOnce([&] { EXPECT_TRUE(Unlink(*a_, own_, "open").ok()); }));
  EXPECT_TRUE(a_->Close(open).ok());
}

// A batch gathers for a millisecond where nobody waits for it. A task that asks the MDS in between waits for
// all that has gathered, so for a while after that it gathers for less.
TEST_F(WriteScopes, BatchesGatherForLessWhereSomebodyHasWaitedLately) {
  Make("f", own_);
  const HandlePtr file = a_->OpenName("f", O_RDWR, own_);
  int made = 0;
  auto make = [&] { Make("f" + std::to_string(made++), own_); };
  // Until the second batch is sent, which gathers when the first one has been answered.
  auto time_of_two = [&](Duration since_waited) {
    make();
    EXPECT_TRUE(a_->Fsync(file).ok());
    harness_.world.RunFor(since_waited);
    const int before = a_->requests["batch"];
    const Duration begin = harness_.world.clock().Now();
    make();
    make();
    EXPECT_TRUE(harness_.RunUntil([&] { return a_->requests["batch"] == before + 2; }));
    return harness_.world.clock().Now() - begin;
  };
  Duration lately{0}, earlier{0};
  for (int i = 0; i < 20; ++i) {
    lately += time_of_two(0ms);
    earlier += time_of_two(100ms);
  }
  EXPECT_GT(earlier, lately + 20 * 500us);
  EXPECT_TRUE(a_->Close(file).ok());
}

// rm -r gives the lease of each directory back that it removes, and nobody waits for that.
TEST_F(WriteScopes, BatchesGatherWhileLeasesOfRemovedDirectoriesGoBack) {
  const Fid below = a_->Mkdir("below", own_);
  Make("f", below);
  Settle();
  harness_.world.RunFor(100ms);
  const int before = a_->requests["batch"];
  EXPECT_TRUE(Unlink(*a_, below, "f").ok());
  EXPECT_TRUE(a_->Await(a_->fs().Rmdir(a_->caller, own_, "below")).ok());
  for (int i = 0; i < 20; ++i) {
    Make("f" + std::to_string(i), own_);
    harness_.world.RunFor(50us);
  }
  Settle();
  EXPECT_LE(a_->requests["batch"] - before, 3);
}

// Everybody who comes to a new directory comes by the one around it: the kernel keeps as much of the one as
// of the other.
TEST_F(WriteScopes, ADirectoryThatIsMadeInAQuietOneIsQuiet) {
  auto valid_below = [&](const std::string& name) {
    const Fid made = a_->Mkdir(name, own_);
    Make("below", made);
    Duration negative{0};
    return a_->Left(a_->Await(a_->fs().Lookup(a_->caller, made, "below", &negative))->until);
  };
  Make("first", own_);
  harness_.world.RunUntil([] { return false; }, 4s);
  EXPECT_GE(valid_below("made"), 400ms);
  (void)b_->Lookup("first", own_);
  EXPECT_EQ(valid_below("later"), 0s);
}

TEST_F(WriteScopes, NothingIsWaitedForInADirectoryOfOnesOwn) {
  EXPECT_TRUE(harness_.AtOnce([&] {
    for (int i = 0; i < 10; ++i) Make("f" + std::to_string(i), own_, "some bytes");
  }));
  SetAttributes mode;
  mode.mode = 0600;
  const Fid fid = FromProto(a_->Lookup("f1", own_)->attr.fid());
  EXPECT_TRUE(harness_.AtOnce(
      [&] { EXPECT_TRUE(a_->Await(a_->fs().Setattr(a_->caller, fid, mode, nullptr)).ok()); }));
  EXPECT_TRUE(harness_.AtOnce([&] { EXPECT_TRUE(Unlink(*a_, own_, "f2").ok()); }));
  EXPECT_TRUE(harness_.AtOnce([&] { EXPECT_TRUE(Rename(*a_, own_, "f3", own_, "f4").ok()); }));
  Fid below;
  EXPECT_TRUE(harness_.AtOnce([&] { below = a_->Mkdir("below", own_); }));
  EXPECT_TRUE(harness_.AtOnce([&] { Make("g", below, "more"); }));
  EXPECT_TRUE(harness_.AtOnce([&] { EXPECT_TRUE(Rename(*a_, below, "g", own_, "h").ok()); }));
  EXPECT_TRUE(
      harness_.AtOnce([&] { EXPECT_TRUE(a_->Await(a_->fs().Rmdir(a_->caller, own_, "below")).ok()); }));
  EXPECT_TRUE(harness_.AtOnce([&] {
    EXPECT_EQ(a_->Stat(own_).size(), 9u);
    EXPECT_EQ(Content(*a_, "h", own_), "more");
  }));
  EXPECT_GT(a_->Behind(), 0u);
}

TEST_F(WriteScopes, TheOtherSeesAllOfItAtOnce) {
  Make("f", own_, "bytes");
  const Fid below = a_->Mkdir("below", own_);
  Make("g", below, "deeper");
  EXPECT_GT(a_->Behind(), 0u);
  EXPECT_EQ(b_->List(own_), (std::vector<std::string>{"below", "f"}));
  EXPECT_EQ(Content(*b_, "f", own_), "bytes");
  EXPECT_EQ(FromProto(b_->Lookup("below", own_)->attr.fid()), below);
  EXPECT_EQ(Content(*b_, "g", below), "deeper");
}

TEST_F(WriteScopes, SoDoesWhoComesByTheNumberOfAnInode) {
  const Fid below = a_->Mkdir("below", own_);
  Make("f", below, "bytes");
  const Fid fid = FromProto(a_->Lookup("f", below)->attr.fid());
  EXPECT_GT(a_->Behind(), 0u);
  EXPECT_EQ(b_->Read(b_->Open(fid, O_RDONLY), 0, 100), "bytes");
}

TEST_F(WriteScopes, AfterALookOfTheOtherChangesGoToTheMds) {
  Make("f", own_);
  (void)b_->List(own_);
  EXPECT_FALSE(harness_.AtOnce([&] { Make("g", own_); }));
  EXPECT_TRUE(b_->Lookup("g", own_).ok());
  harness_.RunUntil([] { return false; }, 7s);
  Make("h", own_);  // gets the lease again
  (void)a_->Lookup("i", own_);
  EXPECT_TRUE(harness_.AtOnce([&] { Make("i", own_); }));
  EXPECT_TRUE(b_->Lookup("i", own_).ok());
}

TEST_F(WriteScopes, ManyChangesAreFewRequests) {
  const int before = a_->total();
  for (int i = 0; i < 200; ++i) Make(std::to_string(i), own_, "x");
  Settle();
  EXPECT_LE(a_->total() - before, 8);
}

TEST_F(WriteScopes, ThreadsThatBeginTogetherGetThereTogether) {
  (void)b_->List(own_);
  Make("first", own_);
  harness_.RunUntil([] { return false; }, 7s);  // nobody has a lease, and everybody may have one
  int made = 0;
  for (int i = 0; i < 8; ++i) {
    Spawn(a_->process()->executor(),
          a_->fs().Create(a_->caller, own_, "f" + std::to_string(i), 0644, O_RDWR | O_CREAT | O_EXCL),
          [&made](const StatusOr<Created>& created) { made += created.ok() ? 1 : 0; });
  }
  EXPECT_TRUE(harness_.RunUntil([&] { return made == 8; }));
  Make("g", own_);
  (void)a_->Lookup("h", own_);
  EXPECT_TRUE(harness_.AtOnce([&] { Make("h", own_); }));
}

TEST_F(WriteScopes, AFileThatIsOpenOutlivesItsRemovalByTheOther) {
  HandlePtr file = a_->Create("f", O_RDWR | O_EXCL, own_);
  a_->Write(file, 0, "bytes");
  ASSERT_TRUE(Unlink(*b_, own_, "f").ok());
  harness_.RunUntil([] { return false; }, 60s);
  EXPECT_EQ(a_->Read(file, 0, 100), "bytes");
  EXPECT_TRUE(a_->Close(file).ok());
}

TEST_F(WriteScopes, AFileThatIsOpenOutlivesItsRemovalByItsOwn) {
  HandlePtr file = a_->Create("f", O_RDWR | O_EXCL, own_);
  a_->Write(file, 0, "bytes");
  ASSERT_TRUE(Unlink(*a_, own_, "f").ok());
  harness_.RunUntil([] { return false; }, 60s);
  EXPECT_EQ(a_->Read(file, 0, 100), "bytes");
  const Fid fid = file->inode->fid;
  EXPECT_TRUE(a_->Close(file).ok());
  harness_.RunUntil([] { return false; }, 60s);
  EXPECT_FALSE(b_->Await(b_->fs().Getattr(b_->caller, fid, nullptr)).ok());
}

// From then on nobody announces what the other writes to it.
TEST_F(WriteScopes, AFileWithoutNamesIsNotTrusted) {
  Make("f", own_, "bytes");
  const Fid fid = FromProto(a_->Lookup("f", own_)->attr.fid());
  HandlePtr other = b_->Open(fid);
  harness_.RunUntil([] { return false; }, 7s);
  Make("g", own_);  // the lease is here again
  HandlePtr file = a_->Open(fid);
  (void)a_->Lookup("f", own_);
  (void)a_->Stat(fid);
  ASSERT_TRUE(harness_.AtOnce([&] { ASSERT_TRUE(Unlink(*a_, own_, "f").ok()); }));
  b_->Write(other, 0, "longer than it was");
  auto known = a_->Await(a_->fs().Getattr(a_->caller, fid, file));
  ASSERT_TRUE(known.ok());
  EXPECT_EQ(known->attr.size(), 18u);
}

TEST_F(WriteScopes, WhatIsSyncedIsThereWhoeverDies) {
  HandlePtr file = a_->Create("f", O_RDWR | O_EXCL, own_);
  a_->Write(file, 0, "bytes");
  ASSERT_TRUE(a_->Fsync(file).ok());
  Make("g", own_, "may go");
  a_->Kill();
  EXPECT_EQ(Content(*b_, "f", own_), "bytes");
}

TEST_F(WriteScopes, ALostStreamLosesNothing) {
  for (int i = 0; i < 5; ++i) {
    a_->Mkdir("d" + std::to_string(i), own_);
    ASSERT_TRUE(a_->Await([](Mounted* a) -> Task<Status> {
                    co_await a->LoseStream();
                    co_return OkStatus();
                  }(a_.get()))
                    .ok());
    Make("f", FromProto(a_->Lookup("d" + std::to_string(i), own_)->attr.fid()), "bytes");
  }
  for (int i = 0; i < 5; ++i) {
    const Fid below = FromProto(b_->Lookup("d" + std::to_string(i), own_)->attr.fid());
    EXPECT_EQ(Content(*b_, "f", below), "bytes");
  }
}

TEST_F(WriteScopes, TwoRenamesAcrossWaitForNobodyForEver) {
  const Fid theirs = b_->Mkdir("theirs");
  Make("f", own_);
  HandlePtr g = b_->Create("g", O_RDWR | O_EXCL, theirs);
  EXPECT_TRUE(b_->Close(g).ok());
  int done = 0;
  auto count = [&done](const Status& status) { done += status.ok() ? 1 : 0; };
  Spawn(a_->process()->executor(), a_->fs().Rename(a_->caller, own_, "f", theirs, "f", 0), count);
  Spawn(b_->process()->executor(), b_->fs().Rename(b_->caller, theirs, "g", own_, "g", 0), count);
  EXPECT_TRUE(harness_.RunUntil([&] { return done == 2; }, 5s));
  EXPECT_TRUE(a_->Lookup("g", own_).ok());
  EXPECT_TRUE(b_->Lookup("f", theirs).ok());
}

}  // namespace
}  // namespace nacre::client
