// libnacre and GPU memory, with the driver that needs no GPU (tests/gpu/fake_cuda): its device memory kills
// who touches it with the CPU, and its copies are late. Or with a real one: see Driver::Library.
#include <fcntl.h>

#include "tests/api/api_fixture.h"
#include "tests/api/device_memory.h"

namespace nacre::test {
namespace {

static_assert(kDeviceCanary == kCanary);

class ApiDevice : public WithDriver<ApiTest> {
 protected:
  Buffer Register(const DeviceMemory& memory) {
    auto buffer = client_.register_buffer(memory.data(), memory.size());
    EXPECT_TRUE(buffer) << buffer.error().message();
    return buffer ? *std::move(buffer) : Buffer();
  }
};

TEST_F(ApiDevice, BytesLandInDeviceMemory) {
  const std::string content = Pattern(21, 5 * kMiB + 123);
  File file = Make(content);
  DeviceMemory memory(6 * kMiB);
  Buffer buffer = Register(memory);
  EXPECT_EQ(buffer.info()->memory, static_cast<uint32_t>(NACRE_MEMORY_DEVICE));
  EXPECT_EQ(buffer.info()->gpu, 0);
  Result read = file.read(101, buffer.span(7, 6 * kMiB - 7));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read.bytes(), content.size() - 101);
  EXPECT_EQ(read.path(), "shm+gpu");
  // A build without CUDA's compiler has no kernels.
  const bool kernels = client_.capabilities()->device.find("verified by gpu") != std::string::npos;
  EXPECT_EQ(read.verification(), kernels ? nacre::Verification::device : nacre::Verification::host);
  std::string expected(6 * kMiB, kCanary);
  expected.replace(7, content.size() - 101, content, 101);
  EXPECT_TRUE(memory.bytes() == expected);
}

TEST_F(ApiDevice, OverTcpByWayOfHostMemory) {
  const std::string content = Pattern(22, 3 * kMiB);
  File made = Make(content);
  ClientOptions options;
  options.transport = "tcp";
  Client other = Open(options);
  auto file = other.open_file(name_);
  DeviceMemory memory(3 * kMiB);
  auto buffer = other.register_buffer(memory.data(), memory.size());
  Result read = file->read(0, buffer->span());
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_THAT(std::string(read.path()), HasSubstr("+staging"));
  EXPECT_TRUE(memory.bytes() == content);
}

TEST_F(ApiDevice, SmallFilesAndHoles) {
  File file = Make("small");
  DeviceMemory memory(2 * kMiB);
  Buffer buffer = Register(memory);
  Result read = file.read(1, buffer.span(3, 100));
  EXPECT_EQ(read.bytes(), 4u) << read.error().message();
  EXPECT_EQ(memory.bytes().substr(0, 9), std::string(3, kCanary) + "mall" + std::string(2, kCanary));

  const std::string end = "at the end";
  Memory tail(client_, end);
  ASSERT_TRUE(file.write(kMiB, tail.buffer.span()));
  read = file.read(0, buffer.span());
  ASSERT_TRUE(read) << read.error().message();
  std::string expected = "small" + std::string(kMiB - 5, '\0') + end;
  expected += std::string(2 * kMiB - expected.size(), kCanary);
  EXPECT_TRUE(memory.bytes() == expected);
}

TEST_F(ApiDevice, RandomExtentsInOneBatch) {
  const std::string content = Pattern(23, 7 * kMiB + 1);
  File file = Make(content);
  DeviceMemory memory(4 * kMiB);
  Memory host(client_, kMiB);
  Buffer buffer = Register(memory);
  for (unsigned seed = 1; seed <= 5; ++seed) {
    std::mt19937_64 random(seed);
    std::string expected = memory.bytes(), expected_host = host.bytes;
    std::vector<Extent> extents;
    for (size_t at = random() % 500; at + 70'000 < memory.size(); at += 1 + random() % 70'000) {
      const uint64_t length = std::min<uint64_t>(random() % 70'000, 3 * (random() % 30'000));
      const uint64_t offset = random() % (content.size() - length);
      extents.push_back(file.extent(offset, buffer.span(at, length)));
      expected.replace(at, length, content, offset, length);
      at += length;
    }
    extents.push_back(file.extent(seed, host.buffer.span(seed, 1000)));
    expected_host.replace(seed, 1000, content, seed, 1000);
    for (const Result& result : nacre::readv(extents)) ASSERT_TRUE(result) << result.error().message();
    EXPECT_TRUE(memory.bytes() == expected) << seed;
    EXPECT_TRUE(host.bytes == expected_host) << seed;
  }
}

