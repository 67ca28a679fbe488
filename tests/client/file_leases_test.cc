// WRITE leases of single files: who writes a file of his own in a directory that others change, too, works on
// it as in a directory of his own, and whoever comes to the file sees all of it.
#include <fcntl.h>

#include "client/inode.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

using namespace std::chrono_literals;

class OwnFiles : public testing::Test {
 protected:
  OwnFiles() : a_(harness_.Mount()), b_(harness_.Mount()), shared_(a_->Mkdir("shared")) {
    Change(*b_, "one");
    Change(*a_, "two");  // nobody has a lease of the directory for a while
    file_ = a_->Create("f", O_RDWR | O_EXCL, shared_);
    for (int i = 0; i < 3; ++i) a_->Write(file_, 0, data_);
    EXPECT_TRUE(HasLease(*file_->inode));
    EXPECT_TRUE(Held(*file_->inode));
  }

  void Change(Mounted& by, const std::string& name) {
    EXPECT_TRUE(by.Close(by.Create(name, O_RDWR | O_EXCL, shared_)).ok());
  }
  static bool Held(Inode& inode) {
    std::lock_guard lock(inode.mutex);
    return inode.data_scope != nullptr;
  }
  static bool HasLease(Inode& inode) {
    std::lock_guard lock(inode.mutex);
    return inode.scope != nullptr && inode.scope->good() && inode.scope->of_file();
  }
  uint64_t Dirty() { return a_->fs().Look().dirty_bytes; }
  // Writes over all of it without a server.
  void Overwrite(uint64_t seed) {
    data_ = Pattern(seed, data_.size());
    const Duration before = harness_.world.clock().Now();
    a_->Write(file_, 0, data_);
    EXPECT_EQ(harness_.world.clock().Now(), before);
    EXPECT_GT(Dirty(), 0u);
  }
  std::string ReadBy(Mounted& by, const std::string& name) {
    HandlePtr file = by.OpenName(name, O_RDONLY, shared_);
    std::string bytes = by.Read(file, 0, 4 * kMiB);
    EXPECT_TRUE(by.Close(file).ok());
    return bytes;
  }
  // How many messages somebody waits for.
  static int Foreground(const Mounted& by) {
    int count = 0;
    for (const auto& [kind, sent] : by.requests) {
      if (kind != "batch" && kind != "keep_alive" && kind != "release_lease") count += sent;
    }
    return count;
  }
  Status Unlink(Mounted& by, const std::string& name) {
    return by.Await(by.fs().Unlink(by.caller, shared_, name));
  }
  Status Rename(Mounted& by, const std::string& from, const std::string& to) {
    return by.Await(by.fs().Rename(by.caller, shared_, from, shared_, to, 0));
  }
  template <typename T>
  std::shared_ptr<std::optional<T>> Start(Mounted& by, Task<T> task) {
    auto result = std::make_shared<std::optional<T>>();
    Spawn(by.process()->executor(), std::move(task), [result](T value) { *result = std::move(value); });
    return result;
  }
  void CrashOsses() {
    for (int oss : {0, 1}) harness_.cluster.Crash(harness_.cluster.oss(oss), sim::Loss::kProcess);
  }
  void BootOsses() {
    for (int oss : {0, 1}) harness_.cluster.Boot(harness_.cluster.oss(oss));
  }

  Harness harness_;
  std::unique_ptr<Mounted> a_, b_;
  Fid shared_;
  std::string data_ = Pattern(1, kMiB - 1000);  // a whole window would be sent at once
  HandlePtr file_;
};

TEST_F(OwnFiles, AreWrittenReadAndLookedAtWithoutTheMds) {
  Overwrite(2);
  const int before = Foreground(*a_);
  EXPECT_EQ(a_->Read(file_, 0, 2 * kMiB), data_);
  a_->Write(file_, data_.size(), "beyond");
  EXPECT_EQ(a_->Stat(file_->inode->fid).size(), data_.size() + 6);
  SetAttributes mode;
  mode.mode = 0600;
  EXPECT_TRUE(a_->Await(a_->fs().Setattr(a_->caller, file_->inode->fid, mode, file_)).ok());
  EXPECT_EQ(Foreground(*a_), before);
  EXPECT_EQ(ReadBy(*b_, "f"), data_ + "beyond");
  EXPECT_EQ(b_->Stat(file_->inode->fid).mode() & 0777, 0600u);
}

