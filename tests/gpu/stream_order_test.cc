#include "gpu/stream_order.h"

#include "tests/gpu/gpu_fixture.h"

namespace nacre::gpu {
namespace {

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

 protected:
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
