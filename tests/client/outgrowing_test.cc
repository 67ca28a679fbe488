// Files that outgrow the MDT: who writes does not wait until the MDS has given them objects.
#include <sys/stat.h>

#include "client/inode.h"
#include "common/metrics.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

constexpr size_t kPiece = 10'240;  // as tar writes
constexpr int kPieces = 9;

class Outgrown : public testing::Test {
 protected:
  Outgrown() : a_(harness_.Mount()), b_(harness_.Mount()), own_(a_->Mkdir("own")) {
    EXPECT_TRUE(harness_.RunUntil([&] { return a_->Behind() == 0; }));
  }
  ~Outgrown() override { EXPECT_EQ(GetCounter("client.refused_behind").Get(), refused_before_); }

  HandlePtr Make(const std::string& name) {
    (void)a_->Lookup(name, own_);  // as a kernel does
    return a_->Create(name, O_RDWR | O_EXCL, own_);
  }
  static std::string Bytes(uint64_t seed) { return Pattern(seed, kPiece * kPieces); }
  void Fill(const HandlePtr& file, uint64_t seed) {
    const std::string bytes = Bytes(seed);
    for (size_t at = 0; at < bytes.size(); at += kPiece)
      a_->Write(file, at, std::string_view(bytes).substr(at, kPiece));
  }
  // Files on all OSTs, each of which has granted space then.
  void Warm() {
    for (int i = 0; i < 16; ++i) {
      HandlePtr file = Make("warm" + std::to_string(i));
      Fill(file, 1);
      EXPECT_TRUE(a_->Close(file).ok());
    }
    EXPECT_TRUE(harness_.RunUntil([&] { return a_->Behind() == 0 && a_->fs().Look().dirty_bytes == 0; }));
  }
  std::string AtB(const std::string& name) {
    if (!b_->Lookup(name, own_).ok()) return "no such file";
    HandlePtr file = b_->OpenName(name, O_RDONLY, own_);
    std::string bytes = b_->Read(file, 0, 1'000'000);
    EXPECT_TRUE(b_->Close(file).ok());
    return bytes;
  }

  const int64_t refused_before_ = GetCounter("client.refused_behind").Get();
  Harness harness_;
  std::unique_ptr<Mounted> a_, b_;
  Fid own_;
};

TEST_F(Outgrown, NobodyWaitsForTheMds) {
  Warm();
  std::vector<HandlePtr> files;
  EXPECT_TRUE(harness_.AtOnce([&] {
    for (uint64_t i = 0; i < 5; ++i) {
      files.push_back(Make("f" + std::to_string(i)));
      Fill(files.back(), i);
    }
  }));
  for (uint64_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(harness_.AtOnce([&] { EXPECT_EQ(a_->Read(files[i], 0, 1'000'000), Bytes(i)); }));
    EXPECT_EQ(a_->Stat(files[i]->inode->fid).size(), Bytes(i).size());
    EXPECT_TRUE(a_->Close(files[i]).ok());
  }
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(AtB("f" + std::to_string(i)), Bytes(i));
}

// Operations behind the write are answered as early as if the MDS had done it.
TEST_F(Outgrown, AttributesAreChangedMeanwhile) {
  Warm();
  HandlePtr file;
  SetAttributes set;
  set.mode = 0640;
  EXPECT_TRUE(harness_.AtOnce([&] {
    file = Make("f");
    Fill(file, 3);
    EXPECT_TRUE(a_->Await(a_->fs().Setattr(a_->caller, file->inode->fid, set, nullptr)).ok());
    EXPECT_TRUE(a_->Close(file).ok());
  }));
  EXPECT_EQ(AtB("f"), Bytes(3));
  const proto::Attr attr = b_->Stat(file->inode->fid);
  EXPECT_EQ(attr.mode() & 07777u, 0640u);
  EXPECT_EQ(attr.size(), Bytes(3).size());
}

TEST_F(Outgrown, WithoutSpaceThatIsGrantedTheWriterWaits) {
  HandlePtr file;
  EXPECT_FALSE(harness_.AtOnce([&] {
    file = Make("f");
    Fill(file, 4);
  }));
  EXPECT_EQ(a_->Read(file, 0, 1'000'000), Bytes(4));
  EXPECT_TRUE(a_->Close(file).ok());
  EXPECT_EQ(AtB("f"), Bytes(4));
}

