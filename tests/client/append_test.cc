// Appends of several mounts to one file, and what others see of those that do not come to their end
// (docs/decisions/0060-appends.md, 0085-stored-appends.md).
#include "client/inode.h"
#include "common/cancellation.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

constexpr size_t kLogSize = 100'000;

class Append : public testing::Test {
 protected:
  Append() {
    file = mine->Create("log");
    mine->Write(file, 0, first);  // has objects
    own = mine->OpenName("log", O_WRONLY | O_APPEND);
    other = theirs->OpenName("log", O_RDWR | O_APPEND);
  }

  // Begins to append in this mount.
  std::shared_ptr<std::optional<StatusOr<size_t>>> Begin(
      const std::string& data, std::shared_ptr<Cancellation> cancellation = nullptr) {
    auto written = std::make_shared<std::optional<StatusOr<size_t>>>();
    piece = std::as_bytes(std::span(data));
    Spawn(
        mine->process()->executor(), mine->fs().Write(own, 0, std::span(&piece, 1)),
        [written](StatusOr<size_t> result) { *written = std::move(result); }, cancellation);
    return written;
  }
  void CrashOsses() {
    for (int oss : {0, 1}) harness.cluster.Crash(harness.cluster.oss(oss), sim::Loss::kProcess);
  }
  void BootOsses() {
    for (int oss : {0, 1}) harness.cluster.Boot(harness.cluster.oss(oss));
  }
  bool Asked() { return mine->requests["append"] > 0; }

  Harness harness;
  std::unique_ptr<Mounted> mine = harness.Mount(), theirs = harness.Mount();
  const std::string first = Pattern(1, kLogSize), second = Pattern(2, 5000), third = Pattern(3, 7000);
  std::span<const std::byte> piece;
  HandlePtr file, own, other;
};

// The MDS has the bytes; whoever reads waits for the OSTs.
TEST_F(Append, IsThereWhenItIsAnswered) {
  const Fid fid = own->inode->fid;
  CrashOsses();
  auto written = Begin(second);
  harness.world.RunFor(std::chrono::seconds(1));
  ASSERT_TRUE(written->has_value());
  ASSERT_TRUE((*written)->ok()) << (*written)->status();
  EXPECT_EQ(***written, second.size());
  EXPECT_EQ(theirs->Stat(fid).size(), kLogSize + second.size());
  BootOsses();
  EXPECT_TRUE(theirs->Read(other, 0, kLogSize + 10'000) == first + second);
  theirs->Write(other, 0, third);
  EXPECT_TRUE(theirs->Read(other, 0, kLogSize + 20'000) == first + second + third);
}

// By turns, so that nobody has a lease of the file.
TEST_F(Append, TakesOneRequest) {
  const auto asked = [](Mounted& mount) { return mount.total() - mount.requests["release_lease"]; };
  std::string all = first;
  const auto append = [&] {
    mine->Write(own, 0, second);
    theirs->Write(other, 0, third);
    all += second + third;
  };
  append();
  const int before = asked(*mine) + asked(*theirs);
  for (int i = 0; i < 10; ++i) append();
  EXPECT_EQ(asked(*mine) + asked(*theirs) - before, 20);
  EXPECT_TRUE(theirs->Read(other, 0, all.size() + 1) == all);
}

// A process that appends and also writes elsewhere in the file finds both: the append gives the file's layout
// another generation than the one by which the write is told.
TEST_F(Append, DoesNotTakeWritesOfItsOwnClient) {
  std::string all = first;
  for (int i = 0; i < 20; ++i) {
    const std::string part = Pattern(100 + i, 3000);
    mine->Write(file, 4096 * i, part);
    all.replace(4096 * i, part.size(), part);
    if (i % 3 == 0) {
      mine->Write(own, 0, second);
      all += second;
    }
    if (i % 4 == 0) {
      theirs->Write(other, 0, third);
      all += third;
    }
  }
  EXPECT_TRUE(mine->Read(file, 0, all.size() + 1) == all);
  EXPECT_TRUE(theirs->Read(other, 0, all.size() + 1) == all);
}

TEST_F(Append, IsThereThoughItsClientIsKilled) {
  mine->before_reply = [&](const proto::MetadataRequest& request) -> Task<Status> {
    if (request.has_append()) co_await harness.world.clock().Sleep(std::chrono::hours(1));
    co_return OkStatus();
  };
  (void)Begin(second);
  ASSERT_TRUE(harness.RunUntil([&] { return theirs->Stat(other->inode->fid).size() > kLogSize; }));
  mine->Kill();
  theirs->Write(other, 0, third);
  harness.world.RunFor(2 * harness.options.metadata.session_timeout);  // it has been evicted
  EXPECT_TRUE(theirs->Read(other, 0, kLogSize + 20'000) == first + second + third);
}

// As long as the room has not been given out, nothing is left of it.
TEST_F(Append, LeavesNothingWhenTheMdsWasNotReached) {
  harness.network.Cut(mine->process()->node(), harness.cluster.mds());
  auto written = Begin(second);
  harness.world.RunFor(std::chrono::seconds(1));
  EXPECT_FALSE(written->has_value());
  mine->Kill();
  theirs->Write(other, 0, third);
  harness.world.RunFor(2 * harness.options.metadata.session_timeout);
  EXPECT_TRUE(theirs->Read(other, 0, kLogSize + 20'000) == first + third);
}

// While its OSTs are down the MDS says where it goes, and the client writes it. A process that is killed
// meanwhile leaves no room behind that is never written.
TEST_F(Append, OfAKilledProcessIsCarriedOutOnceItHasItsRoom) {
  CrashOsses();
  harness.world.RunFor(std::chrono::seconds(20));  // the MDS knows
  auto cancellation = std::make_shared<Cancellation>();
  auto written = Begin(second, cancellation);
  ASSERT_TRUE(harness.RunUntil([&] { return Asked(); }));
  harness.world.RunFor(std::chrono::seconds(1));
  EXPECT_FALSE(written->has_value());
  cancellation->Cancel(ErrnoError(EINTR, "killed"));
  harness.world.RunFor(std::chrono::seconds(1));
  EXPECT_FALSE(written->has_value());
  BootOsses();
  ASSERT_TRUE(harness.RunUntil([&] { return written->has_value(); }));
  EXPECT_TRUE(theirs->Read(other, 0, kLogSize + 20'000) == first + second);
}

// A small file's append is one change at the MDS.
TEST_F(Append, ToASmallFileIsThereOrNot) {
  HandlePtr small = mine->Create("small", O_WRONLY | O_APPEND);
  HandlePtr reader = theirs->OpenName("small", O_RDWR | O_APPEND);
  mine->before_reply = [&](const proto::MetadataRequest& request) -> Task<Status> {
    if (request.has_write_inline()) co_await harness.world.clock().Sleep(std::chrono::hours(1));
    co_return OkStatus();
  };
  own = small;
  (void)Begin(second);
  ASSERT_TRUE(harness.RunUntil([&] { return theirs->Stat(small->inode->fid).size() > 0; }));
  mine->Kill();
  theirs->Write(reader, 0, third);
  EXPECT_TRUE(theirs->Read(reader, 0, kLogSize) == second + third);
}

}  // namespace
}  // namespace nacre::client