TEST_F(OwnFiles, OfAFewBytesAreGathered) {
  HandlePtr small = a_->Create("small", O_RDWR | O_EXCL, shared_);
  for (int i = 0; i < 3; ++i) a_->Write(small, 0, "some bytes");
  EXPECT_TRUE(HasLease(*small->inode));
  const auto before = a_->requests;
  for (int i = 0; i < 10; ++i) a_->Write(small, 0, absl::StrCat("round ", i));
  EXPECT_EQ(a_->requests, before);
  EXPECT_EQ(ReadBy(*b_, "small"), "round 9tes");
}

TEST_F(OwnFiles, AreNotAskedForByWhoWritesOnce) {
  HandlePtr once = a_->Create("once", O_RDWR | O_EXCL, shared_);
  a_->Write(once, 0, data_);
  EXPECT_FALSE(HasLease(*once->inode));
  const int before = a_->requests["release_lease"];
  EXPECT_TRUE(a_->Close(once).ok());
  harness_.world.RunFor(1s);
  EXPECT_EQ(a_->requests["release_lease"], before);
}

TEST_F(OwnFiles, AreSeenByWhoComesAndEachWriteFromThenOn) {
  Overwrite(2);
  EXPECT_EQ(ReadBy(*b_, "f"), data_);
  EXPECT_FALSE(HasLease(*file_->inode));
  EXPECT_EQ(Dirty(), 0u);
  for (int i = 0; i < 3; ++i) {
    a_->Write(file_, 100, absl::StrCat("after that ", i));
    EXPECT_FALSE(HasLease(*file_->inode)) << "so soon";
    data_.replace(100, 12, absl::StrCat("after that ", i));
    EXPECT_EQ(ReadBy(*b_, "f"), data_);
  }
}

TEST_F(OwnFiles, AreLeasedAgainWhenNobodyComes) {
  EXPECT_EQ(ReadBy(*b_, "f"), data_);
  harness_.world.RunFor(6s);
  Change(*b_, "three");
  Change(*a_, "four");
  for (int i = 0; i < 3; ++i) a_->Write(file_, 0, data_);
  EXPECT_TRUE(HasLease(*file_->inode));
  Overwrite(3);
  EXPECT_EQ(ReadBy(*b_, "f"), data_);
}

TEST_F(OwnFiles, GoBackWithTheLastHandleForWriting) {
  Overwrite(2);
  HandlePtr second = a_->OpenName("f", O_RDWR, shared_), reads = a_->OpenName("f", O_RDONLY, shared_);
  EXPECT_TRUE(a_->Close(second).ok());
  EXPECT_TRUE(HasLease(*file_->inode));
  EXPECT_TRUE(a_->Close(file_).ok());
  EXPECT_FALSE(HasLease(*file_->inode));
  EXPECT_TRUE(harness_.RunUntil([&] { return Dirty() == 0 && !Held(*file_->inode); }, 1s));
  harness_.world.RunFor(100ms);
  const int before = a_->requests["release_lease"];
  EXPECT_EQ(b_->Stat(file_->inode->fid).size(), data_.size());
  EXPECT_EQ(ReadBy(*b_, "f"), data_);
  EXPECT_EQ(a_->requests["release_lease"], before) << "nothing was left to be asked back";
  EXPECT_EQ(a_->Read(reads, 0, 2 * kMiB), data_);
}

TEST_F(OwnFiles, AreSharedWithASecondWriter) {
  Overwrite(2);
  HandlePtr theirs = b_->OpenName("f", O_RDWR, shared_);
  EXPECT_FALSE(HasLease(*file_->inode));
  b_->Write(theirs, 5000, "theirs");
  data_.replace(5000, 6, "theirs");
  EXPECT_EQ(a_->Read(file_, 0, 2 * kMiB), data_);
  harness_.world.RunFor(6s);
  for (int i = 0; i < 4; ++i) {
    a_->Write(file_, 0, "ours");
    b_->Write(theirs, 4, "his");
  }
  {
    std::lock_guard lock(file_->inode->mutex);
    EXPECT_TRUE(file_->inode->IsShared());
  }
  data_.replace(0, 7, "ourshis");
  EXPECT_EQ(a_->Read(file_, 0, 2 * kMiB), data_);
  EXPECT_EQ(b_->Read(theirs, 0, 2 * kMiB), data_);
}

TEST_F(OwnFiles, TwoClientsWithFilesInOneDirectoryDoNotDisturbEachOther) {
  HandlePtr theirs = b_->Create("theirs", O_RDWR | O_EXCL, shared_);
  for (int i = 0; i < 3; ++i) b_->Write(theirs, 0, data_);
  EXPECT_TRUE(HasLease(*theirs->inode));
  for (int i = 0; i < 5; ++i) {
    Change(*b_, absl::StrCat("b", i));
    Change(*a_, absl::StrCat("a", i));
    EXPECT_EQ(b_->List(shared_).size(), static_cast<size_t>(6 + 2 * i));
  }
  EXPECT_TRUE(HasLease(*file_->inode));
  EXPECT_TRUE(HasLease(*theirs->inode));
}

