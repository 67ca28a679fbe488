// Sums that are made behind the copies of a call's puts: which count, and that they are those of the bytes.
#include "transport/block_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/crc32c.h"
#include "common/ids.h"
#include "tests/transport/fake_device.h"
#include "tests/transport/transport_fixture.h"
#include "transport/shared_memory.h"

namespace nacre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kMemoryBytes = 256 << 10;

using Runs = std::vector<BlockSums::Run>;

std::vector<size_t> Blocks(const Runs& runs) {
  std::vector<size_t> blocks;
  for (const BlockSums::Run& run : runs) {
    for (size_t i = 0; i < run.count; ++i) blocks.push_back(run.Only(i).block);
  }
  return blocks;
}

TEST(BlockSumsTest, BlocksAreThoseOfTheObject) {
  BlockSums sums;
  sums.Add(1000, 8000);  // 3096, 4096, 808
  sums.Add(0, kBlockSize);
  const Runs runs = sums.Begin(0, 8000 + kBlockSize);
  ASSERT_EQ(Blocks(runs), (std::vector<size_t>{0, 1, 2, 3}));
  ASSERT_EQ(runs.size(), 3u) << "no block follows one that is cut";
  EXPECT_EQ(runs[1].offset, 3096u);
  EXPECT_EQ(runs[1].length, 4096u + 808);
  EXPECT_EQ(runs[1].Only(0).length, 4096u);
  EXPECT_EQ(runs[1].Only(1).offset, 3096u + 4096);
  EXPECT_EQ(runs[1].Only(1).length, 808u);
  EXPECT_EQ(runs[2].offset, 8000u);
}

TEST(BlockSumsTest, ARunEndsWhereABlockDoesNotCount) {
  BlockSums sums;
  sums.Add(0, 5 * kBlockSize);
  (void)sums.Begin(2 * kBlockSize + 1, 1);
  const Runs runs = sums.Begin(0, 5 * kBlockSize);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(Blocks(runs), (std::vector<size_t>{0, 1, 3, 4}));
  sums.End(std::span(runs).last(1), std::vector<uint32_t>{3, 4});
  EXPECT_THAT(sums.Made(), ElementsAre(std::nullopt, std::nullopt, std::nullopt, 3, 4));
}

TEST(BlockSumsTest, OnlyWholeBlocksCount) {
  BlockSums sums;
  sums.Add(0, 4 * kBlockSize);
  const Runs runs = sums.Begin(1, 2 * kBlockSize);
  EXPECT_THAT(Blocks(runs), ElementsAre(1));
  sums.End(runs, std::vector<uint32_t>{11});
  EXPECT_THAT(sums.Made(), ElementsAre(std::nullopt, 11, std::nullopt, std::nullopt));
  EXPECT_THAT(Blocks(sums.Begin(3 * kBlockSize, 0)), IsEmpty());
}

TEST(BlockSumsTest, OfTwoPutsIntoABlockNeitherCounts) {
  BlockSums sums;
  sums.Add(0, 3 * kBlockSize);
  const Runs first = sums.Begin(0, 2 * kBlockSize);
  EXPECT_THAT(Blocks(sums.Begin(kBlockSize + 5, 10)), IsEmpty());  // before the first is summed up
  sums.End(first, std::vector<uint32_t>{1, 2});
  EXPECT_THAT(sums.Made(), ElementsAre(1, std::nullopt, std::nullopt));
  EXPECT_THAT(Blocks(sums.Begin(0, kBlockSize)), IsEmpty());  // and behind it
  EXPECT_THAT(sums.Made(), ElementsAre(std::nullopt, std::nullopt, std::nullopt));
}

TEST(BlockSumsTest, AnotherAttemptKnowsNothingOfTheOneBefore) {
  BlockSums sums;
  sums.Add(0, kBlockSize);
  sums.End(sums.Begin(0, kBlockSize), std::vector<uint32_t>{7});
  sums.Reset();
  EXPECT_THAT(sums.Made(), ElementsAre(std::nullopt));
  EXPECT_THAT(Blocks(sums.Begin(0, kBlockSize)), ElementsAre(0));
}

