#include "gpu/staging.h"

#include <gmock/gmock.h>

#include <set>

#include "tests/gpu/gpu_fixture.h"

namespace nacre::gpu {
namespace {

class StagingTest : public GpuTest {
 public:
  void SetUp() override {
    auto gpus = Gpus::Open({.library = FakeLibrary(), .staging_bytes = 3 * Staging::kSlotSize});
    ASSERT_TRUE(gpus.ok()) << gpus.status();
    device_ = (*gpus)->devices().front();
  }

  StagingBuffer Stage(size_t size) {
    auto buffer = Run(device_->Stage(size));
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.ok() ? *std::move(buffer) : StagingBuffer{};
  }
  uint64_t allocated() { return (*device_->State())->staging().allocated_bytes(); }
};

TEST_P(StagingTest, GrowsAsNeeded) {
  EXPECT_EQ(allocated(), 0u);
  StagingBuffer first = Stage(5 << 20);
  EXPECT_EQ(first.bytes.size(), Staging::kSlotSize);
  EXPECT_EQ(allocated(), Staging::kSlotSize);
  first = {};
  StagingBuffer again = Stage(Staging::kSlotSize);
  EXPECT_EQ(allocated(), Staging::kSlotSize);
  StagingBuffer second = Stage(100'000);
  EXPECT_EQ(second.bytes.size(), 100'000u);
  EXPECT_EQ(allocated(), 2 * Staging::kSlotSize);
}

TEST_P(StagingTest, SmallOnesShareASlot) {
  std::vector<StagingBuffer> buffers;
  std::set<std::byte*> places;
  for (int i = 0; i < 16; ++i) {
    buffers.push_back(Stage(4096));
    places.insert(buffers.back().bytes.data());
  }
  EXPECT_EQ(allocated(), Staging::kSlotSize);
  EXPECT_EQ(places.size(), 16u);
  buffers.push_back(Stage(4096));
  EXPECT_EQ(allocated(), 2 * Staging::kSlotSize);
  buffers.clear();
  std::vector<StagingBuffer> large;
  for (int i = 0; i < 2; ++i) large.push_back(Stage(Staging::kSlotSize));
  EXPECT_EQ(allocated(), 2 * Staging::kSlotSize);
}

// Slots are pinned one by one: no copy reaches from one into the next, though their addresses may follow each
// other, as those of the driver without a GPU do.
TEST_P(StagingTest, CopiesOutOfSlotsThatFollowEachOther) {
  DeviceBuffer buffer(device_, 3 * Staging::kSlotSize);
  const std::vector<std::byte> bytes = RandomBytes(buffer.size());
  std::vector<StagingBuffer> slots;
  for (int i = 0; i < 3; ++i) slots.push_back(Stage(Staging::kSlotSize));
  std::ranges::sort(slots, {}, [](const StagingBuffer& slot) { return slot.bytes.data(); });
  std::vector<iovec> from;
  for (const StagingBuffer& slot : slots) {
    std::copy_n(bytes.begin() + from.size() * Staging::kSlotSize, Staging::kSlotSize, slot.bytes.begin());
    from.push_back({slot.bytes.data(), slot.bytes.size()});
  }
  Status status = Run(device_->CopyIn(std::vector<iovec>(1, buffer.Piece(0, buffer.size())), from));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(Read(buffer), bytes);
}

TEST(PinnedRanges, SayHowMuchLiesInOne) {
  std::vector<std::byte> memory(100);
  const std::span<const std::byte> all(memory);
  PinnedRanges ranges;
  EXPECT_EQ(ranges.Within(all), 100u);
  ranges.Add(all.subspan(10, 20));
  ranges.Add(all.subspan(30, 5));
  EXPECT_EQ(ranges.Within(all), 10u);
  EXPECT_EQ(ranges.Within(all.subspan(10)), 20u);
  EXPECT_EQ(ranges.Within(all.subspan(29, 1)), 1u);
  EXPECT_EQ(ranges.Within(all.subspan(30)), 5u);
  EXPECT_EQ(ranges.Within(all.subspan(35)), 65u);
}

TEST_P(StagingTest, WaitersAreServedInTheirOrder) {
  std::vector<StagingBuffer> held;
  for (int i = 0; i < 3; ++i) held.push_back(Stage(Staging::kSlotSize));
  struct Log {
    std::mutex mutex;
    std::vector<int> order;
    OneShot<Unit> all;
  } log;
  auto wait = [](Device* device, int number, size_t size, Log* log) -> Task<void> {
    StatusOr<StagingBuffer> buffer = co_await device->Stage(size);
    std::lock_guard lock(log->mutex);
    log->order.push_back(number);
    if (log->order.size() == 4) log->all.Set({});
  };
  // On one thread, so that the order of asking is known.
  asio::io_context context;
  for (int i = 0; i < 4; ++i)
    Spawn(context.get_executor(), wait(device_.get(), i, i % 2 == 0 ? 1 << 20 : 100, &log));
  context.poll();
  EXPECT_TRUE(log.order.empty());
  held.pop_back();
  bool done = false;
  Spawn(context.get_executor(), [](Log* log, bool* done) -> Task<void> {
    co_await log->all.Wait();
    *done = true;
  }(&log, &done));
  context.restart();
  while (!done) context.run_one_for(std::chrono::seconds(5));
  EXPECT_EQ(log.order, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(allocated(), 3 * Staging::kSlotSize);
}

TEST_P(StagingTest, SeveralAtOnceTakeTurns) {
  EXPECT_EQ(ToErrno(Run(device_->StageAll(3 * Staging::kSlotSize + 1)).status()), ENOTSUP);
  std::atomic<size_t> most = 0, in_use = 0;
  auto use = [](Device* device, std::atomic<size_t>* in_use, std::atomic<size_t>* most) -> Task<bool> {
    bool whole = true;
    for (int round = 0; round < 50; ++round) {
      StatusOr<std::vector<StagingBuffer>> buffers = co_await device->StageAll(2 * Staging::kSlotSize + 5);
      size_t total = 0;
      for (const StagingBuffer& buffer : *buffers) {
        total += buffer.bytes.size();
        whole = whole && buffer.slot.size() == Staging::kSlotSize &&
                buffer.bytes.data() >= buffer.slot.data() &&
                buffer.bytes.data() + buffer.bytes.size() <= buffer.slot.data() + buffer.slot.size();
      }
      whole = whole && total == 2 * Staging::kSlotSize + 5;
      *most = std::max<size_t>(*most, ++*in_use);
      co_await Yield();
      --*in_use;
    }
    co_return whole;
  };
  std::vector<Task<bool>> users;
  for (int i = 0; i < 5; ++i) users.push_back(use(device_.get(), &in_use, &most));
  for (bool whole : Run(WhenAll(std::move(users)))) EXPECT_TRUE(whole);
  EXPECT_EQ(most, 1u);
  EXPECT_EQ(allocated(), 3 * Staging::kSlotSize);
}

TEST_P(StagingTest, SeveralThatCannotBeHadAreNotWaitedFor) {
  (void)Stage(Staging::kSlotSize);
  {
    WithKnobs with("pinned=1", "pinned=0");  // no more
    const Status status = Run(device_->StageAll(2 * Staging::kSlotSize)).status();
    EXPECT_EQ(ToErrno(status), ENOTSUP) << status;
    EXPECT_TRUE(Run(device_->StageAll(Staging::kSlotSize)).ok());
  }
  EXPECT_TRUE(Run(device_->StageAll(2 * Staging::kSlotSize)).ok());
}

INSTANTIATE_TEST_SUITE_P(, StagingTest, testing::Values(Driver::kFake), DriverName);

}  // namespace
}  // namespace nacre::gpu
