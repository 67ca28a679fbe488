// Several clients that write to one file: each writes to the objects, and the MDS hears of it later; whoever
// looks at the file sees all of it.
#include <fcntl.h>

#include "client/inode.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

using namespace std::chrono_literals;

class SharedFiles : public testing::Test {
 protected:
  static constexpr uint64_t kPart = 300'000;

  SharedFiles() {
    for (int i = 0; i < 3; ++i) mounts_.push_back(harness_.Mount());
    (void)mount(0).Close(mount(0).Create("shared"));
    for (const auto& one : mounts_) files_.push_back(one->OpenName("shared"));
    harness_.world.RunFor(12s);  // whoever was asked something back may have it again
    for (int round = 0; round < 3; ++round)
      for (int i = 0; i < 2; ++i) Write(i, round);
    EXPECT_TRUE(Shares(0));
    EXPECT_TRUE(Shares(1));
  }

  Mounted& mount(int i) { return *mounts_.at(i); }
  const HandlePtr& file(int i) { return files_.at(i); }
  bool Shares(int i) {
    std::lock_guard lock(file(i)->inode->mutex);
    return file(i)->inode->IsShared();
  }
  // Each has every third part of the file.
  static uint64_t Place(int i, int round) { return (3 * round + i) * kPart; }
  void Write(int i, int round) { mount(i).Write(file(i), Place(i, round), Pattern(Place(i, round), kPart)); }
  static int Foreground(const Mounted& by) {
    int count = 0;
    for (const auto& [kind, sent] : by.requests) {
      if (kind != "batch" && kind != "keep_alive" && kind != "release_lease") count += sent;
    }
    return count;
  }
  uint64_t SizeAt(int i) { return mount(i).Stat(file(i)->inode->fid).size(); }

  Harness harness_;
  std::vector<std::unique_ptr<Mounted>> mounts_;
  std::vector<HandlePtr> files_;
};

TEST_F(SharedFiles, AreWrittenWithoutTheMds) {
  const int before[] = {Foreground(mount(0)), Foreground(mount(1))};
  for (int round = 3; round < 10; ++round)
    for (int i = 0; i < 2; ++i) Write(i, round);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Foreground(mount(i)), before[i]) << i;
}

TEST_F(SharedFiles, AreReadWithoutTheMdsByWhoWritesThem) {
  Write(0, 5);
  const int before = Foreground(mount(0));
  EXPECT_EQ(mount(0).Read(file(0), Place(1, 2), kPart), Pattern(Place(1, 2), kPart)) << "of another client";
  EXPECT_EQ(mount(0).Read(file(0), Place(2, 0), kPart), std::string(kPart, 0)) << "a hole";
  EXPECT_EQ(Foreground(mount(0)), before);
  EXPECT_TRUE(Shares(0));
  EXPECT_TRUE(Shares(1));
}

TEST_F(SharedFiles, AreSeenAsLongAsTheyAreByWhoLooks) {
  Write(0, 7);
  Write(1, 9);
  EXPECT_EQ(SizeAt(2), Place(1, 9) + kPart);
  EXPECT_EQ(mount(2).Read(file(2), Place(0, 7), kPart), Pattern(Place(0, 7), kPart));
  EXPECT_FALSE(Shares(0));
  Write(0, 11);
  EXPECT_EQ(SizeAt(2), Place(0, 11) + kPart) << "the MDS is told of each write again";
}

TEST_F(SharedFiles, AreSeenAsLongAsTheyAreByTheOtherWriters) {
  Write(0, 7);
  Write(1, 9);
  EXPECT_EQ(SizeAt(0), Place(1, 9) + kPart);
  EXPECT_FALSE(Shares(1));
}

TEST_F(SharedFiles, HaveTheTimeOfTheLastWrite) {
  Write(1, 9);
  harness_.world.RunFor(100ms);
  const WallTime last = harness_.world.clock().Wall();
  Write(0, 3);
  EXPECT_GE(FromProto(mount(2).Stat(file(2)->inode->fid).mtime()), last);
}

// The first write of one who joins looks at the file, which ends the sharing for as long as after any look.
TEST_F(SharedFiles, AreSharedByAllWhenAnotherWriterHasJoined) {
  Write(2, 0);
  EXPECT_FALSE(Shares(0));
  harness_.world.RunFor(12s);
  for (int round = 1; round < 4; ++round)
    for (int i = 0; i < 3; ++i) Write(i, round);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Shares(i)) << i;
}

TEST_F(SharedFiles, AreAppendedToAtTheirEnd) {
  Write(0, 7);
  Write(1, 9);
  HandlePtr end = mount(0).OpenName("shared", O_WRONLY | O_APPEND);
  mount(0).Write(end, 0, "the end");
  EXPECT_EQ(SizeAt(2), Place(1, 9) + kPart + 7);
  EXPECT_EQ(mount(2).Read(file(2), Place(1, 9) + kPart, 100), "the end");
}

TEST_F(SharedFiles, AreTruncatedByAnybody) {
  Write(0, 7);
  Write(1, 9);
  mount(2).Truncate(file(2), 1000);
  EXPECT_EQ(SizeAt(0), 1000u);
  Write(1, 0);
  EXPECT_EQ(SizeAt(0), Place(1, 0) + kPart);
}

TEST_F(SharedFiles, AreTruncatedByOneOfTheWriters) {
  Write(0, 7);
  Write(1, 9);
  mount(0).Truncate(file(0), 1000);
  EXPECT_EQ(SizeAt(0), 1000u);
  EXPECT_EQ(SizeAt(1), 1000u);
}

TEST_F(SharedFiles, AreToldOfWhenTheyAreClosed) {
  Write(0, 7);
  EXPECT_TRUE(mount(0).Close(file(0)).ok());
  harness_.world.RunFor(1s);
  const int revoked = mount(0).requests["release_lease"];
  EXPECT_EQ(SizeAt(2), Place(0, 7) + kPart);
  EXPECT_EQ(mount(0).requests["release_lease"], revoked) << "it was back already";
}

TEST_F(SharedFiles, AreToldOfByFsync) {
  Write(0, 7);
  EXPECT_TRUE(mount(0).Fsync(file(0)).ok());
  mount(0).Kill();
  EXPECT_EQ(SizeAt(2), Place(0, 7) + kPart);
}

// The objects say how long they are.
TEST_F(SharedFiles, AreAsLongAsTheyWereWrittenByAClientThatIsKilled) {
  Write(0, 7);
  mount(0).Kill();
  EXPECT_EQ(SizeAt(2), Place(0, 7) + kPart);
  EXPECT_EQ(mount(2).Read(file(2), Place(0, 7), kPart), Pattern(Place(0, 7), kPart));
}

TEST_F(SharedFiles, OutliveARestartOfTheMds) {
  Write(0, 7);
  harness_.cluster.Crash(harness_.cluster.mds(), sim::Loss::kProcess);
  harness_.cluster.Boot(harness_.cluster.mds());
  Write(1, 9);
  EXPECT_EQ(SizeAt(2), Place(1, 9) + kPart);
  EXPECT_EQ(mount(2).Read(file(2), Place(0, 7), kPart), Pattern(Place(0, 7), kPart));
}

}  // namespace
}  // namespace nacre::client
