// Appends of several mounts to one file, and what others see of those that do not come to their end
// (docs/decisions/0060-appends.md).
#include <linux/falloc.h>

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

// The room is given out before the bytes are there: zeros for as long as the write takes, then the bytes.
TEST_F(Append, ReadsZerosWhileItIsUnderWay) {
  const Fid fid = own->inode->fid;
  CrashOsses();
  auto written = Begin(second);
  harness.world.RunFor(std::chrono::seconds(1));
  EXPECT_FALSE(written->has_value());
  EXPECT_EQ(theirs->Stat(fid).size(), kLogSize + second.size());
  BootOsses();
  EXPECT_EQ(theirs->Read(other, 0, kLogSize + 10'000).size(), kLogSize + second.size());
  ASSERT_TRUE(harness.RunUntil([&] { return written->has_value(); }));
  ASSERT_TRUE((*written)->ok()) << (*written)->status();
  EXPECT_EQ(***written, second.size());
  theirs->Write(other, 0, third);
  EXPECT_TRUE(theirs->Read(other, 0, kLogSize + 20'000) == first + second + third);
}

// The room of one who is killed meanwhile stays, as zeros; nobody else's bytes are touched.
TEST_F(Append, LeavesZerosWhenItsClientIsKilled) {
  mine->before_reply = [&](const proto::MetadataRequest& request) -> Task<Status> {
    if (request.has_append()) co_await harness.world.clock().Sleep(std::chrono::hours(1));
    co_return OkStatus();
  };
  (void)Begin(second);
  ASSERT_TRUE(harness.RunUntil([&] { return theirs->Stat(other->inode->fid).size() > kLogSize; }));
  mine->Kill();
  theirs->Write(other, 0, third);
  harness.world.RunFor(2 * harness.options.metadata.session_timeout);  // it has been evicted
  const std::string zeros(second.size(), '\0');
  EXPECT_TRUE(theirs->Read(other, 0, kLogSize + 20'000) == first + zeros + third);
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

// A process that is killed while its append waits for another operation on these bytes.
TEST_F(Append, OfAKilledProcessIsCarriedOutOnceItHasItsRoom) {
  CrashOsses();
  Spawn(mine->process()->executor(),
        mine->fs().Fallocate(file, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, kLogSize, kLogSize),
        [](Status) {});
  harness.world.RunFor(std::chrono::milliseconds(10));  // has the range, and waits for the OSTs
  auto cancellation = std::make_shared<Cancellation>();
  auto written = Begin(second, cancellation);
  ASSERT_TRUE(harness.RunUntil([&] { return Asked(); }));
  harness.world.RunFor(std::chrono::seconds(1));
  cancellation->Cancel(ErrnoError(EINTR, "killed"));
  harness.world.RunFor(std::chrono::seconds(1));
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
