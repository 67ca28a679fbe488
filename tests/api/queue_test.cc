// libnacre's queues: many reads and writes under way, each with its own end.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <map>

#include "tests/api/api_fixture.h"
#include "tests/api/device_memory.h"

namespace nacre::test {
namespace {

constexpr size_t kSmall = 4096;

bool Readable(int fd) {
  pollfd look{fd, POLLIN, 0};
  return ::poll(&look, 1, 0) == 1;
}

class ApiQueue : public ApiTest {
 protected:
  Queue OpenQueue(uint64_t depth) {
    auto queue = client_.open_queue(depth);
    EXPECT_TRUE(queue) << queue.error().message();
    return queue ? *std::move(queue) : Queue();
  }
  // Small reads of the places of the file that a random generator names, one behind the other in memory.
  std::vector<Request> SmallReads(const File& file, const Memory& memory, uint64_t file_size, unsigned seed) {
    std::mt19937_64 random(seed);
    std::vector<Request> reads;
    places_.clear();
    for (size_t at = 0; at + kSmall <= memory.bytes.size(); at += kSmall) {
      places_.push_back(random() % (file_size - kSmall));
      reads.push_back(file.read_request(places_.back(), memory.buffer.span(at, kSmall), places_.size() - 1));
    }
    return reads;
  }
  // Returns the bytes that the reads must have brought.
  std::string Expected(const std::string& content) const {
    std::string bytes;
    for (const uint64_t place : places_) bytes += content.substr(place, kSmall);
    return bytes;
  }

