#include "gpu/stream_order.h"

#include <gmock/gmock.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <future>
#include <thread>

#include "common/crc32c.h"
#include "tests/gpu/gpu_fixture.h"

namespace nacre::gpu {
namespace {

using testing::HasSubstr;

class StreamOrderTest : public GpuTest {
 public:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    context_ = (*device_->State())->context();
    UseContext use(*context_);
    ASSERT_EQ(cuda()->StreamCreate(&stream_, kCudaStreamNonBlocking), kCudaSuccess);
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    UseContext use(*context_);
    cuda()->StreamSynchronize(stream_);
    cuda()->StreamDestroy(stream_);
  }

  const CudaLibrary& cuda() { return context_->cuda(); }

  // In the application's stream.
  void Fill(const DeviceBuffer& buffer, unsigned char value) {
    UseContext use(*context_);
    ASSERT_EQ(
        cuda()->MemsetD8Async(reinterpret_cast<CudaAddress>(buffer.data()), value, buffer.size(), stream_),
        kCudaSuccess);
  }
  void Synchronize() {
    UseContext use(*context_);
    ASSERT_EQ(cuda()->StreamSynchronize(stream_), kCudaSuccess);
  }

  // As an application that makes a graph of its stream.
  CudaResult BeginCapture(CudaStream stream) {
    UseContext use(*context_);
    return Symbol<CudaResult(CudaStream, int)>("cuStreamBeginCapture_v2")(stream, kCudaCaptureGlobal);
  }
  CudaResult EndCapture(CudaStream stream) {
    UseContext use(*context_);
    void* graph = nullptr;
    return Symbol<CudaResult(CudaStream, void**)>("cuStreamEndCapture")(stream, &graph);
  }

