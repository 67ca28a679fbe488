// Files read by libnacre into GPU memory over RDMA: for a machine with an RDMA device and a cluster that is
// reached over it, whose MDS is NACRE_TEST_MDS (tests/rdma/device.sh makes both, in a guest). The GPU is the
// driver that needs none, whose memory kills who touches it with the CPU; dma-bufs are added to the RDMA
// device (tests/transport/verbs/emulated_dma_bufs.h).
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nacre/nacre.hpp>
#include <optional>
#include <random>

#include "tests/api/device_memory.h"
#include "tests/transport/verbs/emulated_dma_bufs.h"

namespace nacre::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kFileBytes = (32 << 20) + 12'345, kEdge = 4096;

std::string RandomContent(size_t size) {
  std::mt19937_64 random(20261120);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

class DeviceRead : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (std::getenv("NACRE_TEST_MDS") == nullptr) return;
    dma_bufs_.emplace();
    ::setenv("NACRE_CUDA_LIBRARY", Driver::Library().c_str(), 1);
    Driver::Get().Use(0);
    content_ = RandomContent(kFileBytes);
  }
  static void TearDownTestSuite() { dma_bufs_.reset(); }

  void SetUp() override {
    const char* mds = std::getenv("NACRE_TEST_MDS");
    if (mds == nullptr) GTEST_SKIP() << "NACRE_TEST_MDS is not set: tests/rdma/device.sh runs this";
    ClientOptions options;
    options.transport = "rdma";
    auto client = Client::open(mds, options);
    ASSERT_TRUE(client) << client.error().message();
    client_ = *std::move(client);
    auto file = client_.open_file("read-into-a-gpu", O_RDWR | O_CREAT);
    ASSERT_TRUE(file) << file.error().message();
    file_ = *std::move(file);
    std::string from = content_;
    Buffer buffer = Register(from.data(), from.size());
    const Result written = file_.write(0, buffer.span());
    ASSERT_EQ(written.bytes(), kFileBytes) << written.error().message();
  }

  Buffer Register(void* data, size_t size) {
    auto buffer = client_.register_buffer(data, size);
    EXPECT_TRUE(buffer) << buffer.error().message();
    return buffer ? *std::move(buffer) : Buffer();
  }

  static inline std::optional<verbs::EmulatedDmaBufs> dma_bufs_;
  static inline std::string content_;
  Client client_;
  File file_;
};

TEST_F(DeviceRead, LandsThereByItself) {
  DeviceMemory memory(kEdge + kFileBytes + kEdge);
  Buffer buffer = Register(memory.data(), memory.size());
  const Result read = file_.read(0, buffer.span(kEdge + 1, kFileBytes));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read.bytes(), kFileBytes);
  EXPECT_EQ(read.path(), "rdma+gpu");
  EXPECT_NE(read.verification(), Verification::none);
  const std::string bytes = memory.bytes();
  EXPECT_TRUE(bytes.substr(kEdge + 1, kFileBytes) == content_);
  EXPECT_EQ(bytes.substr(0, kEdge + 1), std::string(kEdge + 1, kDeviceCanary));
  EXPECT_EQ(bytes.substr(kEdge + 1 + kFileBytes), std::string(kEdge - 1, kDeviceCanary));
}

// The GPU's driver exports no dma-bufs while this lives. The RDMA transport of a client remembers what it was
// told, so only a client that is opened meanwhile sees it.
class Refused {
 public:
  Refused() { Configure("export_error=801"); }
  ~Refused() { Configure("export_error=0"); }

  static Client Open() {
    ClientOptions options;
    options.transport = "rdma";
    options.name = "refused";
    auto client = Client::open(std::getenv("NACRE_TEST_MDS"), options);
    EXPECT_TRUE(client) << client.error().message();
    return client ? *std::move(client) : Client();
  }

 private:
  static void Configure(const char* knobs) {
    EXPECT_EQ(Driver::Get().Find<int(const char*)>("nacre_fake_cuda_configure")(knobs), 0);
  }
};

