// O_DIRECT writes (docs/decisions/0040-direct-writes.md): behind the writer, but not by much.
#include <fcntl.h>

#include "client/inode.h"
#include "common/metrics.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr size_t kBlock = 4096;

class Direct : public testing::Test {
 protected:
  // A file that has objects.
  Fid Prepare(Mounted& client, const std::string& data, const std::string& name = "f") {
    HandlePtr file = client.Create(name);
    client.Write(file, 0, data);
    EXPECT_TRUE(client.Fsync(file).ok());
    EXPECT_TRUE(client.Close(file).ok());
    return file->inode->fid;
  }

  // How long a write takes while all OSSes are down for 5 s.
  Duration WriteTime(Mounted& client, const HandlePtr& file) {
    for (int i = 0; i < 2; ++i) harness_.cluster.Crash(harness_.cluster.oss(i), sim::Loss::kProcess);
    harness_.world.clock().At(5s, [this] {
      for (int i = 0; i < 2; ++i) harness_.cluster.Boot(harness_.cluster.oss(i));
    });
    const Duration begin = harness_.world.clock().Now();
    client.Write(file, 3 * kBlock, Pattern(5, kBlock));
    const Duration taken = harness_.world.clock().Now() - begin;
    harness_.world.RunFor(20s);
    return taken;
  }

  bool Clean(Mounted& client) { return client.fs().Look().dirty_bytes == 0; }

  Harness harness_;
};

TEST_F(Direct, ReturnWhenTheyAreOnTheirWay) {
  auto client = harness_.Mount();
  HandlePtr file = client->Open(Prepare(*client, Pattern(1, kMiB)), O_RDWR | O_DIRECT);
  client->Write(file, 0, "space is reserved now");
  EXPECT_LT(WriteTime(*client, file), 100ms);
  EXPECT_TRUE(Clean(*client)) << "sent when the servers were back";
}

TEST_F(Direct, WaitWhereItIsAskedFor) {
  auto client = harness_.Mount();
  HandlePtr file = client->Open(Prepare(*client, Pattern(1, kMiB)), O_RDWR | O_DIRECT | O_DSYNC);
  EXPECT_GT(WriteTime(*client, file), 4s);
}

TEST_F(Direct, WaitWhereTheAdministratorWantsIt) {
  Options options;
  options.direct_behind = false;
  auto client = harness_.Mount(options);
  HandlePtr file = client->Open(Prepare(*client, Pattern(1, kMiB)), O_RDWR | O_DIRECT);
  EXPECT_GT(WriteTime(*client, file), 4s);
}

TEST_F(Direct, AreSentAtOnceAndNotKept) {
  std::string data = Pattern(1, 3 * kMiB);
  auto client = harness_.Mount();
  Fid fid = Prepare(*client, data);
  client->Kill();
  client = harness_.Mount();
  HandlePtr file = client->Open(fid, O_RDWR | O_DIRECT);
  for (uint64_t block : {3u, 700u, 701u, 200u, 767u, 90u}) {
    std::string piece = Pattern(block, kBlock);
    client->Write(file, block * kBlock, piece);
    data.replace(block * kBlock, kBlock, piece);
  }
  client->Write(file, data.size(), "end");
  data += "end";
  EXPECT_TRUE(harness_.RunUntil([&] { return Clean(*client); }, 100ms)) << "long before the write-behind";
  EXPECT_EQ(client->fs().Look().cached_bytes, 0u);
  client->Kill();
  client = harness_.Mount();
  file = client->Open(fid);
  EXPECT_EQ(client->Read(file, 0, 4 * kMiB), data);
}

TEST_F(Direct, ManySmallOnesShareRequests) {
  std::string data = Pattern(1, 16 * kMiB);
  auto client = harness_.Mount();
  HandlePtr file = client->Open(Prepare(*client, data), O_RDWR | O_DIRECT);
  static Counter& requests = GetCounter("ost.requests");
  const int64_t before = requests.Get();
  constexpr int kWrites = 400;
  SeededRandom random(1);
  for (int i = 0; i < kWrites; ++i) {
    const uint64_t at = random.Below(data.size() / kBlock) * kBlock;
    std::string piece = Pattern(static_cast<uint64_t>(i), kBlock);
    client->Write(file, at, piece);
    data.replace(at, kBlock, piece);
  }
  ASSERT_TRUE(client->Fsync(file).ok());
  EXPECT_LT(requests.Get() - before, kWrites / 4);
  for (size_t at = 0; at < data.size(); at += kMiB) {
    ASSERT_EQ(client->Read(file, at, kMiB), data.substr(at, kMiB)) << at;
  }
}