// --- names ---

TEST_F(OwnFiles, ThatAnotherRemovesLoseTheirName) {
  Overwrite(2);
  HandlePtr theirs = b_->OpenName("two", O_RDONLY, shared_);
  EXPECT_TRUE(Unlink(*b_, "f").ok());
  EXPECT_EQ(a_->Stat(file_->inode->fid).nlink(), 0u);
  EXPECT_EQ(a_->Read(file_, 0, 2 * kMiB), data_);
  a_->Write(file_, 0, "still there");
  EXPECT_EQ(a_->Read(file_, 0, 11), "still there");
  EXPECT_TRUE(a_->Close(file_).ok());
}

TEST_F(OwnFiles, ThatAnotherRenamesGoOn) {
  Overwrite(2);
  EXPECT_TRUE(Rename(*b_, "f", "g").ok());
  EXPECT_EQ(ReadBy(*b_, "g"), data_);
  a_->Write(file_, 0, "after that");
  data_.replace(0, 10, "after that");
  EXPECT_EQ(ReadBy(*b_, "g"), data_);
}

TEST_F(OwnFiles, ThatAnotherReplacesAreWhatTheyWere) {
  Overwrite(2);
  EXPECT_TRUE(Rename(*b_, "one", "f").ok());
  EXPECT_EQ(a_->Stat(file_->inode->fid).nlink(), 0u);
  EXPECT_EQ(a_->Read(file_, 0, 2 * kMiB), data_);
  EXPECT_EQ(ReadBy(*b_, "f"), "");
}

TEST_F(OwnFiles, ThatAnotherGivesASecondNameAreTheSameThere) {
  Overwrite(2);
  const Fid fid = file_->inode->fid;
  EXPECT_TRUE(b_->Await(b_->fs().Link(b_->caller, fid, shared_, "second")).ok());
  EXPECT_EQ(ReadBy(*b_, "second"), data_);
  EXPECT_EQ(a_->Stat(fid).nlink(), 2u);
}

TEST_F(OwnFiles, AreRenamedHere) {
  Overwrite(2);
  EXPECT_TRUE(Rename(*a_, "f", "g").ok());
  EXPECT_EQ(a_->Read(file_, 0, 2 * kMiB), data_);
  for (int i = 0; i < 3; ++i) a_->Write(file_, 0, data_);
  Overwrite(3);
  EXPECT_EQ(ReadBy(*b_, "g"), data_);
}

// Without fsync, whenever the client is killed: the bytes were with the servers before the name was there.
TEST_F(OwnFiles, ReplaceAnotherWithTheirBytes) {
  Overwrite(2);
  EXPECT_TRUE(Rename(*a_, "f", "one").ok());
  a_->Kill();
  EXPECT_EQ(ReadBy(*b_, "one"), data_);
}

// Another one may read on in a file without names.
TEST_F(OwnFiles, ThatAreRemovedHereAreSentForWhoHasThemOpen) {
  HandlePtr theirs = b_->OpenName("f", O_RDONLY, shared_);
  harness_.world.RunFor(6s);
  Change(*b_, "three");
  Change(*a_, "four");
  for (int i = 0; i < 3; ++i) a_->Write(file_, 0, data_);
  ASSERT_TRUE(HasLease(*file_->inode));
  Overwrite(2);
  EXPECT_TRUE(Unlink(*a_, "f").ok());
  a_->Write(file_, 0, "the last");
  data_.replace(0, 8, "the last");
  EXPECT_TRUE(a_->Close(file_).ok());
  harness_.world.RunFor(1s);
  EXPECT_EQ(b_->Read(theirs, 0, 2 * kMiB), data_);
  EXPECT_TRUE(b_->Close(theirs).ok());
}

TEST_F(OwnFiles, ThatAreRemovedWhenTheyAreClosedLeaveNothing) {
  Overwrite(2);
  EXPECT_TRUE(a_->Close(file_).ok());
  EXPECT_TRUE(Unlink(*a_, "f").ok());
  harness_.world.RunFor(2s);
  EXPECT_EQ(Dirty(), 0u);
  EXPECT_THAT(b_->List(shared_), testing::UnorderedElementsAre("one", "two"));
}

// --- servers that are away ---

TEST_F(OwnFiles, AreDurableAfterFsync) {
  Overwrite(2);
  ASSERT_TRUE(a_->Fsync(file_).ok());
  a_->Kill();
  EXPECT_EQ(ReadBy(*b_, "f"), data_);
}