TEST_F(DeviceRead, ByWayOfHostMemoryWhereItIsRefused) {
  const Refused refused;
  Client client = Refused::Open();
  auto file = client.open_file("read-into-a-gpu");
  ASSERT_TRUE(file) << file.error().message();
  DeviceMemory memory(kEdge + kFileBytes + kEdge);
  auto buffer = client.register_buffer(memory.data(), memory.size());
  ASSERT_TRUE(buffer) << buffer.error().message();
  const Result read = file->read(0, buffer->span(kEdge + 1, kFileBytes));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read.path(), "rdma+staging");
  EXPECT_NE(read.verification(), Verification::none);
  const std::string bytes = memory.bytes();
  EXPECT_TRUE(bytes.substr(kEdge + 1, kFileBytes) == content_);
  EXPECT_EQ(bytes.substr(0, kEdge + 1), std::string(kEdge + 1, kDeviceCanary));
  EXPECT_EQ(bytes.substr(kEdge + 1 + kFileBytes), std::string(kEdge - 1, kDeviceCanary));
  EXPECT_THAT(client.capabilities()->paths, testing::AllOf(testing::HasSubstr("cannot write into cuda:0"),
                                                           testing::HasSubstr("CUDA_ERROR_NOT_SUPPORTED")));
}

double SecondsToRead(File& file, const Span& span) {
  const auto begin = Clock::now();
  const Result read = file.read(0, span);
  EXPECT_EQ(read.bytes(), kFileBytes) << read.error().message();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The rate into GPU memory as a part of that into host memory, both read in turns.
void Compare(bool verify) {
  ClientOptions options;
  options.transport = "rdma";
  options.verify = verify;
  auto client = Client::open(std::getenv("NACRE_TEST_MDS"), options);
  ASSERT_TRUE(client) << client.error().message();
  auto file = client->open_file("read-into-a-gpu");
  ASSERT_TRUE(file) << file.error().message();
  DeviceMemory memory(kFileBytes);
  std::string host(kFileBytes, '\0');
  auto into_gpu = client->register_buffer(memory.data(), memory.size());
  auto into_host = client->register_buffer(host.data(), host.size());
  ASSERT_TRUE(into_gpu && into_host);
  double best_host = 1e9, best_gpu = 1e9;
  for (int round = 0; round < 5; ++round) {  // the first registers
    best_host = std::min(best_host, SecondsToRead(*file, into_host->span()));
    best_gpu = std::min(best_gpu, SecondsToRead(*file, into_gpu->span()));
  }
  EXPECT_TRUE(memory.bytes() == host);
  std::printf("reads of %zu MiB over rdma, %s: %.0f MB/s into host memory, into GPU memory %.3f of that\n",
              kFileBytes >> 20, verify ? "verified" : "not verified", 1e-6 * kFileBytes / best_host,
              best_host / best_gpu);
}

// Says how fast; the emulated CPU decides how fast it is, and the checksums of a GPU that is made up are its
// work too.
TEST_F(DeviceRead, AsFastAsIntoHostMemory) {
  Compare(false);
  Compare(true);
}

// For NACRE_TEST_SECONDS, while tests/rdma/device.sh kills an OSS.
void ReadRandomExtents(Client& client, File& file, const std::string& content, const std::string& path) {
  const char* seconds = std::getenv("NACRE_TEST_SECONDS");
  const auto end = Clock::now() + std::chrono::seconds(seconds == nullptr ? 1 : std::atoi(seconds));
  DeviceMemory memory(4 << 20);
  auto buffer = client.register_buffer(memory.data(), memory.size());
  ASSERT_TRUE(buffer) << buffer.error().message();
  std::mt19937_64 random(7);
  int rounds = 0;
  for (; Clock::now() < end; ++rounds) {
    std::string expected = memory.bytes();
    std::vector<Extent> extents;
    for (size_t at = random() % 5000; at + 300'000 < memory.size(); at += 1 + random() % 5000) {
      const uint64_t length = random() % 300'000, offset = random() % (kFileBytes - length);
      extents.push_back(file.extent(offset, buffer->span(at, length)));
      expected.replace(at, length, content, offset, length);
      at += length;
    }
    for (const Result& result : nacre::readv(extents)) {
      ASSERT_TRUE(result) << result.error().message();
      if (result.bytes() == 0) continue;
      EXPECT_EQ(result.path(), path);
    }
    ASSERT_TRUE(memory.bytes() == expected) << rounds;
  }
  std::printf("%d batches of random extents over %s\n", rounds, path.c_str());
}

TEST_F(DeviceRead, DirectThroughFaults) { ReadRandomExtents(client_, file_, content_, "rdma+gpu"); }

TEST_F(DeviceRead, StagedThroughFaults) {
  const Refused refused;
  Client client = Refused::Open();
  auto file = client.open_file("read-into-a-gpu");
  ASSERT_TRUE(file) << file.error().message();
  ReadRandomExtents(client, *file, content_, "rdma+staging");
}

}  // namespace
}  // namespace nacre::test