TEST_F(ApiDevice, DeviceMemoryIsWritten) {
  const std::string content = Pattern(24, 9 * kMiB + 5);
  DeviceMemory memory(content.size());
  memory.Set(content);
  Buffer buffer = Register(memory);
  File file = Make("");
  Result written = file.write(0, buffer.span());
  EXPECT_EQ(written.bytes(), content.size()) << written.error().message();
  Memory host(client_, content.size());
  EXPECT_EQ(file.read(0, host.buffer.span()).bytes(), content.size());
  EXPECT_TRUE(host.bytes == content);
}

// Of large reads and of small ones that go together: what a copy has changed is read once more, and never
// taken for good.
TEST_F(ApiDevice, BytesThatChangeOnTheirWayIntoTheGpuAreNoticed) {
  if (std::getenv("NACRE_TEST_CUDA") != nullptr) GTEST_SKIP() << "a real GPU changes nothing";
  const auto configure = Driver::Get().Find<int(const char*)>("nacre_fake_cuda_configure");
  const std::string content = Pattern(26, 3 * kMiB);
  File file = Make(content);
  DeviceMemory memory(content.size());
  Buffer buffer = Register(memory);
  ASSERT_EQ(configure("damage=2"), 0);
  const Result read = file.read(0, buffer.span());
  EXPECT_EQ(read.bytes(), content.size()) << read.error().message();
  EXPECT_EQ(read.verification(), Verification::device);
  EXPECT_TRUE(memory.bytes() == content);
  DeviceMemory blocks(content.size());
  Buffer small = Register(blocks);
  ASSERT_EQ(configure("damage=2"), 0);
  std::vector<Future> reads;
  for (size_t at = 0; at < content.size(); at += 4096)
    reads.push_back(file.read_async(at, small.span(at, 4096)));
  for (const Future& one : reads) EXPECT_EQ(one.get().bytes(), 4096u) << one.get().error().message();
  EXPECT_TRUE(blocks.bytes() == content);
  ASSERT_EQ(configure("damage=1000000"), 0);
  EXPECT_THAT(file.read(0, buffer.span()), IsErrorSaying(EIO, "does not match its checksum"));
  EXPECT_THAT(file.read(4096, small.span(0, 4096)), IsErrorSaying(EIO, "does not match its checksum"));
  ASSERT_EQ(configure("damage=0"), 0);
  EXPECT_EQ(file.read(0, buffer.span()).bytes(), content.size());
}

TEST_F(ApiDevice, FreedMemoryIsNoticed) {
  File file = Make(Pattern(25, kMiB));
  DeviceMemory memory(kMiB);
  Buffer buffer = Register(memory);
  memory.Free();
  EXPECT_THAT(file.read(0, buffer.span()), IsErrorSaying(EFAULT, "was freed"));
  DeviceMemory again(kMiB);  // likely at the same address
  EXPECT_THAT(file.read(0, buffer.span()), IsErrorSaying(EFAULT, "was freed"));
  EXPECT_TRUE(again.bytes() == std::string(kMiB, kCanary));
  EXPECT_THAT(client_.register_buffer(again.data(), 1 << 30), IsError(EFAULT));
}