// More than the cache may hold dirty while nothing can be sent: the writer waits, and all of it arrives.
TEST_F(Direct, AreBoundedInMemory) {
  Options options;
  options.dirty_bytes = 4 * kMiB;
  auto client = harness_.Mount(options);
  Fid fid = Prepare(*client, Pattern(1, 32 * kMiB));
  HandlePtr file = client->Open(fid, O_RDWR | O_DIRECT);
  client->Write(file, 0, "space is reserved now");
  for (int i = 0; i < 2; ++i) harness_.cluster.Crash(harness_.cluster.oss(i), sim::Loss::kProcess);
  harness_.world.clock().At(5s, [this] {
    for (int i = 0; i < 2; ++i) harness_.cluster.Boot(harness_.cluster.oss(i));
  });
  const Duration begin = harness_.world.clock().Now();
  for (uint64_t i = 0; i < 256; ++i) {
    client->Write(file, i * 32 * kBlock, Pattern(i, kBlock));
    ASSERT_LE(client->fs().Look().dirty_bytes, options.dirty_bytes);
  }
  EXPECT_GT(harness_.world.clock().Now() - begin, 4s);
  ASSERT_TRUE(client->Fsync(file).ok());
  file = client->Open(fid);
  for (uint64_t i = 0; i < 256; ++i) {
    ASSERT_EQ(client->Read(file, i * 32 * kBlock, kBlock), Pattern(i, kBlock)) << i;
  }
}

// One write of much more than the cache may hold dirty makes its room itself, O_DIRECT or not: it does not
// wait for the time at which what is dirty is sent in any case.
TEST_F(Direct, MayBeLongerThanTheCache) {
  Options options;
  options.dirty_bytes = 4 * kMiB;
  for (const int flags : {O_RDWR, O_RDWR | O_DIRECT}) {
    auto client = harness_.Mount(options);
    const std::string data = Pattern(7, 32 * kMiB);
    HandlePtr file = client->Open(Prepare(*client, "", std::to_string(flags)), flags);
    client->Write(file, 0, data.substr(0, kMiB));
    const Duration begin = harness_.world.clock().Now();
    client->Write(file, 0, data);
    EXPECT_LT(harness_.world.clock().Now() - begin, options.write_behind / 2) << flags;
    ASSERT_TRUE(client->Fsync(file).ok());
    EXPECT_EQ(client->Read(file, 0, data.size()), data);
    ASSERT_TRUE(client->Unmount().ok());
  }
}

TEST_F(Direct, TellOfAnErrorAtTheNextCall) {
  Options options;
  options.retry.hard = false;
  options.retry.soft_timeout = 10s;
  auto client = harness_.Mount(options);
  HandlePtr file = client->Open(Prepare(*client, Pattern(1, kMiB)), O_RDWR | O_DIRECT);
  client->Write(file, 0, "space is reserved now");
  harness_.world.RunFor(1s);
  for (int i = 0; i < 2; ++i) harness_.cluster.Crash(harness_.cluster.oss(i), sim::Loss::kProcess);
  client->Write(file, 0, Pattern(2, kBlock));
  harness_.world.RunFor(30s);
  EXPECT_THAT(client->TryWrite(file, 0, "x").status(), HasErrno(EIO));
  for (int i = 0; i < 2; ++i) harness_.cluster.Boot(harness_.cluster.oss(i));
  harness_.world.RunFor(30s);
  client->Write(file, 0, Pattern(3, kBlock));
  EXPECT_TRUE(client->Fsync(file).ok());
  EXPECT_EQ(client->Read(file, 0, kBlock), Pattern(3, kBlock));
}

}  // namespace
}  // namespace nacre::client
