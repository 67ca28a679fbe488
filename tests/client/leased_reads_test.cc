// Reading under READ of a file in a directory that others change: the MDS is not asked for each read, and
// nothing stale is read.
#include "client/inode.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

using namespace std::chrono_literals;

class LeasedReads : public testing::Test {
 protected:
  LeasedReads() : a_(harness_.Mount()), b_(harness_.Mount()), shared_(b_->Mkdir("shared")) {
    theirs_ = b_->Create("f", O_RDWR | O_EXCL, shared_);
    b_->Write(theirs_, 0, data_);
    Contend();
    mine_ = a_->OpenName("f", O_RDWR, shared_);
  }

  // From then on nobody has a lease of the directory for some seconds.
  void Contend() {
    for (int i = 0; i < 2; ++i) {
      (void)a_->Create("a" + std::to_string(made_), O_RDWR, shared_);
      (void)b_->Create("b" + std::to_string(made_++), O_RDWR, shared_);
    }
  }
  // How many requests a part takes that is read last.
  int Reads() {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(a_->Read(mine_, 0, 4096), data_.substr(0, 4096));
    const int before = a_->total();
    EXPECT_EQ(a_->Read(mine_, 0, 2 * kMiB), data_);
    return a_->total() - before;
  }
  bool Leased() {
    std::lock_guard lock(mine_->inode->mutex);
    return mine_->inode->ContentLeased();
  }

  Harness harness_;
  std::unique_ptr<Mounted> a_, b_;
  Fid shared_;
  int made_ = 0;
  std::string data_ = Pattern(1, kMiB);
  HandlePtr theirs_, mine_;
};

TEST_F(LeasedReads, TheMdsIsAskedOnce) {
  EXPECT_EQ(Reads(), 0);
  EXPECT_TRUE(Leased());
  EXPECT_GT(a_->fs().Look().cached_bytes, 0u);
}

TEST_F(LeasedReads, WhoReadsOnceTakesNoLease) {
  EXPECT_EQ(a_->Read(mine_, 0, 2 * kMiB), data_);
  EXPECT_EQ(a_->requests["acquire_lease"], 0);
}

TEST_F(LeasedReads, TheOthersWritesAreSeen) {
  (void)Reads();
  b_->Write(theirs_, 5000, "theirs");
  data_.replace(5000, 6, "theirs");
  EXPECT_EQ(a_->Read(mine_, 0, 2 * kMiB), data_);
  EXPECT_FALSE(Leased());
  Contend();
  b_->Write(theirs_, data_.size(), "more");
  data_ += "more";
  EXPECT_EQ(a_->Read(mine_, 0, 2 * kMiB), data_);
}

TEST_F(LeasedReads, TheOthersTruncationsAreSeen) {
  (void)Reads();
  b_->Truncate(theirs_, 5000);
  EXPECT_EQ(a_->Read(mine_, 0, 2 * kMiB), data_.substr(0, 5000));
  b_->Truncate(theirs_, kMiB);
  EXPECT_EQ(a_->Read(mine_, 0, 2 * kMiB), data_.substr(0, 5000) + std::string(kMiB - 5000, '\0'));
}

TEST_F(LeasedReads, OnesOwnWritesAreSeen) {
  (void)Reads();
  a_->Write(mine_, 5000, "mine");
  data_.replace(5000, 4, "mine");
  EXPECT_EQ(a_->Read(mine_, 0, 2 * kMiB), data_);
  a_->Truncate(mine_, 6000);
  EXPECT_EQ(a_->Read(mine_, 0, 2 * kMiB), data_.substr(0, 6000));
}

// The OSTs lose power before what the other has written was synced: nobody else finds it there any more.
TEST_F(LeasedReads, WhatAnOstHasLostIsNotReadFromTheCache) {
  ASSERT_TRUE(b_->Fsync(theirs_).ok());
  harness_.world.RunFor(3s);
  Contend();
  b_->Write(theirs_, 0, std::string(kMiB, 'x'));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(a_->Read(mine_, 0, 2 * kMiB).substr(0, 4), "xxxx");
  ASSERT_TRUE(Leased());
  for (int oss : {0, 1}) harness_.cluster.Crash(harness_.cluster.oss(oss), sim::Loss::kPower);
  for (int oss : {0, 1}) harness_.cluster.Boot(harness_.cluster.oss(oss));
  harness_.world.RunFor(10s);
  auto fresh = harness_.Mount();
  HandlePtr again = fresh->OpenName("f", O_RDONLY, shared_);
  EXPECT_EQ(a_->Read(mine_, 0, 2 * kMiB), fresh->Read(again, 0, 2 * kMiB));
}

TEST_F(LeasedReads, AFileThatIsChangedIsNotLeasedAgainAtOnce) {
  (void)Reads();
  b_->Write(theirs_, 0, "x");
  data_[0] = 'x';
  EXPECT_GT(Reads(), 0);
  for (int i = 0; i < 8; ++i) {
    Contend();
    harness_.world.RunFor(1s);
  }
  Contend();
  EXPECT_EQ(Reads(), 0);
}

}  // namespace
}  // namespace nacre::client