// Looking at the memory costs a call of the driver for each of its mappings: once for a buffer, not once for
// each extent.
TEST_F(ApiDevice, ABufferIsLookedAtOnceForManyExtents) {
  if (Driver::Library() != BinDirectory() + "/libnacre-fake-cuda.so")
    GTEST_SKIP() << "the fake driver counts";
  const auto count = Driver::Get().Find<long(const char*)>("nacre_fake_cuda_count");
  const auto configure = Driver::Get().Find<int(const char*)>("nacre_fake_cuda_configure");
  ASSERT_EQ(configure("segments=64"), 0);
  const std::string content = Pattern(29, kMiB);
  File file = Make(content);
  DeviceMemory memory(kMiB);
  ASSERT_EQ(configure("segments=1"), 0);
  Buffer buffer = Register(memory);
  constexpr size_t kExtents = 256;
  std::vector<Extent> extents;
  for (size_t at = 0; at < kMiB; at += kMiB / kExtents)
    extents.push_back(file.extent(at, buffer.span(at, kMiB / kExtents)));
  const long before = count("queries");
  for (const Result& result : nacre::readv(extents)) ASSERT_TRUE(result) << result.error().message();
  // The engine looks at what it copies, sums up and zeroes, too.
  EXPECT_LT(count("queries") - before, 8 * 64);
  EXPECT_TRUE(memory.bytes() == content);
}