  std::vector<uint64_t> places_;
};

TEST_F(ApiQueue, ManySmallReadsEndEach) {
  const std::string content = Pattern(51, 8 * kMiB);
  File file = Make(content);
  Queue queue = OpenQueue(100);
  Memory memory(client_, 1000 * kSmall);
  const std::vector<Request> reads = SmallReads(file, memory, content.size(), 51);
  std::vector<int> ended(reads.size(), 0);
  size_t begun = 0, left = reads.size();
  while (left > 0) {
    auto taken = queue.submit(std::span(reads).subspan(begun));
    if (taken) begun += *taken;
    Completion done[64];
    auto count = queue.reap(16, done);
    ASSERT_TRUE(count) << count.error().message();
    for (const Completion& one : std::span(done).first(*count)) {
      EXPECT_EQ(one.bytes(), kSmall) << one.error();
      ++ended[one.user_data()];
    }
    left -= *count;
  }
  EXPECT_TRUE(ended == std::vector<int>(reads.size(), 1));
  EXPECT_TRUE(memory.bytes == Expected(content));
}

TEST_F(ApiQueue, AFullOneTakesNoMore) {
  File file = Make(Pattern(52, kMiB));
  Queue queue = OpenQueue(4);
  Memory memory(client_, 6 * kSmall);
  const std::vector<Request> reads = SmallReads(file, memory, kMiB, 52);
  EXPECT_EQ(*queue.submit(reads), 4u);
  Completion done[8];
  EXPECT_THAT(queue.submit(reads), IsErrorSaying(EAGAIN, "full"));
  EXPECT_EQ(*queue.reap(1, std::span(done).first(1)), 1u);
  EXPECT_EQ(*queue.submit(std::span(reads).subspan(4)), 1u) << "what was reaped has made room";
  EXPECT_EQ(*queue.reap(8, done), 4u) << "no more are under way";
  EXPECT_EQ(*queue.reap(1, done), 0u) << "none is";
  EXPECT_THAT(client_.open_queue(0), IsErrorSaying(EINVAL, "1 to 65536"));
  EXPECT_THAT(client_.open_queue(65537), IsError(EINVAL));
}

TEST_F(ApiQueue, WhatIsWrongIsDoneWithItsError) {
  File file = Make(Pattern(53, kMiB));
  Queue queue = OpenQueue(8);
  Memory memory(client_, kMiB);
  Client other = Open({.name = "another one"});
  auto foreign = other.open_file(name_);
  auto write_only = client_.open_file(name_, O_WRONLY);
  ASSERT_TRUE(foreign && write_only);
  const std::vector<Request> requests = {
      file.read_request(0, memory.buffer.span(0, 100), 0),
      file.read_request(0, {memory.buffer.span().buffer, kMiB, 1}, 1),
      foreign->read_request(0, memory.buffer.span(0, 100), 2),
      write_only->read_request(0, memory.buffer.span(200, 100), 3),
      Request(static_cast<nacre_request_operation>(7), file.handle(), 0, memory.buffer.span().buffer, 0, 1,
              4),
      file.read_request(kMiB - 10, memory.buffer.span(300, 100), 5),
  };
  ASSERT_EQ(*queue.submit(requests), requests.size());
  std::map<uint64_t, int> errors;
  std::map<uint64_t, uint64_t> bytes;
  std::string words;
  for (size_t i = 0; i < requests.size(); ++i) {
    Completion one[1];
    ASSERT_EQ(*queue.reap(1, one), 1u);
    errors[one[0].user_data()] = one[0].error();
    if (one[0].user_data() == 4) words = nacre_error_message();
    bytes[one[0].user_data()] = one[0].bytes();
  }
  EXPECT_THAT(errors, testing::ElementsAre(std::pair(0, 0), std::pair(1, EINVAL), std::pair(2, EINVAL),
                                           std::pair(3, EBADF), std::pair(4, EINVAL), std::pair(5, 0)));
  EXPECT_THAT(words, HasSubstr("operation 7"));
  EXPECT_EQ(bytes[0], 100u);
  EXPECT_EQ(bytes[5], 10u) << "the end of the file";
}

TEST_F(ApiQueue, WritesComeBack) {
  const std::string content = Pattern(54, 2 * kMiB);
  File file = Make("");
  Queue queue = OpenQueue(64);
  Memory memory(client_, content);
  std::vector<Request> writes;
  for (size_t at = 0; at < content.size(); at += content.size() / 64)
    writes.push_back(file.write_request(at, memory.buffer.span(at, content.size() / 64), at));
  ASSERT_EQ(*queue.submit(writes), 64u);
  Completion done[64];
  ASSERT_EQ(*queue.reap(64, done), 64u);
  for (const Completion& one : done) EXPECT_EQ(one.bytes(), content.size() / 64) << one.error();
  Memory seen(client_, content.size());
  ASSERT_TRUE(file.read(0, seen.buffer.span()));
  EXPECT_TRUE(seen.bytes == content);
}

TEST_F(ApiQueue, ADescriptorTellsOfCompletions) {
  File file = Make(Pattern(55, kMiB));
  Queue queue = OpenQueue(8);
  const int fd = *queue.event_fd();
  EXPECT_FALSE(Readable(fd));
  Memory memory(client_, 8 * kSmall);
  ASSERT_EQ(*queue.submit(SmallReads(file, memory, kMiB, 55)), 8u);
  pollfd look{fd, POLLIN, 0};
  ASSERT_EQ(::poll(&look, 1, 10'000), 1);
  Completion done[8];
  size_t reaped = *queue.reap(7, std::span(done).first(7));
  EXPECT_EQ(reaped, 7u);
  ASSERT_EQ(::poll(&look, 1, 10'000), 1) << "one is left";
  EXPECT_EQ(*queue.reap(1, done), 1u);
  EXPECT_FALSE(Readable(fd));
  EXPECT_FALSE(queue.close());
  EXPECT_TRUE(Readable(fd)) << "so that whoever polls looks, and hears that it was closed";
  ::close(fd);
}

TEST_F(ApiQueue, ThreadsShareOne) {
  const std::string content = Pattern(56, 4 * kMiB);
  File file = Make(content);
  Queue queue = OpenQueue(128);
  constexpr size_t kThreads = 3, kEach = 400;
  Memory memory(client_, kThreads * kEach * kSmall);
  const std::vector<Request> reads = SmallReads(file, memory, content.size(), 56);
  std::atomic<size_t> reaped{0};
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::span<const Request> own = std::span(reads).subspan(t * kEach, kEach);
      while (!own.empty()) {
        auto taken = queue.submit(own.first(std::min<size_t>(own.size(), 1 + own.size() % 7)));
        if (taken) own = own.subspan(*taken);
        if (!taken && taken.error().code() != EAGAIN) ++failed;
        std::this_thread::yield();
      }
    });
    threads.emplace_back([&] {
      while (reaped < reads.size()) {
        Completion done[32];
        auto count = queue.reap(4, done, 10ms);
        if (!count) ++failed;
        for (const Completion& one : std::span(done).first(count.value_or(0))) failed += one.ok() ? 0 : 1;
        reaped += count.value_or(0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(reaped, reads.size());
  EXPECT_EQ(failed, 0);
  EXPECT_TRUE(memory.bytes == Expected(content));
}

TEST_F(ApiQueue, AClosedClientClosesItsQueues) {
  Client other = Open({.name = "closed"});
  auto queue = other.open_queue(4);
  ASSERT_TRUE(queue);
  std::atomic<int> code{0};
  (void)Make("x");
  auto file = other.open_file(name_, O_RDONLY);
  std::thread reaper([&] {
    Completion done[1];
    while (code == 0) {  // as long as none is under way it does not wait
      auto count = queue->reap(1, done);
      if (!count) code = count.error().code();
    }
  });
  EXPECT_FALSE(other.close());
  reaper.join();
  EXPECT_EQ(code, EBADF);
  EXPECT_THAT(queue->submit({}), IsError(EBADF));
}

TEST(ApiExpected, TheValueOfAnErrorEndsTheProgramInWords) {
  const Expected<int> none(Error(ENOENT, "no such thing"));
  EXPECT_DEATH((void)*none, "errno 2: no such thing");
  EXPECT_EQ(none.value_or(3), 3);
  EXPECT_EQ(Expected<int>(4).value(), 4);
}

// --- what does not come ---

// While the OSS does not answer, or is not there.
class ApiQueueWaits : public ApiQueue {
 protected:
  void SetUp() override {
    content_ = Pattern(57, 4 * kMiB);
    file_ = Make(content_);
    ASSERT_FALSE(file_.sync());
    memory_.emplace(client_, 40 * kSmall);
    Memory warm(client_, kMiB);
    ASSERT_TRUE(file_.read(0, warm.buffer.span()));
    reads_ = SmallReads(file_, *memory_, content_.size(), 57);
  }
  void TearDown() override { Continue(); }
  void Stop() {
    cluster_->oss_process().Stop();
    stopped_ = true;
  }
  void Continue() {
    if (std::exchange(stopped_, false)) cluster_->oss_process().Signal(SIGCONT);
  }

  std::string content_;
  File file_;
  std::optional<Memory> memory_;
  std::vector<Request> reads_;
  bool stopped_ = false;
};

TEST_F(ApiQueueWaits, OneIsCancelledTheOthersCome) {
  Queue queue = OpenQueue(64);
  cluster_->KillOss();
  ASSERT_EQ(*queue.submit(reads_), reads_.size());
  Completion done[64];
  EXPECT_EQ(*queue.reap(1, done, 200ms), 0u);
  EXPECT_FALSE(queue.cancel(5));
  ASSERT_EQ(*queue.reap(1, done, 20s), 1u);
  EXPECT_EQ(done[0].user_data(), 5u);
  EXPECT_EQ(done[0].error(), ECANCELED);
  std::fill_n(memory_->bytes.begin() + 5 * kSmall, kSmall, kCanary);
  cluster_->StartOss();
  ASSERT_EQ(*queue.reap(reads_.size() - 1, done, 60s), reads_.size() - 1);
  for (const Completion& one : std::span(done).first(reads_.size() - 1))
    EXPECT_EQ(one.bytes(), kSmall) << one.user_data() << ": " << one.error();
  std::string expected = Expected(content_);
  expected.replace(5 * kSmall, kSmall, std::string(kSmall, kCanary));
  EXPECT_TRUE(memory_->bytes == expected);
}

TEST_F(ApiQueueWaits, TheTimeIsOver) {
  Queue queue = OpenQueue(64);
  Stop();
  ASSERT_EQ(*queue.submit(reads_, 300ms), reads_.size());
  Completion done[64];
  ASSERT_EQ(*queue.reap(reads_.size(), done, 20s), reads_.size());
  for (const Completion& one : std::span(done).first(reads_.size())) EXPECT_EQ(one.error(), ETIMEDOUT);
  EXPECT_THAT(nacre_error_message(), HasSubstr("not read in time"));
}

TEST_F(ApiQueueWaits, ClosingEndsWhatIsUnderWay) {
  Queue queue = OpenQueue(64);
  Stop();
  ASSERT_EQ(*queue.submit(reads_), reads_.size());
  std::thread reaper([&] {
    Completion done[64];
    EXPECT_THAT(queue.reap(64, done), IsError(EBADF));
  });
  std::this_thread::sleep_for(100ms);
  EXPECT_FALSE(Error::last(nacre_queue_close(queue.handle())));
  reaper.join();
  EXPECT_FALSE(memory_->buffer.release()) << "nobody uses it";
  std::fill(memory_->bytes.begin(), memory_->bytes.end(), kCanary);
  Continue();
  Memory again(client_, content_.size());
  EXPECT_EQ(file_.read(0, again.buffer.span()).bytes(), content_.size());
  EXPECT_TRUE(memory_->bytes == std::string(memory_->bytes.size(), kCanary)) << "nothing arrives late";
}

// --- GPU memory ---

using ApiQueueDevice = WithDriver<ApiQueue>;

TEST_F(ApiQueueDevice, SmallReadsAndWritesOfGpuMemory) {
  const std::string content = Pattern(58, 2 * kMiB);
  File file = Make(content);
  File copy = Make("");
  Queue queue = OpenQueue(512);
  DeviceMemory memory(content.size());
  auto buffer = client_.register_buffer(memory.data(), memory.size());
  ASSERT_TRUE(buffer);
  std::vector<Request> reads, writes;
  for (size_t at = 0; at < content.size(); at += kSmall) {
    reads.push_back(file.read_request(at, buffer->span(at, kSmall), at));
    writes.push_back(copy.write_request(at, buffer->span(at, kSmall), at));
  }
  std::vector<Completion> done(512);
  for (const std::vector<Request>* some : {&reads, &writes}) {
    ASSERT_EQ(*queue.submit(*some), 512u);
    ASSERT_EQ(*queue.reap(512, done), 512u);
    for (const Completion& one : done) ASSERT_EQ(one.bytes(), kSmall) << one.error();
  }
  EXPECT_TRUE(memory.bytes() == content);
  Memory seen(client_, content.size());
  ASSERT_TRUE(copy.read(0, seen.buffer.span()));
  EXPECT_TRUE(seen.bytes == content);
  memory.Free();
  ASSERT_EQ(*queue.submit(std::span(reads).first(2)), 2u);
  ASSERT_EQ(*queue.reap(2, done), 2u);
  EXPECT_EQ(done[0].error(), EFAULT);
  EXPECT_EQ(done[1].error(), EFAULT);
  EXPECT_THAT(nacre_error_message(), HasSubstr("was freed"));
}

}  // namespace
}  // namespace nacre::test
