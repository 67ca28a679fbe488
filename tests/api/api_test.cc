// libnacre as its users see it, against servers in processes of their own: every call, its answers to bad
// use, and that nothing beside the spans is touched.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/api/api_fixture.h"

namespace nacre::test {
namespace {

class Api : public ApiTest {};

TEST_F(Api, ReadsWhatWasWritten) {
  const std::string content = Pattern(1, 5 * kMiB + 123);
  File file = Make(content);
  EXPECT_EQ(*file.size(), content.size());
  Memory memory(client_, 6 * kMiB);
  Result read = file.read(100, memory.buffer.span(7, 5 * kMiB));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read.bytes(), 5 * kMiB);
  EXPECT_EQ(read.path(), "shm");
  EXPECT_EQ(read.verification(), nacre::Verification::host);
  EXPECT_EQ(memory.bytes.substr(0, 7), std::string(7, kCanary));
  EXPECT_TRUE(memory.bytes.substr(7, 5 * kMiB) == content.substr(100, 5 * kMiB));
  EXPECT_TRUE(memory.bytes.substr(7 + 5 * kMiB) == std::string(kMiB - 7, kCanary));
}

TEST_F(Api, TheEndOfTheFileIsAShortCount) {
  const std::string content = Pattern(2, kMiB + 5);
  File file = Make(content);
  Memory memory(client_, 64);
  Result read = file.read(kMiB, memory.buffer.span());
  EXPECT_EQ(read.bytes(), 5u);
  EXPECT_EQ(memory.bytes, content.substr(kMiB) + std::string(59, kCanary));
  read = file.read(content.size(), memory.buffer.span());
  EXPECT_TRUE(read);
  EXPECT_EQ(read.bytes(), 0u);
  read = file.read(0, memory.buffer.span(0, 0));
  EXPECT_TRUE(read);
}

TEST_F(Api, SmallFilesComeFromTheMds) {
  File file = Make("small");
  Memory memory(client_, 8);
  Result read = file.read(0, memory.buffer.span());
  EXPECT_EQ(read.path(), "mds");
  EXPECT_EQ(read.verification(), nacre::Verification::none);
  EXPECT_EQ(memory.bytes, "small" + std::string(3, kCanary));
}

TEST_F(Api, AnotherSessionSeesWhatWasWritten) {
  const std::string content = Pattern(3, 2 * kMiB);
  File file = Make(content);
  ClientOptions options;
  options.name = "another";
  Client other = Open(options);
  auto opened = other.open_file(name_);
  ASSERT_TRUE(opened) << opened.error().message();
  Memory memory(other, content.size());
  EXPECT_EQ(opened->read(0, memory.buffer.span()).bytes(), content.size());
  EXPECT_TRUE(memory.bytes == content);
  Memory change(client_, std::string("change"));
  EXPECT_EQ(file.write(1000, change.buffer.span()).bytes(), 6u);
  EXPECT_TRUE(opened->read(1000, memory.buffer.span(0, 6)));
  EXPECT_EQ(memory.bytes.substr(0, 6), "change");
}

TEST_F(Api, FuturesMayBeAskedOftenAndDropped) {
  const std::string content = Pattern(4, 3 * kMiB);
  File file = Make(content);
  Memory memory(client_, content.size());
  Future future = file.read_async(0, memory.buffer.span());
  EXPECT_EQ(future.get().bytes(), content.size());
  EXPECT_TRUE(future.ready());
  EXPECT_EQ(future.get().bytes(), content.size());
  EXPECT_TRUE(memory.bytes == content);
  for (int i = 0; i < 20; ++i) (void)file.read_async(0, memory.buffer.span());  // dropped at once
  EXPECT_FALSE(memory.buffer.release()) << "waits for them";
  std::fill(memory.bytes.begin(), memory.bytes.end(), kCanary);
  EXPECT_TRUE(memory.bytes == std::string(content.size(), kCanary)) << "nobody writes there any more";
}

TEST_F(Api, ABatchHasAStatusEach) {
  const std::string first = Pattern(5, kMiB), second = Pattern(6, 2 * kMiB);
  File a = Make(first), b = Make(second), closed = Make("closed");
  const nacre_file stale = closed.handle();
  ASSERT_FALSE(closed.close());
  Memory memory(client_, kMiB);
  std::vector<Extent> extents;
  std::string expected = memory.bytes;
  std::mt19937_64 random(7);
  for (size_t at = 0; at + 2000 < kMiB; at += 2000) {
    const bool from_first = random() % 2 == 0;
    const uint64_t offset = random() % (kMiB - 1500), length = random() % 1500;
    extents.push_back((from_first ? a : b).extent(offset, memory.buffer.span(at, length)));
    expected.replace(at, length, from_first ? first : second, offset, length);
  }
  const size_t good = extents.size();
  extents.emplace_back(stale, 0, memory.buffer.span(0, 1));
  extents.push_back(a.extent(0, memory.buffer.span(kMiB - 1, 2)));
  extents.push_back(a.extent(0, nacre::Span{{12345678}, 0, 1}));
  const std::vector<Result> results = nacre::readv(extents);
  ASSERT_EQ(results.size(), extents.size());
  for (size_t i = 0; i < good; ++i) EXPECT_TRUE(results[i]) << i << ": " << results[i].error().message();
  EXPECT_THAT(results[good], IsErrorSaying(EBADF, "not open"));
  EXPECT_THAT(results[good + 1], IsErrorSaying(EINVAL, "buffer of 1048576 bytes"));
  EXPECT_THAT(results[good + 2], IsErrorSaying(EBADF, "buffer 12345678"));
  EXPECT_TRUE(memory.bytes == expected);
  EXPECT_EQ(nacre::readv_async(extents).results().size(), extents.size());
  EXPECT_TRUE(nacre::readv({}).empty());
  EXPECT_THAT(Future().get(), IsErrorSaying(EINVAL, "no read"));
}

TEST_F(Api, RowsAreReadInOneCall) {
  const std::string content = Pattern(8, 4 * kMiB);
  File file = Make(content);
  Memory memory(client_, kMiB);
  std::string expected = memory.bytes;
  const Rows rows{.offset = 100, .length = 300, .count = 1000, .stride = 4000};
  for (size_t i = 0; i < rows.count; ++i) expected.replace(i * 400, 300, content, 100 + i * 4000, 300);
  const Extent strided(file.handle(), rows, memory.buffer.span(), 400);
  EXPECT_EQ(nacre::readv({&strided, 1}).front().bytes(), 300'000u);
  EXPECT_TRUE(memory.bytes == expected);

  std::string packed;
  for (size_t i = 0; i < rows.count; ++i) packed += content.substr(100 + i * 4000, 300);
  EXPECT_EQ(file.read(rows, memory.buffer.span(0, packed.size())).bytes(), packed.size());
  EXPECT_TRUE(memory.bytes.substr(0, packed.size()) == packed);

  Result past = file.read(Rows{content.size() - 10'000, 300, 4, 4000}, memory.buffer.span());
  EXPECT_EQ(past.bytes(), 900u) << "the fourth row begins behind the end";
  EXPECT_THAT(file.read(rows, memory.buffer.span(0, packed.size() - 1)), IsErrorSaying(EINVAL, "do not fit"));
  EXPECT_THAT(file.read(Rows{0, 300, 2, 200}, memory.buffer.span()), IsErrorSaying(EINVAL, "overlap"));
}

TEST_F(Api, ThreadsShareEverything) {
  const std::string content = Pattern(9, 4 * kMiB);
  File file = Make(content);
  Memory memory(client_, 8 * kMiB);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 50; ++i) {
        const uint64_t length = random() % 100'000, offset = random() % (content.size() - length);
        const Result read = file.read(offset, memory.buffer.span(t * kMiB + t, length));
        if (!read || memory.bytes.compare(t * kMiB + t, length, content, offset, length) != 0) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Api, AHandleStaysWithItsFile) {
  File old = Make(Pattern(10, kMiB));
  const std::string name = name_;
  ASSERT_FALSE(old.sync());
  auto again = client_.open_file(name, O_RDWR | O_TRUNC);
  ASSERT_TRUE(again);
  Memory memory(client_, 16);
  EXPECT_EQ(old.read(0, memory.buffer.span()).bytes(), 0u) << "cut meanwhile";
  EXPECT_THAT(client_.open_file(name, O_CREAT | O_EXCL | O_RDWR), IsError(EEXIST));
  EXPECT_THAT(client_.open_file("nothing/there"), IsErrorSaying(ENOENT, "nothing/there"));
  EXPECT_THAT(client_.open_file("/"), IsErrorSaying(EISDIR, "directory"));
  EXPECT_THAT(client_.open_file(name, O_DIRECTORY), IsErrorSaying(EINVAL, "flags"));
}

// --- bad use ---

TEST_F(Api, ClosedHandlesAreAnswered) {
  File file = Make(Pattern(11, kMiB));
  Memory memory(client_, 16);
  nacre_buffer released = memory.buffer.span().buffer;
  ASSERT_FALSE(memory.buffer.release());
  EXPECT_THAT(file.read(0, nacre::Span{released, 0, 16}), IsErrorSaying(EBADF, "buffer"));
  EXPECT_EQ(nacre_buffer_release(released), EBADF);
  EXPECT_EQ(nacre_file_close({0}), EBADF);
  EXPECT_THAT(nacre_error_message(), HasSubstr("zero"));
  EXPECT_EQ(nacre_future_wait({77777777}, 0), EBADF);
  ClientOptions options;
  options.name = "closed with a file and a buffer";
  Client other = Open(options);
  auto opened = other.open_file(name_);
  Memory others(other, 16);
  EXPECT_THAT(file.read(0, others.buffer.span()), IsErrorSaying(EINVAL, "another client"));
  ASSERT_FALSE(other.close());
  EXPECT_THAT(opened->read(0, others.buffer.span()), IsError(EBADF));
}

TEST_F(Api, MemoryThatCannotBeUsedIsRefused) {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  auto* pages = static_cast<char*>(
      ::mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  ::munmap(pages + 3 * page, page);
  EXPECT_THAT(client_.register_buffer(pages + page, 3 * page), IsErrorSaying(EFAULT, "nothing is mapped"));
  ::mprotect(pages + 2 * page, page, PROT_NONE);
  EXPECT_THAT(client_.register_buffer(pages + page, 2 * page), IsErrorSaying(EFAULT, "may not read"));
  EXPECT_THAT(client_.register_buffer(nullptr, 5), IsError(EINVAL));
  EXPECT_THAT(client_.register_buffer(pages, 0), IsError(EINVAL));

  ::mprotect(pages + page, page, PROT_READ);
  auto constant = client_.register_buffer(pages + page, page);
  ASSERT_TRUE(constant) << constant.error().message();
  File file = Make(Pattern(12, 100'000));
  EXPECT_THAT(file.read(0, constant->span()), IsErrorSaying(EFAULT, "read-only"));
  EXPECT_EQ(file.write(0, constant->span()).bytes(), page);
  EXPECT_FALSE(constant->release());
  ::munmap(pages, 3 * page);
}

TEST_F(Api, WithoutAGpuTheReasonIsSaid) {
  if (void* driver = ::dlopen("libcuda.so.1", RTLD_LAZY); driver != nullptr)
    GTEST_SKIP() << "there is a driver";
  File file = Make(Pattern(20, kMiB));
  Memory memory(client_, 64);
  EXPECT_THAT(file.read_on_stream(nullptr, 0, memory.buffer.span()).get(),
              IsErrorSaying(ENOENT, "no CUDA driver"));
  EXPECT_THAT(client_.capabilities()->device, HasSubstr("no CUDA driver"));
  EXPECT_FALSE(client_.capabilities()->read_to_device);
  // The kernel gives nobody the second page (vm.mmap_min_addr); any address further up may be mapped by
  // chance.
  EXPECT_THAT(client_.register_buffer(reinterpret_cast<void*>(4096), 64),
              IsErrorSaying(EFAULT, "no GPU's memory"));
}

TEST_F(Api, StructuresTellTheirSize) {
  File file = Make(Pattern(13, kMiB));
  Memory memory(client_, 64);
  struct Newer {
    nacre_extent extent = NACRE_EXTENT_INIT;
    uint64_t more = 0;
  } newer;
  newer.extent.struct_size = sizeof newer;
  newer.extent.file = file.handle();
  newer.extent.buffer = memory.buffer.span().buffer;
  newer.extent.length = 64;
  nacre_result result = NACRE_RESULT_INIT;
  EXPECT_EQ(nacre_readv(&newer.extent, 1, nullptr, &result), 0);
  newer.more = 1;
  EXPECT_EQ(nacre_readv(&newer.extent, 1, nullptr, &result), ENOTSUP) << "what it asks for is not known here";
  EXPECT_EQ(result.error, ENOTSUP);
  newer.extent.struct_size = 0;
  EXPECT_EQ(nacre_readv(&newer.extent, 1, nullptr, &result), EINVAL);
  EXPECT_THAT(nacre_error_message(), HasSubstr("_INIT"));
  // An older program's results end before the path.
  char older[offsetof(nacre_result, path) + 8];
  std::memset(older, kCanary, sizeof older);
  const uint64_t size = offsetof(nacre_result, path);
  std::memcpy(older, &size, sizeof size);
  EXPECT_EQ(nacre_read(file.handle(), 0, newer.extent.buffer, 0, 64, reinterpret_cast<nacre_result*>(older)),
            0);
  EXPECT_EQ(std::string(older + size, 8), std::string(8, kCanary));
}

// A result has room for the beginning of what is said.
TEST_F(Api, AMessageIsToBeHadInFull) {
  const std::string name(250, 'n');
  auto file = client_.open_file(name, O_RDWR | O_CREAT);
  ASSERT_TRUE(file) << file.error().message();
  ClientOptions options;
  options.name = "another client";
  Client other = Open(options);
  Memory memory(client_, 64), others(other, 64);
  EXPECT_THAT(file->read(0, others.buffer.span()), IsErrorSaying(EINVAL, name));
  EXPECT_THAT(file->read_async(0, others.buffer.span()).get(), IsErrorSaying(EINVAL, name));
  EXPECT_THAT(file->write(0, others.buffer.span()), IsErrorSaying(EINVAL, name));
  const Extent extents[] = {file->extent(0, memory.buffer.span()), file->extent(0, others.buffer.span())};
  EXPECT_THAT(nacre::readv(extents)[1], IsErrorSaying(EINVAL, name));

  nacre_result result = NACRE_RESULT_INIT;
  EXPECT_EQ(nacre_read(file->handle(), 0, others.buffer.span().buffer, 0, 64, &result), EINVAL);
  EXPECT_EQ(std::strlen(result.message), sizeof result.message - 1);
  EXPECT_THAT(nacre_error_message(), HasSubstr(name));
  EXPECT_EQ(std::string(nacre_error_message()).rfind(result.message, 0), 0u);
}

TEST_F(Api, AForkedChildIsToldSo) {
  File file = Make("content");
  const pid_t child = ::fork();
  if (child == 0) {
    uint64_t size = 0;
    const bool told = nacre_file_size(file.handle(), &size) == EPERM &&
                      std::string_view(nacre_error_message()).find("forked") != std::string_view::npos;
    ::_exit(told ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(*file.size(), 7u) << "the parent goes on";
}

TEST_F(Api, AddressesAreChecked) {
  EXPECT_THAT(Client::open("nonsense"), IsErrorSaying(EINVAL, "nonsense"));
  ClientOptions options;
  options.transport = "pigeons";
  EXPECT_THAT(Client::open(cluster_->mds(), options), IsErrorSaying(EINVAL, "pigeons"));
  EXPECT_THAT(Client::from_path("/"), IsErrorSaying(ENOTSUP, "not on a Nacre mount"));
  EXPECT_THAT(Client::from_path("/no/such/path"), IsErrorSaying(ENOENT, "/no/such/path"));
}

TEST_F(Api, CapabilitiesSayWhichPaths) {
  File file = Make(Pattern(14, kMiB));
  Memory memory(client_, 64);
  ASSERT_TRUE(file.read(0, memory.buffer.span()));
  auto capabilities = client_.capabilities();
  ASSERT_TRUE(capabilities) << capabilities.error().message();
  EXPECT_THAT(capabilities->paths, HasSubstr("oss.sock shm"));
  EXPECT_FALSE(capabilities->device.empty());
}

// --- cancelling ---

// While the MDS does not answer.
class Stopped : public Api {
 protected:
  Stopped() {
    ClientOptions options;
    options.name = "without leases";
    options.cache = false;
    other_ = Open(options);
  }
  void Stop() {
    cluster_->mds_process().Stop();
    stopped_ = true;
  }
  void Continue() {
    if (stopped_) cluster_->mds_process().Signal(SIGCONT);
    stopped_ = false;
  }
  ~Stopped() override { Continue(); }

  Client other_;
  bool stopped_ = false;
};

TEST_F(Stopped, AReadEndsWhenItIsCancelled) {
  const std::string content = Pattern(15, kMiB);
  File made = Make(content);
  auto file = other_.open_file(name_);
  ASSERT_TRUE(file);
  Memory memory(other_, kMiB);
  Stop();
  Future future = file->read_async(0, memory.buffer.span());
  EXPECT_FALSE(future.wait_for(50ms));
  future.cancel();
  EXPECT_THAT(future.get(), IsErrorSaying(ECANCELED, "cancelled"));
  EXPECT_FALSE(memory.buffer.release());
  Continue();
  EXPECT_EQ(file->size() ? *file->size() : 0, content.size()) << "the MDS has answered all there was";
  EXPECT_TRUE(memory.bytes == std::string(kMiB, kCanary));
}

TEST_F(Stopped, AReadEndsAtItsDeadline) {
  File made = Make(Pattern(16, kMiB));
  auto file = other_.open_file(name_);
  ASSERT_TRUE(file);
  Memory memory(other_, kMiB);
  Stop();
  EXPECT_THAT(file->read(0, memory.buffer.span(), {.timeout = 100ms}), IsErrorSaying(ETIMEDOUT, "100 ms"));
  Continue();
}

// --- servers that die ---

class Faults : public ApiTest {};

TEST_F(Faults, AnOssThatIsKilledIsWaitedFor) {
  const std::string content = Pattern(17, 8 * kMiB);
  File file = Make(content);
  ASSERT_FALSE(file.sync());
  std::atomic<bool> stop{false};
  std::atomic<int> reads{0}, wrong{0};
  std::vector<std::thread> readers;
  for (unsigned t = 0; t < 4; ++t) {
    readers.emplace_back([&, t] {
      std::mt19937_64 random(t);
      Memory memory(client_, kMiB);
      while (!stop) {
        const uint64_t length = random() % 500'000, offset = random() % (content.size() - length);
        const uint64_t at = random() % (kMiB - length);
        std::string expected(kMiB, kCanary);
        memory.bytes = expected;  // in place: the sizes are equal
        expected.replace(at, length, content, offset, length);
        const Result read = file.read(offset, memory.buffer.span(at, length));
        if (!read || memory.bytes != expected) ++wrong;
        ++reads;
      }
    });
  }
  for (int round = 0; round < 3; ++round) {
    const int before = reads;
    while (reads < before + 20) std::this_thread::yield();
    cluster_->KillOss();
    cluster_->StartOss();
  }
  const int before = reads;
  while (reads < before + 20) std::this_thread::yield();
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Faults, AReadThatWaitsForAnOssIsCancelled) {
  File file = Make(Pattern(18, 4 * kMiB));
  ASSERT_FALSE(file.sync());
  Memory memory(client_, 4 * kMiB);
  cluster_->KillOss();
  Future future = file.read_async(0, memory.buffer.span());
  EXPECT_FALSE(future.wait_for(200ms));
  future.cancel();
  ASSERT_TRUE(future.wait_for(20s));
  EXPECT_THAT(future.get(), IsError(ECANCELED));
  EXPECT_FALSE(memory.buffer.release());
  std::fill(memory.bytes.begin(), memory.bytes.end(), kCanary);
  cluster_->StartOss();
  Memory again(client_, 4 * kMiB);
  EXPECT_EQ(file.read(0, again.buffer.span()).bytes(), 4 * kMiB);
  EXPECT_TRUE(memory.bytes == std::string(4 * kMiB, kCanary)) << "nothing arrives late";
}

TEST_F(Faults, ADeadlineHoldsWhileAnOssIsSilent) {
  File file = Make(Pattern(19, 4 * kMiB));
  ASSERT_FALSE(file.sync());
  Memory memory(client_, 4 * kMiB);
  cluster_->oss_process().Stop();
  Future future = file.read_async(0, memory.buffer.span(), {.timeout = 300ms});
  EXPECT_TRUE(future.wait_for(10s));
  EXPECT_THAT(future.get(), IsError(ETIMEDOUT));
  std::fill(memory.bytes.begin(), memory.bytes.end(), kCanary);
  cluster_->oss_process().Signal(SIGCONT);
  Memory again(client_, 4 * kMiB);
  EXPECT_EQ(file.read(0, again.buffer.span()).bytes(), 4 * kMiB);
  EXPECT_TRUE(memory.bytes == std::string(4 * kMiB, kCanary)) << "nothing arrives late";
}

}  // namespace
}  // namespace nacre::test