TEST_F(ApiDevice, ManyPiecesOfDeviceMemoryAreWritten) {
  DeviceMemory memory(8 * kMiB);
  const std::string content = Pattern(31, 8 * kMiB);
  memory.Set(content);
  Buffer buffer = Register(memory);
  File file = Make("");
  std::vector<Extent> extents;
  std::string expected(8 * kMiB, '\0');
  for (uint64_t at = 0; at + 300'000 < content.size(); at += 300'000) {
    extents.push_back(file.extent(at, buffer.span(at + 1, 299'000)));
    expected.replace(at, 299'000, content, at + 1, 299'000);
    expected.resize(std::max<size_t>(at + 299'000, expected.size()));
  }
  for (const Result& result : nacre::writev(extents)) {
    ASSERT_TRUE(result) << result.error().message();
    EXPECT_EQ(result.bytes(), 299'000u);
  }
  Future later = file.write_async(6 * kMiB, buffer.span(0, 2 * kMiB));
  EXPECT_EQ(later.get().bytes(), 2 * kMiB);
  expected.replace(6 * kMiB, 2 * kMiB, content, 0, 2 * kMiB);
  Memory seen(client_, 8 * kMiB);
  const Result read = file.read(0, seen.buffer.span());
  EXPECT_EQ(read.bytes(), *file.size());
  EXPECT_TRUE(seen.bytes.substr(0, read.bytes()) == expected.substr(0, read.bytes()));
}

Extent Loose(const File& file, uint64_t offset, void* address, uint64_t length) {
  return Extent(file.handle(), offset, Span{{}, reinterpret_cast<uint64_t>(address), length});
}

// The allocation is registered once; one that comes to its place is another.
TEST_F(ApiDevice, MemoryNeedNotBeRegistered) {
  const std::string content = Pattern(32, kMiB);
  File file = Make(content);
  auto memory = std::make_unique<DeviceMemory>(kMiB);
  const auto at = static_cast<std::byte*>(memory->data());
  std::vector<Extent> extents{Loose(file, 0, at, 1000), Loose(file, 5000, at + 5000, 1000)};
  for (const Result& result : nacre::readv(extents)) ASSERT_TRUE(result) << result.error().message();
  std::string expected(kMiB, kCanary);
  expected.replace(0, 1000, content, 0, 1000);
  expected.replace(5000, 1000, content, 5000, 1000);
  EXPECT_TRUE(memory->bytes() == expected);
  const void* place = memory->data();
  memory = std::make_unique<DeviceMemory>(2 * kMiB);
  memory.reset();
  memory = std::make_unique<DeviceMemory>(kMiB);
  if (place != memory->data()) GTEST_SKIP() << "the driver did not give the address again";
  const Extent again = Loose(file, 0, memory->data(), kMiB);
  EXPECT_EQ(nacre::readv({&again, 1}).front().bytes(), kMiB);
  EXPECT_TRUE(memory->bytes() == content);
  memory.reset();
  const Extent freed = Loose(file, 0, const_cast<void*>(place), kMiB);
  EXPECT_THAT(nacre::readv({&freed, 1}).front(), IsError(EFAULT));
}

TEST_F(ApiDevice, HostMemoryNeedNotBeRegisteredEither) {
  File file = Make("some bytes");
  std::string host(10, kCanary);
  const Extent extent = Loose(file, 0, host.data(), host.size());
  ASSERT_TRUE(nacre::readv({&extent, 1}).front());
  EXPECT_EQ(host, "some bytes");
  const Extent nothing = Loose(file, 0, nullptr, 10);
  EXPECT_THAT(nacre::readv({&nothing, 1}).front(), IsErrorSaying(EFAULT, "address"));
  void* const wild = reinterpret_cast<void*>(0x10);
  const Extent nowhere = Loose(file, 0, wild, 10);
  EXPECT_THAT(nacre::readv({&nowhere, 1}).front(), IsError(EFAULT));
}

// --- streams ---

class ApiStream : public ApiDevice {
 protected:
  ApiStream() { EXPECT_EQ(driver_.Find<int(void**, unsigned)>("cuStreamCreate")(&stream_, 1), 0); }
  ~ApiStream() override {
    Synchronize();
    driver_.Find<int(void*)>("cuStreamDestroy_v2")(stream_);
  }
  void Fill(const DeviceMemory& memory, unsigned char value) {
    const auto fill = driver_.Find<int(uint64_t, unsigned char, size_t, void*)>("cuMemsetD8Async");
    ASSERT_EQ(fill(reinterpret_cast<uint64_t>(memory.data()), value, memory.size(), stream_), 0);
  }
  // To pinned memory: a copy to other memory would wait for the stream inside the driver, under its locks.
  void CopyOut(void* to, const DeviceMemory& memory) {
    const auto copy = driver_.Find<int(void*, uint64_t, size_t, void*)>("cuMemcpyDtoHAsync_v2");
    ASSERT_EQ(copy(to, reinterpret_cast<uint64_t>(memory.data()), memory.size(), stream_), 0);
  }
  void Synchronize() { EXPECT_EQ(driver_.Find<int(void*)>("cuStreamSynchronize")(stream_), 0); }

  Driver& driver_ = Driver::Get();
  void* stream_ = nullptr;
};

TEST_F(ApiStream, AReadTakesItsTurn) {
  const std::string content = Pattern(26, kMiB);
  File file = Make(content);
  DeviceMemory memory(kMiB);
  Buffer buffer = Register(memory);
  void* seen = nullptr;
  ASSERT_EQ(driver_.Find<int(void**, size_t, unsigned)>("cuMemHostAlloc")(&seen, kMiB, 0), 0);
  for (int round = 0; round < 10; ++round) {
    std::memset(seen, 0, kMiB);
    Fill(memory, 7);
    Future future = file.read_on_stream(stream_, 0, buffer.span());
    CopyOut(seen, memory);
    Fill(memory, 9);
    Synchronize();
    Result read = future.get();
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_EQ(std::memcmp(seen, content.data(), kMiB), 0) << round;
    EXPECT_TRUE(memory.bytes() == std::string(kMiB, 9));
  }
  EXPECT_EQ(driver_.Find<int(void*)>("cuMemFreeHost")(seen), 0);
}

// A GPU that serves few queues takes one byte only when the stream goes on, which waits for the byte.
TEST_F(ApiStream, BytesThatAreAloneInTheirBlocksCome) {
  const uint64_t stripe_end = kMiB;
  const std::string content = Pattern(28, 17 * kMiB + 1);
  File file = Make(content);
  DeviceMemory memory(18 * kMiB);
  Buffer buffer = Register(memory);
  struct {
    uint64_t offset, length;
  } reads[] = {{0, content.size()},        // the file's last byte
               {0, content.size() + 100},  // also where more is asked for
               {stripe_end - 1, 2},        // the last byte of a block and the first of the next one
               {4095, 3},
               {16 * kMiB - 1, kMiB},
               {5, 4092},
               {16 * kMiB, kMiB + 1}};
  for (const auto& [offset, length] : reads) {
    Fill(memory, 7);
    Future future = file.read_on_stream(stream_, offset, buffer.span(3, length));
    ASSERT_TRUE(future.wait_for(std::chrono::seconds(20))) << offset << " " << length;
    Result read = future.get();
    ASSERT_TRUE(read) << read.error().message();
    const uint64_t taken = std::min<uint64_t>(length, content.size() - offset);
    EXPECT_EQ(read.bytes(), taken);
    EXPECT_TRUE(read.verification() != nacre::Verification::none);
    Synchronize();
    std::string expected(memory.size(), 7);
    expected.replace(3, taken, content, offset, taken);
    EXPECT_TRUE(memory.bytes() == expected) << offset << " " << length;
  }
}

// The host memory by which they come is known to every transport, where there is no other to turn to.
TEST_F(ApiStream, BytesThatAreAloneComeWhereTheTransportIsGiven) {
  const std::string content = Pattern(29, kMiB + 1);
  File made = Make(content);
  ClientOptions options;
  options.transport = "shm";
  Client other = Open(options);
  auto file = other.open_file(name_);
  DeviceMemory memory(content.size());
  auto buffer = other.register_buffer(memory.data(), memory.size());
  Future future = file->read_on_stream(stream_, 0, buffer->span());
  ASSERT_TRUE(future.wait_for(std::chrono::seconds(20)));
  Result read = future.get();
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read.path(), "shm+gpu");
  EXPECT_TRUE(memory.bytes() == content);
}

TEST_F(ApiStream, ASmallFileOfOneByteComes) {
  File file = Make("x");
  DeviceMemory memory(100);
  Buffer buffer = Register(memory);
  Fill(memory, 7);
  Future future = file.read_on_stream(stream_, 0, buffer.span(3, 10));
  ASSERT_TRUE(future.wait_for(std::chrono::seconds(20)));
  EXPECT_EQ(future.get().bytes(), 1u);
  Synchronize();
  EXPECT_EQ(memory.bytes(), std::string(3, 7) + "x" + std::string(96, 7));
}

TEST_F(ApiStream, AnErrorLetsTheStreamGoOn) {
  File file = Make(Pattern(27, kMiB));
  DeviceMemory memory(kMiB);
  Buffer buffer = Register(memory);
  Future future = file.read_on_stream(stream_, 0, buffer.span(1, kMiB));
  Synchronize();
  EXPECT_THAT(future.get(), IsError(EINVAL));
  Future cancelled = file.read_on_stream(stream_, 0, buffer.span());
  cancelled.cancel();
  Synchronize();
  cancelled.wait();
}

// A write takes the bytes that the stream has put there before it, not those that it puts there afterwards.
TEST_F(ApiStream, AWriteTakesItsTurn) {
  File file = Make("");
  DeviceMemory memory(kMiB);
  Buffer buffer = Register(memory);
  for (unsigned char round = 1; round < 6; ++round) {
    Fill(memory, round);
    Future future = file.write_on_stream(stream_, 0, buffer.span());
    Fill(memory, 99);
    Synchronize();
    Result written = future.get();
    ASSERT_TRUE(written) << written.error().message();
    Memory seen(client_, kMiB);
    EXPECT_EQ(file.read(0, seen.buffer.span()).bytes(), kMiB);
    EXPECT_TRUE(seen.bytes == std::string(kMiB, static_cast<char>(round)));
  }
}

// No buffer says of which GPU the stream is.
TEST_F(ApiStream, HostMemoryTakesItsTurnOnAnyGpu) {
  int gpus = 0;
  driver_.Find<int(int*)>("cuDeviceGetCount")(&gpus);
  const std::string content = Pattern(29, kMiB);
  File file = Make(content);
  void* context = nullptr;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    driver_.Use(gpu);
    void* other = nullptr;
    ASSERT_EQ(driver_.Find<int(void**, unsigned)>("cuStreamCreate")(&other, 1), 0);
    for (void* stream : {other, static_cast<void*>(nullptr)}) {
      Memory host(client_, kMiB);
      Result read = file.read_on_stream(stream, 0, host.buffer.span()).get();
      ASSERT_TRUE(read) << gpu << ": " << read.error().message();
      EXPECT_TRUE(host.bytes == content);
      EXPECT_EQ(driver_.Find<int(void*)>("cuStreamSynchronize")(stream), 0);
    }
    EXPECT_EQ(driver_.Find<int(void*)>("cuStreamDestroy_v2")(other), 0);
    driver_.Find<int(void**)>("cuCtxPopCurrent_v2")(&context);
  }
  if (gpus < 2) return;
  Memory host(client_, kMiB);
  std::thread([&] {
    EXPECT_THAT(file.read_on_stream(nullptr, 0, host.buffer.span()).get(),
                IsErrorSaying(EINVAL, "which of the GPUs"));
  }).join();
}

TEST_F(ApiStream, ATurnIsWaitedForAndEnds) {
  DeviceMemory memory(kMiB);
  nacre_client client{};
  ASSERT_EQ(nacre_client_open(cluster_->mds().c_str(), nullptr, &client), 0) << nacre_error_message();
  nacre_turn first{}, second{};
  Fill(memory, 1);
  ASSERT_EQ(nacre_turn_take(client, stream_, memory.data(), &first), 0) << nacre_error_message();
  Fill(memory, 2);
  ASSERT_EQ(nacre_turn_take(client, stream_, memory.data(), &second), 0) << nacre_error_message();
  EXPECT_EQ(nacre_turn_wait(first, -1), 0);
  EXPECT_EQ(nacre_turn_wait(second, 50'000'000), EAGAIN) << "the first one has not ended";
  EXPECT_EQ(nacre_turn_end(first), 0);
  EXPECT_EQ(nacre_turn_wait(second, -1), 0);
  EXPECT_EQ(nacre_turn_end(second), 0);
  EXPECT_EQ(nacre_turn_end(second), EBADF);
  Synchronize();
  EXPECT_EQ(nacre_client_close(client), 0);
}

TEST_F(ApiStream, AStreamBelongsToOneGpu) {
  int gpus = 0;
  driver_.Find<int(int*)>("cuDeviceGetCount")(&gpus);
  if (gpus < 2) GTEST_SKIP() << "there is one GPU";
  File file = Make(Pattern(28, kMiB));
  DeviceMemory first(kMiB);
  Driver::Get().Use(1);
  DeviceMemory second(kMiB);
  void* context = nullptr;
  driver_.Find<int(void**)>("cuCtxPopCurrent_v2")(&context);
  Buffer a = Register(first), b = Register(second);
  const Extent extents[] = {file.extent(0, a.span()), file.extent(0, b.span())};
  EXPECT_THAT(nacre::readv_on_stream(stream_, extents).get(), IsErrorSaying(EINVAL, "cuda:1"));
  for (const Result& result : nacre::readv(extents)) EXPECT_TRUE(result) << result.error().message();
  EXPECT_TRUE(first.bytes() == second.bytes());
}

TEST_F(ApiStream, CapabilitiesTellOfGpus) {
  auto capabilities = client_.capabilities();
  ASSERT_TRUE(capabilities);
  EXPECT_TRUE(capabilities->read_to_device);
  EXPECT_TRUE(capabilities->streams);
  EXPECT_GE(capabilities->gpus, 1u);
  EXPECT_THAT(capabilities->device, HasSubstr("cuda:0"));
}

}  // namespace
}  // namespace nacre::test