 protected:
  // Everything that a read needs of a device: bytes come in, parts are zeroed and summed up, bytes go out.
  // With memory of every kind: pinned and not, long and short.
  bool ReadInto(const DeviceBuffer& buffer, std::vector<std::byte> content) {
    auto staged = Run(device_->Stage(256 << 10));
    if (!staged.ok()) return false;
    std::ranges::copy(std::span(content).first(staged->bytes.size()), staged->bytes.begin());
    const size_t half = staged->bytes.size(), rest = content.size() - half;
    // Last first, so that they do not become one: long ones and short ones, of even and odd length.
    std::vector<iovec> to, from;
    for (size_t end = half, length = 90'000; end > 0; end -= length, length = to.size() < 2 ? 31'001 : 1999) {
      length = std::min(length, end);
      to.push_back(buffer.Piece(end - length, length));
      from.push_back({staged->bytes.data() + end - length, length});
    }
    if (!Run(device_->CopyIn(to, from)).ok()) return false;
    if (!Run(device_->CopyIn({buffer.Piece(half, rest)}, {{content.data() + half, rest}})).ok()) return false;
    std::vector<iovec> zeros;
    for (size_t i = 0; i < 9; ++i) zeros.push_back(buffer.Piece(i * 70'001, 5000));
    zeros.push_back(buffer.Piece(700'000, 300'000));
    for (const iovec& zero : zeros)
      std::fill_n(content.begin() + (static_cast<std::byte*>(zero.iov_base) - buffer.data()), zero.iov_len,
                  std::byte{0});
    if (!Run(device_->Zero(zeros)).ok()) return false;
    auto sums = Run(device_->Crc32c({buffer.Piece(0, half), buffer.Piece(half, rest)}));
    if (!sums.ok()) return false;
    const std::span<const std::byte> all(content);
    const bool summed =
        *sums == std::vector{nacre::Crc32c(all.first(half)), nacre::Crc32c(all.subspan(half))};
    return summed && Read(buffer) == content;
  }

  std::shared_ptr<Context> context_;
  CudaStream stream_ = nullptr;
};

// The stream fills a buffer, we overwrite its middle, the stream fills its begin.
TEST_P(StreamOrderTest, WeComeBetween) {
  DeviceBuffer buffer(device_, 1 << 20);
  std::vector<std::byte> ours = RandomBytes(1000);
  for (int round = 0; round < 20; ++round) {
    Fill(buffer, 1);
    auto order = StreamOrder::Insert(device_, stream_);
    ASSERT_TRUE(order.ok()) << order.status();
    {
      UseContext use(*context_);
      ASSERT_EQ(cuda()->MemsetD8Async(reinterpret_cast<CudaAddress>(buffer.data()), 2, 100, stream_),
                kCudaSuccess);
    }
    ASSERT_TRUE(Run((*order)->Arrived()).ok());
    Status status = Run(device_->CopyIn({buffer.Piece(50, ours.size())}, {{ours.data(), ours.size()}}));
    ASSERT_TRUE(status.ok()) << status;
    (*order)->Release();
    Synchronize();
    std::vector<std::byte> expected(buffer.size(), std::byte{1});
    std::ranges::copy(ours, expected.begin() + 50);
    std::fill_n(expected.begin(), 100, std::byte{2});
    EXPECT_TRUE(Read(buffer) == expected);
  }
}

TEST_P(StreamOrderTest, TheEndReleases) {
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(StreamOrder::Insert(device_, stream_).ok());
  Synchronize();
}

// Streams share hardware queues (CUDA_DEVICE_MAX_CONNECTIONS, one under Megatron-LM), and what stands in a
// queue behind a stream that waits does not run either. Our work ends that wait, so it must not stand there.
class FewQueuesTest : public StreamOrderTest {
 public:
  void SetUp() override {
    if (fake())
      Fake::Get().Configure("queues=1");
    else
      setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);  // counts if this is the first test of the process
    StreamOrderTest::SetUp();
  }
  void TearDown() override {
    StreamOrderTest::TearDown();
    if (fake()) Fake::Get().Configure("queues=0");
  }
};

TEST_P(FewQueuesTest, OurWorkDoesNotStandBehindTheStreamThatWaitsForIt) {
  DeviceBuffer buffer(device_, 4 << 20);
  auto order = StreamOrder::Insert(device_, stream_);
  ASSERT_TRUE(order.ok()) << order.status();
  ASSERT_TRUE(Run((*order)->Arrived()).ok());
  std::future<bool> read =
      std::async(std::launch::async, [&] { return ReadInto(buffer, RandomBytes(4 << 20)); });
  const bool done = read.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
  (*order)->Release();
  EXPECT_TRUE(read.get());
  EXPECT_TRUE(done) << "the read stood behind the stream that waited for it";
}

// "Page-locked host memory allocation, a device memory allocation" synchronise implicitly, says CUDA's guide.
TEST_P(FewQueuesTest, NothingIsAllocatedWhileAStreamWaits) {
  if (!fake()) GTEST_SKIP() << "a real driver's allocations wait for no stream that we know of";
  DeviceBuffer buffer(device_, 4 << 20);
  ASSERT_TRUE(Run(device_->ReserveForStreams()).ok());
  auto order = StreamOrder::Insert(device_, stream_);
  ASSERT_TRUE(order.ok()) << order.status();
  WithKnobs waiting("allocations_wait=1", "allocations_wait=0");
  std::future<bool> read =
      std::async(std::launch::async, [&] { return ReadInto(buffer, RandomBytes(4 << 20)); });
  const bool done = read.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
  (*order)->Release();
  EXPECT_TRUE(read.get());
  EXPECT_TRUE(done) << "something was allocated when it was needed";
}

// A server that ended has its memory unpinned, which waits for all streams; what comes in its place must not
// wait for that.
TEST_P(FewQueuesTest, MemoryIsPinnedWhileOtherMemoryIsBeingUnpinned) {
  if (!fake()) GTEST_SKIP() << "only the fake driver is certain to wait";
  std::vector<std::byte> old(1 << 20), fresh(1 << 20);
  auto pinned = Run(device_->Pin(old));
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  const std::weak_ptr<void> last = *pinned;
  auto order = StreamOrder::Insert(device_, stream_);
  ASSERT_TRUE(order.ok()) << order.status();
  {
    WithKnobs waiting("allocations_wait=1", "allocations_wait=0");
    std::thread unpin([&] { *pinned = nullptr; });
    while (!last.expired()) std::this_thread::yield();
    EXPECT_EQ(ToErrno(Run(device_->Pin(old)).status()), EBUSY);
    auto other = Run(device_->Pin(fresh));
    EXPECT_TRUE(other.ok()) << other.status();
    (*order)->Release();
    unpin.join();
  }
  EXPECT_TRUE(Run(device_->Pin(old)).ok());
}

INSTANTIATE_TEST_SUITE_P(, FewQueuesTest, testing::Values(Driver::kFake, Driver::kReal), DriverName);

// A graph's replay would neither read nor wait: the values that it waits for are those of the capture.
TEST_P(StreamOrderTest, RefusesAStreamThatCaptures) {
  ASSERT_EQ(BeginCapture(stream_), kCudaSuccess);
  Status status = StreamOrder::Insert(device_, stream_).status();
  EXPECT_EQ(ToErrno(status), EOPNOTSUPP) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("graph"));
  EXPECT_EQ(EndCapture(stream_), kCudaSuccess);
  EXPECT_TRUE(StreamOrder::Insert(device_, stream_).ok());
}

// The flags of an order that the stream never heard of are not kept for it, nor the page on which they lie.
TEST_P(StreamOrderTest, WhatAStreamRefusedIsGivenBack) {
  if (!fake()) GTEST_SKIP() << "only the fake driver counts";
  ASSERT_EQ(BeginCapture(stream_), kCudaSuccess);
  EXPECT_EQ(ToErrno(StreamOrder::Insert(device_, stream_).status()), EOPNOTSUPP);
  EXPECT_EQ(EndCapture(stream_), kCudaSuccess);
  TearDown();
  stream_ = nullptr;
  context_ = nullptr;
  gpus_ = nullptr;
  device_ = nullptr;
  // A thread that was the last to use a device lets its memory go a moment later.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (Fake::Get().Count("pinned") != 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(Fake::Get().Count("pinned"), 0);
}

// Which would have to wait for it, and so would spoil the capture.
TEST_P(StreamOrderTest, RefusesTheDefaultStreamBesideACapture) {
  CudaStream blocking = nullptr;
  {
    UseContext use(*context_);
    ASSERT_EQ(cuda()->StreamCreate(&blocking, 0), kCudaSuccess);
  }
  ASSERT_EQ(BeginCapture(blocking), kCudaSuccess);
  Status status = StreamOrder::Insert(device_, nullptr).status();
  EXPECT_EQ(ToErrno(status), EOPNOTSUPP) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("default stream"));
  EXPECT_TRUE(StreamOrder::Insert(device_, stream_).ok());
  EXPECT_EQ(EndCapture(blocking), kCudaSuccess);
  EXPECT_TRUE(StreamOrder::Insert(device_, nullptr).ok());
  UseContext use(*context_);
  EXPECT_EQ(cuda()->StreamSynchronize(nullptr), kCudaSuccess);
  EXPECT_EQ(cuda()->StreamDestroy(blocking), kCudaSuccess);
}