TEST_F(OwnFiles, AreRemovedByOthersThoughTheirOstIsAway) {
  Overwrite(2);
  CrashOsses();
  auto gone = Start(*b_, b_->fs().Unlink(b_->caller, shared_, "f"));
  EXPECT_TRUE(harness_.RunUntil([&] { return gone->has_value(); }, 5s));
  auto made = Start(*b_, b_->fs().Mknod(b_->caller, shared_, "third", S_IFREG | 0644, 0));
  EXPECT_TRUE(harness_.RunUntil([&] { return made->has_value(); }, 5s));
  BootOsses();
  harness_.world.RunFor(20s);
  EXPECT_EQ(a_->Read(file_, 0, 2 * kMiB), data_);
}

TEST_F(OwnFiles, AreWaitedForThoughTheirOstIsAwayAndNobodyIsEvicted) {
  Overwrite(2);
  CrashOsses();
  Duration unused{0};
  auto found = Start(*b_, b_->fs().Lookup(b_->caller, shared_, "f", &unused));
  harness_.world.RunFor(300s);
  EXPECT_FALSE(found->has_value());
  const uint64_t epoch = a_->fs().Look().epoch;
  BootOsses();
  EXPECT_TRUE(harness_.RunUntil([&] { return found->has_value(); }, 60s));
  EXPECT_EQ(a_->fs().Look().epoch, epoch);
  EXPECT_EQ(ReadBy(*b_, "f"), data_);
}

TEST_F(OwnFiles, OutliveARestartOfTheMds) {
  Overwrite(2);
  const int mds = harness_.cluster.mds();
  harness_.cluster.Crash(mds, sim::Loss::kProcess);
  harness_.world.RunFor(1s);
  harness_.cluster.Boot(mds);
  harness_.world.RunFor(60s);
  EXPECT_TRUE(HasLease(*file_->inode));
  a_->Write(file_, 0, "after that");
  data_.replace(0, 10, "after that");
  EXPECT_EQ(ReadBy(*b_, "f"), data_);
}

TEST_F(OwnFiles, OfAClientThatIsGoneAreThoseOfTheNextOne) {
  EXPECT_TRUE(a_->Fsync(file_).ok());
  const std::string synced = data_;
  Overwrite(2);
  a_->Kill();
  HandlePtr theirs = b_->OpenName("f", O_RDWR, shared_);
  EXPECT_EQ(b_->Read(theirs, 0, 2 * kMiB), synced);
  b_->Write(theirs, 0, "theirs");
  EXPECT_EQ(b_->Read(theirs, 0, 6), "theirs");
}

// Each has a file in a directory that the other one has: what one gives back must not wait for the other.
TEST_F(OwnFiles, InEachOthersDirectoriesWaitForNobody) {
  const Fid mine = a_->Mkdir("mine"), his = b_->Mkdir("his");
  auto change = [&](Mounted& by, const std::string& name, Fid where) {
    EXPECT_TRUE(by.Close(by.Create(name, O_RDWR | O_EXCL, where)).ok());
  };
  for (const Fid where : {mine, his}) {
    change(*a_, "a", where);
    change(*b_, "b", where);
  }
  HandlePtr in_his = a_->Create("f", O_RDWR | O_EXCL, his), in_mine = b_->Create("f", O_RDWR | O_EXCL, mine);
  for (int i = 0; i < 3; ++i) {
    a_->Write(in_his, 0, data_);
    b_->Write(in_mine, 0, data_);
  }
  ASSERT_TRUE(HasLease(*in_his->inode) && HasLease(*in_mine->inode));
  harness_.world.RunFor(6s);
  for (int i = 0; i < 3; ++i) {
    change(*a_, absl::StrCat("c", i), mine);
    change(*b_, absl::StrCat("c", i), his);
  }
  ASSERT_TRUE(HasLease(*in_his->inode) && HasLease(*in_mine->inode));
  SetAttributes mode;
  mode.mode = 0600;
  const Duration before = harness_.world.clock().Now();
  auto one = Start(*a_, a_->fs().Setattr(a_->caller, in_his->inode->fid, mode, in_his));
  auto two = Start(*b_, b_->fs().Setattr(b_->caller, in_mine->inode->fid, mode, in_mine));
  EXPECT_TRUE(harness_.RunUntil([&] { return one->has_value() && two->has_value(); }));
  EXPECT_TRUE(a_->Fsync(in_his).ok());
  EXPECT_TRUE(b_->Fsync(in_mine).ok());
  EXPECT_LT(harness_.world.clock().Now() - before, 2s);
}

}  // namespace
}  // namespace nacre::client
