// Data of large files under WRITE leases of directories: writes wait for no server, and whoever comes sees
// all of it.
#include <fcntl.h>

#include "client/inode.h"
#include "common/cancellation.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

using namespace std::chrono_literals;

class ScopedData : public testing::Test {
 protected:
  ScopedData() : a_(harness_.Mount()), b_(harness_.Mount()), own_(a_->Mkdir("own")) {
    (void)a_->Lookup("f", own_);  // as a kernel does
    file_ = a_->Create("f", O_RDWR | O_EXCL, own_);
    a_->Write(file_, 0, data_);
    EXPECT_TRUE(a_->Fsync(file_).ok());
    EXPECT_TRUE(Held(*file_->inode));
  }

  static bool Held(Inode& inode) {
    std::lock_guard lock(inode.mutex);
    return inode.data_scope != nullptr;
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
  std::string ReadBy(Mounted& by, const std::string& name, Fid directory) {
    HandlePtr file = by.OpenName(name, O_RDONLY, directory);
    std::string bytes = by.Read(file, 0, 4 * kMiB);
    EXPECT_TRUE(by.Close(file).ok());
    return bytes;
  }
  Status Rename(Mounted& by, Fid from, const std::string& name, Fid to, const std::string& new_name) {
    return by.Await(by.fs().Rename(by.caller, from, name, to, new_name, 0));
  }

  Harness harness_;
  std::unique_ptr<Mounted> a_, b_;
  Fid own_;
  std::string data_ = Pattern(1, kMiB);
  HandlePtr file_;
};

TEST_F(ScopedData, IsHeldBackAndReadHere) {
  Overwrite(2);
  EXPECT_EQ(a_->Read(file_, 0, 2 * kMiB), data_);
  a_->Write(file_, data_.size(), "beyond");
  EXPECT_EQ(a_->Stat(file_->inode->fid).size(), data_.size() + 6);
  EXPECT_EQ(a_->Lookup("f", own_)->attr.size(), data_.size() + 6);
  EXPECT_EQ(ReadBy(*a_, "f", own_), data_ + "beyond");
}

TEST_F(ScopedData, TheOtherSeesAllOfItAndFromThenOnEachWrite) {
  Overwrite(2);
  EXPECT_EQ(ReadBy(*b_, "f", own_), data_);
  EXPECT_FALSE(Held(*file_->inode));
  EXPECT_EQ(Dirty(), 0u);
  a_->Write(file_, 100, "after that");
  EXPECT_EQ(Dirty(), 0u);
  data_.replace(100, 10, "after that");
  EXPECT_EQ(ReadBy(*b_, "f", own_), data_);
}

TEST_F(ScopedData, TheOthersBytesAreNotHiddenByTheCache) {
  EXPECT_EQ(a_->Read(file_, 0, kMiB), data_);
  HandlePtr theirs = b_->OpenName("f", O_RDWR, own_);
  b_->Write(theirs, 5000, "theirs");
  data_.replace(5000, 6, "theirs");
  EXPECT_EQ(a_->Read(file_, 0, kMiB), data_);
}

TEST_F(ScopedData, AppendsOfBothFollowEachOther) {
  HandlePtr mine = a_->OpenName("f", O_WRONLY | O_APPEND, own_);
  a_->Write(mine, 0, "one");
  a_->Write(mine, 0, "two");
  EXPECT_GT(Dirty(), 0u);
  HandlePtr theirs = b_->OpenName("f", O_WRONLY | O_APPEND, own_);
  b_->Write(theirs, 0, "three");
  a_->Write(mine, 0, "four");
  EXPECT_EQ(ReadBy(*b_, "f", own_), data_ + "onetwothreefour");
  EXPECT_EQ(ReadBy(*a_, "f", own_), data_ + "onetwothreefour");
}

TEST_F(ScopedData, GoesAlongWithItsFile) {
  const Fid below = a_->Mkdir("below", own_);
  Overwrite(2);
  ASSERT_TRUE(Rename(*a_, own_, "f", below, "g").ok());
  EXPECT_GT(Dirty(), 0u);
  EXPECT_EQ(a_->Read(file_, 0, kMiB), data_);
  EXPECT_EQ(ReadBy(*b_, "g", below), data_);
}

TEST_F(ScopedData, OfAFileThatLeavesItsLeaseIsSentBefore) {
  const Fid others = b_->Mkdir("others");
  Overwrite(2);
  ASSERT_TRUE(Rename(*a_, own_, "f", others, "g").ok());
  EXPECT_FALSE(Held(*file_->inode));
  EXPECT_EQ(ReadBy(*b_, "g", others), data_);
  a_->Write(file_, 0, "in the other's directory");
  EXPECT_EQ(ReadBy(*b_, "g", others).substr(0, 24), "in the other's directory");
}

// Seed 624002243: the directory was known no more, and with it which files have data under its lease.
TEST_F(ScopedData, OfAFileThatLeavesADirectoryThatWasForgottenForWantOfMemoryIsSentBefore) {
  Options small;
  small.known_bytes = 64 << 10;
  std::unique_ptr<Mounted> c = harness_.Mount(small);
  const Fid directory = c->Mkdir("small"), others = b_->Mkdir("others");
  constexpr int kMany = 400;
  for (int i = 0; i < kMany; ++i) EXPECT_TRUE(b_->Close(b_->Create(absl::StrCat("f", i))).ok());
  (void)c->Lookup("f", directory);
  HandlePtr file = c->Create("f", O_RDWR | O_EXCL, directory);
  c->Write(file, 0, data_);
  ASSERT_TRUE(c->Fsync(file).ok());
  c->Write(file, 0, "held back");
  (void)c->Lookup("f0");  // has the root's lease, which nobody gets for a while when it was in the way
  EXPECT_TRUE(b_->Close(b_->Create("another")).ok());
  for (int i = 0; i < kMany; ++i) (void)c->Lookup(absl::StrCat("f", i));
  ASSERT_TRUE(Held(*file->inode));
  ASSERT_TRUE(Rename(*c, directory, "f", others, "g").ok());
  EXPECT_FALSE(Held(*file->inode));
  EXPECT_EQ(ReadBy(*b_, "g", others).substr(0, 9), "held back");
  c->Write(file, 0, "in the other's directory");
  EXPECT_EQ(ReadBy(*b_, "g", others).substr(0, 24), "in the other's directory");
}

TEST_F(ScopedData, OfAFileWithASecondNameIsSentBefore) {
  Overwrite(2);
  const Fid fid = file_->inode->fid;
  EXPECT_TRUE(a_->Await(a_->fs().Link(a_->caller, fid, own_, "second")).ok());
  EXPECT_FALSE(Held(*file_->inode));
  EXPECT_EQ(b_->Read(b_->Open(fid, O_RDONLY), 0, kMiB), data_);
}

// Seed 1519000157 of OSTs with two members: what no lease covered for a while was answered from a lease that
// had been good all the time. The other one's kernel went on with pages of before the truncation.
TEST_F(ScopedData, IsNotHeldBackFromWhoCameWhileTheFileHadTwoNames) {
  const Fid fid = file_->inode->fid, elsewhere = a_->Mkdir("elsewhere");
  EXPECT_TRUE(a_->Await(a_->fs().Link(a_->caller, fid, elsewhere, "second")).ok());
  EXPECT_TRUE(a_->Close(file_).ok());
  std::vector<Fid> forgotten;
  Invalidation invalidation;
  invalidation.data_and_attributes = [&forgotten](Fid file, uint64_t, uint64_t) -> Task<void> {
    forgotten.push_back(file);
    co_return;
  };
  b_->fs().SetInvalidation(std::move(invalidation));
  HandlePtr theirs = b_->OpenName("second", O_RDWR, elsewhere);
  ASSERT_TRUE(b_->Await(b_->fs().HoldPages(theirs, 0, 4096, PageUse::kFill)).ok());
  ASSERT_TRUE(a_->Await(a_->fs().Unlink(a_->caller, elsewhere, "second")).ok());
  forgotten.clear();
  HandlePtr mine = a_->OpenName("f", O_RDWR | O_TRUNC, own_);
  a_->Write(mine, 0, "new");
  EXPECT_FALSE(Held(*mine->inode));
  EXPECT_THAT(forgotten, testing::Contains(fid));
  EXPECT_EQ(b_->Read(theirs, 0, 2 * kMiB), "new");
}

TEST_F(ScopedData, OfAnOpenFileOutlivesItsNames) {
  Overwrite(2);
  ASSERT_TRUE(a_->Await(a_->fs().Unlink(a_->caller, own_, "f")).ok());
  EXPECT_FALSE(Held(*file_->inode));
  EXPECT_EQ(a_->Read(file_, 0, kMiB), data_);
  a_->Write(file_, 0, "still there");
  EXPECT_EQ(a_->Read(file_, 0, 11), "still there");
  EXPECT_TRUE(a_->Close(file_).ok());
}

TEST_F(ScopedData, OfAClosedFileThatIsRemovedGoesNowhere) {
  Overwrite(2);
  EXPECT_TRUE(a_->Close(file_).ok());
  ASSERT_TRUE(a_->Await(a_->fs().Unlink(a_->caller, own_, "f")).ok());
  EXPECT_TRUE(harness_.RunUntil([&] { return Dirty() == 0; }, 1s));
  EXPECT_TRUE(b_->List(own_).empty());
}

// Another one may read on in a file without names. Seed 1210000094 of OSTs with two members: it read a file
// that ended too early.
TEST_F(ScopedData, OfARemovedFileThatTheOtherHasOpenIsSent) {
  HandlePtr theirs = b_->Create("t", O_RDWR | O_EXCL, own_);
  b_->Write(theirs, 0, data_);
  EXPECT_TRUE(b_->Close(theirs).ok());
  theirs = b_->OpenName("t", O_RDONLY, own_);
  (void)harness_.RunUntil([] { return false; }, 10s);  // until the directory may be lent to be changed
  HandlePtr ours = a_->OpenName("t", O_RDWR, own_);
  for (int i = 0; i < 10 && !Held(*ours->inode); ++i) {
    EXPECT_TRUE(a_->Close(a_->Create(absl::StrCat("g", i), O_RDWR | O_EXCL, own_)).ok());
    (void)a_->Lookup("t", own_);
    a_->Write(ours, data_.size() + static_cast<uint64_t>(i), "x");
    (void)harness_.RunUntil([] { return false; }, 1s);
  }
  ASSERT_TRUE(Held(*ours->inode));
  data_ = Pattern(2, data_.size() + 100);
  a_->Write(ours, 0, data_);
  EXPECT_TRUE(a_->Fsync(ours).ok());
  a_->Write(ours, data_.size(), "the end");
  EXPECT_TRUE(a_->Close(ours).ok());
  ASSERT_TRUE(a_->Await(a_->fs().Unlink(a_->caller, own_, "t")).ok());
  (void)harness_.RunUntil([] { return false; }, 1s);
  EXPECT_EQ(b_->Read(theirs, 0, 2 * kMiB), data_ + "the end");
  EXPECT_TRUE(b_->Close(theirs).ok());
}

TEST_F(ScopedData, TruncationsAndHolesMeetWhatIsHeldBack) {
  Overwrite(2);
  a_->Truncate(file_, 10'000);
  a_->Write(file_, 20'000, "behind a hole");
  data_ = data_.substr(0, 10'000) + std::string(10'000, '\0') + "behind a hole";
  EXPECT_EQ(a_->Read(file_, 0, kMiB), data_);
  EXPECT_TRUE(a_->Await(a_->fs().Fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096)).ok());
  data_.replace(0, 4096, std::string(4096, '\0'));
  EXPECT_EQ(a_->Read(file_, 0, kMiB), data_);
  EXPECT_EQ(ReadBy(*b_, "f", own_), data_);
}

TEST_F(ScopedData, OfAFileThatIsEmptiedByItsNameIsNotSentLater) {
  Overwrite(2);
  auto made = a_->Await(a_->fs().Create(a_->caller, own_, "f", 0644, O_RDWR | O_CREAT | O_TRUNC));
  ASSERT_TRUE(made.ok());
  a_->Write(made->handle, 0, "new");
  EXPECT_EQ(ReadBy(*b_, "f", own_), "new");
  harness_.world.RunFor(20s);
  EXPECT_EQ(ReadBy(*b_, "f", own_), "new");
}

TEST_F(ScopedData, AClosedFilesDataLeavesAtOnce) {
  Overwrite(2);
  EXPECT_TRUE(a_->Close(file_).ok());
  EXPECT_TRUE(harness_.RunUntil([&] { return Dirty() == 0; }, 1s));
}

TEST_F(ScopedData, IsDurableAfterFsync) {
  Overwrite(2);
  ASSERT_TRUE(a_->Fsync(file_).ok());
  a_->Kill();
  EXPECT_EQ(ReadBy(*b_, "f", own_), data_);
}

// Without fsync, whenever the client is killed: the old bytes or the new ones.
TEST_F(ScopedData, AFileThatReplacesAnotherIsWhole) {
  const std::string old = data_;
  HandlePtr made = a_->Create("tmp", O_RDWR | O_EXCL, own_);
  a_->Write(made, 0, Pattern(7, kMiB));
  EXPECT_TRUE(a_->Close(made).ok());
  ASSERT_TRUE(Rename(*a_, own_, "tmp", own_, "f").ok());
  a_->Kill();
  const std::string found = ReadBy(*b_, "f", own_);
  EXPECT_TRUE(found == old || found == Pattern(7, kMiB)) << found.size();
}

// --- an OST that is away ---

class LateData : public ScopedData {
 protected:
  LateData() {
    other_ = a_->Create("other", O_RDWR | O_EXCL, own_);
    Overwrite(2);
    for (int oss : {0, 1}) harness_.cluster.Crash(harness_.cluster.oss(oss), sim::Loss::kProcess);
  }
  void Return() {
    for (int oss : {0, 1}) harness_.cluster.Boot(harness_.cluster.oss(oss));
  }
  template <typename T>
  std::shared_ptr<std::optional<T>> Start(Mounted& by, Task<T> task) {
    auto result = std::make_shared<std::optional<T>>();
    Spawn(by.process()->executor(), std::move(task), [result](T value) { *result = std::move(value); });
    return result;
  }

  HandlePtr other_;
  Duration unused_{0};
};

// Seed 1853000624 of OSTs with three members: the answer that named the lease of a new directory was lost,
// and the lease went back at once when it was asked for, before the data that a file had under it.
TEST_F(ScopedData, InADirectoryWhoseLeaseWasNeverNamedIsSentBefore) {
  a_->before_reply = [&, once = false](const proto::MetadataRequest& request) mutable -> Task<Status> {
    if (once || !request.has_batch() || !request.batch().requests(0).has_mknod()) co_return OkStatus();
    once = true;
    co_await harness_.world.clock().Sleep(100ms);
    harness_.network.Break(a_->process()->node(), harness_.cluster.mds());
    co_return ErrnoError(ENOTCONN, "the stream is lost");
  };
  const Fid below = a_->Mkdir("below", own_);
  (void)a_->Lookup("g", below);
  HandlePtr made = a_->Create("g", O_RDWR | O_EXCL, below);
  a_->Write(made, 0, data_);
  for (int oss : {0, 1}) harness_.cluster.Crash(harness_.cluster.oss(oss), sim::Loss::kProcess);
  std::optional<StatusOr<Known>> seen;
  Duration unused{0};
  Spawn(b_->process()->executor(), b_->fs().Lookup(b_->caller, below, "g", &unused),
        [&seen](StatusOr<Known> entry) { seen = std::move(entry); });
  EXPECT_FALSE(harness_.RunUntil([&] { return seen.has_value(); }, 20s));
  for (int oss : {0, 1}) harness_.cluster.Boot(harness_.cluster.oss(oss));
  ASSERT_TRUE(harness_.RunUntil([&] { return seen.has_value(); }));
  ASSERT_TRUE(seen->ok()) << seen->status();
  EXPECT_EQ((**seen).attr.size(), data_.size());
  EXPECT_TRUE(ReadBy(*b_, "g", below) == data_);
}

TEST_F(LateData, KeepsNobodyFromTheRestOfTheDirectory) {
  auto names = Start(*b_, b_->fs().Lookup(b_->caller, own_, "other", &unused_));
  EXPECT_TRUE(harness_.RunUntil([&] { return names->has_value(); }, 3s));
  auto made = Start(*b_, b_->fs().Create(b_->caller, own_, "third", 0644, O_RDWR | O_CREAT));
  EXPECT_TRUE(harness_.RunUntil([&] { return made->has_value(); }, 3s));
  auto gone = Start(*b_, b_->fs().Unlink(b_->caller, own_, "other"));
  EXPECT_TRUE(harness_.RunUntil([&] { return gone->has_value(); }, 3s));
}

TEST_F(LateData, IsWaitedForByWhoWantsTheFileAndNobodyIsEvicted) {
  auto found = Start(*b_, b_->fs().Lookup(b_->caller, own_, "f", &unused_));
  const Fid fid = file_->inode->fid;
  SetAttributes set;
  set.size = kMiB / 2;
  auto cut = Start(*b_, b_->fs().Setattr(b_->caller, fid, set, nullptr));
  harness_.world.RunFor(300s);
  EXPECT_FALSE(found->has_value());
  EXPECT_FALSE(cut->has_value());
  const uint64_t epoch = a_->fs().Look().epoch;
  Return();
  EXPECT_TRUE(harness_.RunUntil([&] { return found->has_value() && cut->has_value(); }, 60s));
  EXPECT_EQ(a_->fs().Look().epoch, epoch);
  EXPECT_TRUE((*cut)->ok());
  EXPECT_EQ(ReadBy(*b_, "f", own_), data_.substr(0, kMiB / 2));
  EXPECT_EQ(a_->Read(file_, 0, kMiB), data_.substr(0, kMiB / 2));
  const Status synced = a_->Fsync(file_);
  EXPECT_TRUE(synced.ok()) << synced;
}

// Seed 5800011000149 --copies 3 --mds 2 --growth: the file's lease was asked back before the answer that
// named it had come. It went back at once, and the directory's after it, with the data still here.
TEST_F(LateData, WhoseLeaseIsAskedBackBeforeItIsNamedIsWaitedFor) {
  bool asked = false;
  a_->before_reply = [&](const proto::MetadataRequest& request) -> Task<Status> {
    if (request.acquire_lease().mode() == proto::LEASE_WRITE) {
      asked = true;
      co_await harness_.world.clock().Sleep(500ms);
    }
    co_return OkStatus();
  };
  auto names = Start(*b_, b_->fs().Lookup(b_->caller, own_, "other", &unused_));
  ASSERT_TRUE(harness_.RunUntil([&] { return asked; }, 5s));
  auto found = Start(*b_, b_->fs().Getattr(b_->caller, file_->inode->fid, nullptr));
  EXPECT_TRUE(harness_.RunUntil([&] { return names->has_value(); }, 3s)) << "the directory is not free";
  harness_.world.RunFor(60s);
  EXPECT_FALSE(found->has_value());
  Return();
  EXPECT_TRUE(harness_.RunUntil([&] { return found->has_value(); }, 60s));
  EXPECT_TRUE(ReadBy(*b_, "f", own_) == data_);
}

// The same if a Reclaim has left that lease out, which the answer had not named yet: the MDS has ended it.
TEST_F(LateData, WhoseLeaseAReclaimHasLeftOutIsWaitedFor) {
  a_->before_reply = [&, once = false](const proto::MetadataRequest& request) mutable -> Task<Status> {
    if (request.acquire_lease().mode() == proto::LEASE_WRITE && !std::exchange(once, true))
      co_await a_->LoseStream();
    co_return OkStatus();
  };
  auto names = Start(*b_, b_->fs().Lookup(b_->caller, own_, "other", &unused_));
  EXPECT_TRUE(harness_.RunUntil([&] { return names->has_value(); }, 5s));
  auto found = Start(*b_, b_->fs().Getattr(b_->caller, file_->inode->fid, nullptr));
  harness_.world.RunFor(60s);
  EXPECT_FALSE(found->has_value());
  Return();
  EXPECT_TRUE(harness_.RunUntil([&] { return found->has_value(); }, 60s));
  EXPECT_TRUE(ReadBy(*b_, "f", own_) == data_);
}

TEST_F(LateData, OfAFileThatTheOtherRemovesIsNotWaitedFor) {
  auto gone = Start(*b_, b_->fs().Unlink(b_->caller, own_, "f"));
  EXPECT_TRUE(harness_.RunUntil([&] { return gone->has_value(); }, 3s));
  EXPECT_TRUE((*gone)->ok());
  Return();
  EXPECT_TRUE(harness_.RunUntil([&] { return Dirty() == 0; }, 60s));
  EXPECT_EQ(a_->Read(file_, 0, kMiB), data_);
}

// Seed 1001011773: the close of the first handle waited for its bytes, and told the MDS of one handle less
// behind the message that said how many there are.
TEST_F(LateData, OfAClosedHandleLeavesTheNextOneOpen) {
  const Fid fid = file_->inode->fid;
  Return();
  EXPECT_TRUE(a_->Close(file_).ok());
  ASSERT_EQ(ReadBy(*b_, "f", own_), data_);
  file_ = a_->Open(fid);                          // by the MDS
  for (const char* name : {"third", "fourth"}) {  // the second time the lease is granted again
    harness_.world.RunFor(10s);
    EXPECT_TRUE(a_->Close(a_->Create(name, O_RDWR | O_EXCL, own_)).ok());
  }
  (void)a_->Lookup("f", own_);
  a_->Write(file_, 0, data_);  // other kernels forget their pages
  data_ = Pattern(4, kMiB);
  a_->Write(file_, 0, data_);
  ASSERT_GT(Dirty(), 0u);
  for (int oss : {0, 1}) harness_.cluster.Crash(harness_.cluster.oss(oss), sim::Loss::kProcess);
  EXPECT_TRUE(a_->Close(file_).ok());
  HandlePtr next = a_->Open(fid);
  ASSERT_EQ(a_->requests["open"], 1) << "under the lease";
  const int named = a_->requests["reclaim"];
  auto gone = Start(*b_, b_->fs().Unlink(b_->caller, own_, "f"));
  EXPECT_TRUE(harness_.RunUntil([&] { return gone->has_value(); }, 5s));
  EXPECT_EQ(a_->requests["reclaim"], named + 1);
  Return();
  harness_.world.RunFor(60s);
  EXPECT_TRUE(a_->Read(next, 0, kMiB) == data_);
  EXPECT_EQ(a_->Stat(fid).nlink(), 0u);
  EXPECT_TRUE(b_->Await(b_->fs().Getattr(b_->caller, fid, nullptr)).ok());
  EXPECT_TRUE(a_->Close(next).ok());
  harness_.world.RunFor(60s);
  EXPECT_THAT(b_->Await(b_->fs().Getattr(b_->caller, fid, nullptr)).status(), HasErrno(ENOENT));
}

TEST_F(LateData, WhoRenamesTheFileMeanwhileCanBeKilled) {
  const Fid others = kRootFid;
  auto cancellation = std::make_shared<Cancellation>();
  std::optional<Status> renamed;
  Spawn(
      a_->process()->executor(), a_->fs().Rename(a_->caller, own_, "f", others, "g", 0),
      [&renamed](Status status) { renamed = std::move(status); }, cancellation);
  harness_.world.RunFor(10s);
  EXPECT_FALSE(renamed.has_value());
  cancellation->Cancel(ErrnoError(EINTR, "killed"));
  EXPECT_TRUE(harness_.RunUntil([&] { return renamed.has_value(); }, 1s));
  EXPECT_THAT(*renamed, HasErrno(EINTR));
  Return();
  EXPECT_EQ(ReadBy(*b_, "f", own_), data_);
}

// `dead_oss`, seed 24: the lease of the directory where the file was before asked for the file's own lease
// once more, was refused it, and waited for the OST until this client was evicted.
TEST_F(LateData, OfAFileThatHasMovedKeepsNobodyFromWhereItWas) {
  Return();
  EXPECT_TRUE(harness_.RunUntil([&] { return Dirty() == 0; }, 60s));
  const Fid below = a_->Mkdir("below", own_);
  data_ = Pattern(3, kMiB);
  a_->Write(file_, 0, data_);
  ASSERT_TRUE(Rename(*a_, own_, "f", below, "g").ok());
  ASSERT_GT(Dirty(), 0u);
  for (int oss : {0, 1}) harness_.cluster.Crash(harness_.cluster.oss(oss), sim::Loss::kProcess);
  auto there = Start(*b_, b_->fs().Mknod(b_->caller, below, "there", S_IFREG | 0644, 0));
  EXPECT_TRUE(harness_.RunUntil([&] { return there->has_value(); }, 3s));
  auto where_it_was = Start(*b_, b_->fs().Mknod(b_->caller, own_, "here", S_IFREG | 0644, 0));
  EXPECT_TRUE(harness_.RunUntil([&] { return where_it_was->has_value(); }, 3s));
  Return();
  EXPECT_EQ(ReadBy(*b_, "g", below), data_);
}

TEST_F(LateData, StaysTheFilesWhenTheMdsRestarts) {
  auto names = Start(*b_, b_->fs().Lookup(b_->caller, own_, "other", &unused_));
  EXPECT_TRUE(harness_.RunUntil([&] { return names->has_value(); }, 3s));
  harness_.cluster.Crash(0, sim::Loss::kProcess);
  harness_.cluster.Boot(0);
  auto found = Start(*b_, b_->fs().Lookup(b_->caller, own_, "f", &unused_));
  harness_.world.RunFor(60s);
  EXPECT_FALSE(found->has_value());
  Return();
  EXPECT_TRUE(harness_.RunUntil([&] { return found->has_value(); }, 60s));
  EXPECT_EQ(ReadBy(*b_, "f", own_), data_);
}

}  // namespace
}  // namespace nacre::client