// While one thread captures, others must call nothing unsafe: not our thread either, which allocates and asks
// for events.
TEST_P(StreamOrderTest, ReadsSpoilNobodysCapture) {
  DeviceBuffer buffer(device_, 4 << 20);
  ASSERT_EQ(BeginCapture(stream_), kCudaSuccess);
  EXPECT_TRUE(ReadInto(buffer, RandomBytes(4 << 20)));
  EXPECT_EQ(EndCapture(stream_), kCudaSuccess);
}

INSTANTIATE_TEST_SUITE_P(, StreamOrderTest, testing::Values(Driver::kFake, Driver::kReal), DriverName);

class OldDriverOrderTest : public GpuTest {};

TEST_P(OldDriverOrderTest, SaysWhatToDoInstead) {
  WithKnobs with("driver=11040", "driver=13000");
  auto gpus = Gpus::Open({.library = FakeLibrary()});
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  Status status = StreamOrder::Insert((*gpus)->devices().front(), nullptr).status();
  EXPECT_EQ(ToErrno(status), EOPNOTSUPP);
  EXPECT_NE(status.message().find("synchronise"), status.message().npos);
}

INSTANTIATE_TEST_SUITE_P(, OldDriverOrderTest, testing::Values(Driver::kFake), DriverName);

}  // namespace
}  // namespace nacre::gpu