// More than is kept so of one file, and of all of them together.
TEST_F(Outgrown, MuchIsNotKept) {
  Warm();
  HandlePtr large = Make("large");
  const std::string bytes = Pattern(5, 2 << 20);
  for (size_t at = 0; at < bytes.size(); at += kPiece)
    a_->Write(large, at, std::string_view(bytes).substr(at, kPiece));
  EXPECT_EQ(a_->Read(large, 0, bytes.size() + 1), bytes);
  std::vector<HandlePtr> files;
  EXPECT_FALSE(harness_.AtOnce([&] {
    for (uint64_t i = 0; i < 200; ++i) {
      files.push_back(Make("f" + std::to_string(i)));
      Fill(files.back(), i);
    }
  }));
  for (const HandlePtr& file : files) EXPECT_TRUE(a_->Close(file).ok());
  EXPECT_TRUE(a_->Close(large).ok());
  EXPECT_EQ(AtB("large"), bytes.substr(0, 1'000'000));
  for (uint64_t i = 0; i < 200; i += 37) EXPECT_EQ(AtB("f" + std::to_string(i)), Bytes(i));
}

TEST_F(Outgrown, FsyncBringsAllOfItToTheServers) {
  Warm();
  HandlePtr file = Make("f");
  Fill(file, 6);
  ASSERT_TRUE(a_->Fsync(file).ok());
  a_->Kill();
  EXPECT_EQ(AtB("f"), Bytes(6));
}

TEST_F(Outgrown, IsCutMeanwhile) {
  Warm();
  HandlePtr file = Make("f");
  Fill(file, 7);
  a_->Truncate(file, 20'000);
  EXPECT_EQ(a_->Read(file, 0, 1'000'000), Bytes(7).substr(0, 20'000));
  HandlePtr other = Make("g");
  Fill(other, 8);
  a_->Truncate(other, 0);
  a_->Write(other, 0, "new");
  EXPECT_EQ(AtB("f"), Bytes(7).substr(0, 20'000));
  EXPECT_EQ(AtB("g"), "new");
}

TEST_F(Outgrown, IsRenamedOverAnotherMeanwhile) {
  Warm();
  HandlePtr file = Make("f");
  Fill(file, 9);
  EXPECT_TRUE(a_->Close(file).ok());
  EXPECT_TRUE(a_->Await(a_->fs().Rename(a_->caller, own_, "f", own_, "warm1", 0)).ok());
  EXPECT_EQ(AtB("warm1"), Bytes(9));
  file = Make("g");
  Fill(file, 10);
  EXPECT_TRUE(a_->Close(file).ok());
  EXPECT_TRUE(a_->Await(a_->fs().Rename(a_->caller, own_, "warm1", own_, "g", 0)).ok());
  EXPECT_EQ(AtB("g"), Bytes(9));
}

TEST_F(Outgrown, IsRemovedMeanwhile) {
  Warm();
  HandlePtr file = Make("f");
  Fill(file, 11);
  EXPECT_TRUE(a_->Close(file).ok());
  EXPECT_TRUE(a_->Await(a_->fs().Unlink(a_->caller, own_, "f")).ok());
  EXPECT_TRUE(harness_.RunUntil([&] { return a_->Behind() == 0 && a_->fs().Look().dirty_bytes == 0; }));
  EXPECT_EQ(AtB("f"), "no such file");
}

// The space on the OSTs that the file does not get is there for others again.
TEST_F(Outgrown, SpaceIsSetAsideUntilThen) {
  Warm();
  for (int round = 0; round < 30; ++round) {
    HandlePtr file = Make("f" + std::to_string(round));
    EXPECT_TRUE(harness_.AtOnce([&] { Fill(file, 12); })) << round;
    EXPECT_TRUE(a_->Close(file).ok());
    EXPECT_TRUE(harness_.RunUntil([&] { return a_->Behind() == 0 && a_->fs().Look().dirty_bytes == 0; }));
  }
}

// The client is evicted before the MDS has heard of it: what was answered is lost, and the next call says so.
TEST_F(Outgrown, WhatIsLostIsSaid) {
  Warm();
  const int node = a_->process()->node();
  HandlePtr file = Make("f");
  EXPECT_TRUE(harness_.RunUntil([&] { return a_->Behind() == 0; }));
  Fill(file, 13);
  for (int other = 0; other < harness_.cluster.nodes(); ++other) {
    harness_.network.Cut(node, other);
    harness_.network.Cut(other, node);
  }
  EXPECT_EQ(AtB("warm0"), Bytes(1));  // once a_ is evicted
  harness_.network.Heal();
  EXPECT_FALSE(a_->Fsync(file).ok());
  EXPECT_NE(AtB("f"), Bytes(13));
}

}  // namespace
}  // namespace nacre::client