// Over each kind of transport, into memory that the CPU must not touch.
class ArrivingSumsTest : public TransportTest {
 protected:
  void SetUp() override {
    TransportTest::SetUp();
    auto shared = SharedMemory::Create("nacre-sums-test", kMemoryBytes);
    ASSERT_TRUE(shared.ok()) << shared.status();
    source_ = std::span((*shared)->data(), kMemoryBytes);
    const std::vector<std::byte> bytes = RandomBytes(kMemoryBytes, 3);
    std::copy(bytes.begin(), bytes.end(), source_.begin());
    source_region_ = server().RegisterShared(*shared).value();
    auto region = client().RegisterDevice(device_, device_->data(), kMemoryBytes);
    if (ToErrno(region.status()) == EOPNOTSUPP) GTEST_SKIP() << region.status();
    region_ = region.value();
  }

  // Puts the call's memory in `parts` parts, the last first.
  Handler PutParts(size_t parts) {
    return [this, parts](CallPtr call) -> Task<void> { return PutPartsOf(source_, parts, std::move(call)); };
  }
  static Task<void> PutPartsOf(std::span<const std::byte> source, size_t parts, CallPtr call) {
    const size_t each = call->memory_size() / parts;
    for (size_t i = parts; i-- > 0;) {
      const size_t end = i + 1 == parts ? call->memory_size() : (i + 1) * each;
      std::vector<std::span<const std::byte>> bytes = {source.subspan(i * each, end - i * each)};
      (void)co_await call->Put(i * each, bytes);
    }
    std::string reply = "done";
    (void)co_await call->Reply(std::move(reply));
  }

  // Reads so many bytes of an object into two pieces of the device's memory.
  std::vector<std::optional<uint32_t>> Read(Peer& peer, uint64_t object_offset, size_t size, size_t head) {
    auto sums = std::make_shared<BlockSums>();
    sums->Add(object_offset, size);
    CallRequest request;
    request.kind = CallMemory::kPutTarget;
    request.memory = {{region_, 0, head}, {region_, head + 100, size - head}};
    request.sums = sums;
    auto reply = Run(peer.Call(std::move(request), 20s));
    EXPECT_TRUE(reply.ok()) << reply.status();
    return sums->Made();
  }

  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>(kMemoryBytes + 4096);
  std::span<std::byte> source_;
  std::shared_ptr<MemoryRegion> source_region_, region_;
};

TEST_P(ArrivingSumsTest, AreThoseOfTheBytesThatArrived) {
  const bool has_them_made = GetParam().copies && !std::string_view(GetParam().name).starts_with("Inproc");
  Listen(PutParts(3));
  auto peer = Connect();
  size_t made = 0;
  for (const size_t size : {100, 4096, 50'000, 200'000}) {
    for (const uint64_t offset : {0, 1, 4095}) {
      const size_t head = size / 2;
      const auto sums = Read(*peer, offset, size, head);
      std::vector<uint32_t> expected(CrcCount(offset, size));
      Crc32cBlocks(offset, source_.first(size), expected.data());
      ASSERT_EQ(sums.size(), expected.size());
      size_t blank = 0;
      for (size_t i = 0; i < sums.size(); ++i) {
        EXPECT_EQ(sums[i].value_or(expected[i]), expected[i]) << size << " at " << offset;
        blank += sums[i].has_value() ? 0 : 1;
      }
      made += sums.size() - blank;
      // Where parts meet, and slots of the fake's staging, which are 10,000 bytes long.
      const size_t cuts = 2 + 1 + 1 + size / 10'000;
      EXPECT_LE(blank, has_them_made ? cuts : sums.size()) << size << " at " << offset;
    }
  }
  EXPECT_EQ(made > 0, has_them_made);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ArrivingSumsTest, ::testing::ValuesIn(AllKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre
