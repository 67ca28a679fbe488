// Small reads of libnacre that are there together and go as one: each comes right, and each ends by itself.
#include <atomic>

#include "tests/api/api_fixture.h"
#include "tests/api/device_memory.h"

namespace nacre::test {
namespace {

constexpr size_t kBlock = 4096;

class ApiSmallReads : public ApiTest {
 protected:
  // Begins reads of places that a random generator names into every second block of the span.
  std::vector<Future> Begin(const File& file, const Buffer& buffer, size_t count, unsigned seed) {
    std::mt19937_64 random(seed);
    std::vector<Future> reads;
    places_.clear();
    for (size_t i = 0; i < count; ++i) {
      places_.push_back(random() % (content_.size() - kBlock));
      reads.push_back(file.read_async(places_.back(), buffer.span(2 * i * kBlock, kBlock)));
    }
    return reads;
  }
  // Returns what memory that was full of canaries holds then.
  std::string Expected(size_t count) const {
    std::string bytes(2 * count * kBlock, kCanary);
    for (size_t i = 0; i < count; ++i) bytes.replace(2 * i * kBlock, kBlock, content_, places_[i], kBlock);
    return bytes;
  }

  const std::string content_ = Pattern(71, 4 * kMiB);
  std::vector<uint64_t> places_;
};

TEST_F(ApiSmallReads, ManyAtOnceEndEach) {
  File file = Make(content_);
  constexpr size_t kReads = 500;
  Memory memory(client_, 2 * kReads * kBlock);
  for (const Future& read : Begin(file, memory.buffer, kReads, 72)) {
    const Result result = read.get();
    ASSERT_EQ(result.bytes(), kBlock) << result.error().message();
    EXPECT_EQ(result.verification(), Verification::host);
  }
  EXPECT_TRUE(memory.bytes == Expected(kReads));
}

// Threads that each wait for one read after the other; some reach beyond the end of the file.
TEST_F(ApiSmallReads, ThreadsReadSideBySide) {
  File file = Make(content_);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      Memory memory(client_, kBlock);
      for (int i = 0; i < 200; ++i) {
        const size_t at = random() % content_.size(), length = 1 + random() % kBlock;
        const std::string expected = content_.substr(at, length);
        const Result result = file.read(at, memory.buffer.span(0, length));
        if (result.bytes() != expected.size() || memory.bytes.substr(0, expected.size()) != expected) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(ApiSmallReads, OfSeveralFilesEachComesFromItsOwn) {
  const std::string other_content = Pattern(73, kMiB);
  File file = Make(content_), other = Make(other_content);
  Memory memory(client_, 128 * kBlock);
  std::vector<Future> reads;
  for (size_t i = 0; i < 128; ++i)
    reads.push_back((i % 2 == 0 ? file : other).read_async(i * 1000, memory.buffer.span(i * kBlock, kBlock)));
  for (size_t i = 0; i < 128; ++i) {
    ASSERT_EQ(reads[i].get().bytes(), kBlock);
    const std::string& from = i % 2 == 0 ? content_ : other_content;
    EXPECT_TRUE(memory.bytes.compare(i * kBlock, kBlock, from, i * 1000, kBlock) == 0) << i;
  }
}

// --- what does not come ---

TEST_F(ApiSmallReads, OneIsCancelledTheOthersCome) {
  File file = Make(content_);
  ASSERT_FALSE(file.sync());
  constexpr size_t kReads = 40, kCancelled = 20;
  Memory memory(client_, 2 * kReads * kBlock);
  cluster_->KillOss();
  std::vector<Future> reads = Begin(file, memory.buffer, kReads, 74);
  EXPECT_FALSE(reads.back().wait_for(200ms));
  reads[kCancelled].cancel();
  EXPECT_TRUE(reads[kCancelled].wait_for(3s)) << "and not only when the batch is given up";
  EXPECT_THAT(reads[kCancelled].get(), IsErrorSaying(ECANCELED, "cancelled"));
  EXPECT_FALSE(reads.back().ready());
  cluster_->StartOss();
  std::string expected = Expected(kReads);
  expected.replace(2 * kCancelled * kBlock, kBlock, std::string(kBlock, kCanary));
  for (size_t i = 0; i < kReads; ++i) {
    if (i == kCancelled) continue;
    ASSERT_TRUE(reads[i].wait_for(60s)) << i;
    EXPECT_EQ(reads[i].get().bytes(), kBlock) << i << ": " << reads[i].get().error().message();
  }
  EXPECT_TRUE(memory.bytes == expected);
}

TEST_F(ApiSmallReads, AClosedClientEndsThem) {
  File own = Make(content_);
  ASSERT_FALSE(own.sync());
  Client other = Open({.name = "closed"});
  auto file = other.open_file(name_, O_RDONLY);
  ASSERT_TRUE(file);
  Memory memory(other, 2 * 40 * kBlock);
  cluster_->oss_process().Stop();
  std::vector<Future> reads = Begin(*file, memory.buffer, 40, 75);
  EXPECT_FALSE(reads.front().wait_for(100ms));
  std::thread going_on([] {
    std::this_thread::sleep_for(200ms);
    cluster_->oss_process().Signal(SIGCONT);
  });
  EXPECT_FALSE(other.close());
  going_on.join();
  for (const Future& read : reads) {
    ASSERT_TRUE(read.ready());
    EXPECT_TRUE(read.get().bytes() == kBlock || read.get().error().code() == ECANCELED);
  }
}

// --- GPU memory ---

using ApiSmallDeviceReads = WithDriver<ApiSmallReads>;

TEST_F(ApiSmallDeviceReads, ComeBetweenCanaries) {
  static_assert(kCanary == kDeviceCanary);
  File file = Make(content_);
  constexpr size_t kReads = 300;
  DeviceMemory memory(2 * kReads * kBlock);
  auto buffer = client_.register_buffer(memory.data(), memory.size());
  ASSERT_TRUE(buffer);
  for (const Future& read : Begin(file, *buffer, kReads, 76)) {
    const Result result = read.get();
    ASSERT_EQ(result.bytes(), kBlock) << result.error().message();
    EXPECT_EQ(result.verification(), Verification::device);
  }
  EXPECT_TRUE(memory.bytes() == Expected(kReads));
}

// Host memory and that of a GPU, of the same file at the same time.
TEST_F(ApiSmallDeviceReads, KindsOfMemoryDoNotMix) {
  File file = Make(content_);
  DeviceMemory on_device(64 * kBlock);
  Memory memory(client_, 64 * kBlock);
  auto buffer = client_.register_buffer(on_device.data(), on_device.size());
  ASSERT_TRUE(buffer);
  std::vector<Future> reads;
  for (size_t at = 0; at < 64 * kBlock; at += kBlock) {
    reads.push_back(file.read_async(at, buffer->span(at, kBlock)));
    reads.push_back(file.read_async(at, memory.buffer.span(at, kBlock)));
  }
  for (const Future& read : reads) ASSERT_EQ(read.get().bytes(), kBlock);
  EXPECT_TRUE(memory.bytes == content_.substr(0, 64 * kBlock));
  EXPECT_TRUE(on_device.bytes() == memory.bytes);
}

}  // namespace
}  // namespace nacre::test
