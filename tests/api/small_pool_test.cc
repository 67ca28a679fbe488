// A server whose pool is as small as it may be, asked for much more at once: every request ends, whichever
// way its bytes take, and leaves the pool to the others.
#include "tests/api/api_fixture.h"
#include "tests/api/device_memory.h"

namespace nacre::test {
namespace {

constexpr size_t kFileBytes = 64 * kMiB;
constexpr auto kPatience = 60s;  // far more than the bytes take, less than a client would repeat its calls

class SmallPool : public ApiTest, public testing::WithParamInterface<const char*> {
 protected:
  static void SetUpTestSuite() {
    StartCluster({"--pool", "8M"});
    ::setenv("NACRE_CUDA_LIBRARY", Driver::Library().c_str(), 1);
    Driver::Get().Use(0);
  }
  static void TearDownTestSuite() {
    ::unsetenv("NACRE_CUDA_LIBRARY");
    ApiTest::TearDownTestSuite();
  }

  // A client with the smallest cache, over the path that is the test's parameter.
  static Client OpenOverPath() {
    ClientOptions options;
    options.transport = GetParam();
    options.cache_bytes = 8 * kMiB;
    return Open(options);
  }

  // The content of the file that all tests read. It lies at the OSTs and in no client's cache.
  static const std::string& Content() {
    static const std::string content = Pattern(31, kFileBytes);
    return content;
  }
  static File OpenFile(Client& client) {
    static bool made = false;
    if (!std::exchange(made, true)) {
      Client writer = Open();
      auto file = writer.open_file("content", O_RDWR | O_CREAT);
      Memory memory(writer, Content());
      EXPECT_EQ(file->write(0, memory.buffer.span()).bytes(), kFileBytes);
      EXPECT_FALSE(file->sync());
    }
    auto file = client.open_file("content");
    EXPECT_TRUE(file) << file.error().message();
    return *std::move(file);
  }
};

INSTANTIATE_TEST_SUITE_P(Path, SmallPool, testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(SmallPool, OneReadOfManyTimesThePool) {
  Client client = OpenOverPath();
  File file = OpenFile(client);
  for (int round = 0; round < 2; ++round) {
    Memory memory(client, kFileBytes);
    Result read = file.read(0, memory.buffer.span(), {.timeout = kPatience});
    ASSERT_EQ(read.bytes(), kFileBytes) << read.error().message();
    EXPECT_TRUE(memory.bytes == Content());
  }
}

TEST_P(SmallPool, OneReadOfManyScatteredPieces) {
  Client client = OpenOverPath();
  File file = OpenFile(client);
  constexpr size_t kPiece = 48 << 10;  // so that gaps are between them
  std::vector<Extent> extents;
  Memory memory(client, kFileBytes);
  for (size_t at = 0; at + kPiece <= kFileBytes; at += 64 << 10) {
    extents.push_back(file.extent(at, memory.buffer.span(at, kPiece)));
  }
  for (const Result& read : nacre::readv(extents, {.timeout = kPatience}))
    ASSERT_EQ(read.bytes(), kPiece) << read.error().message();
  std::string expected(kFileBytes, kCanary);
  for (size_t at = 0; at + kPiece <= kFileBytes; at += 64 << 10)
    expected.replace(at, kPiece, Content(), at, kPiece);
  EXPECT_TRUE(memory.bytes == expected);
}

TEST_P(SmallPool, ReadsIntoDeviceMemory) {
  Client client = OpenOverPath();
  File file = OpenFile(client);
  DeviceMemory memory(kFileBytes);
  auto buffer = client.register_buffer(memory.data(), memory.size());
  ASSERT_TRUE(buffer);
  Result read = file.read(0, buffer->span(), {.timeout = kPatience});
  ASSERT_EQ(read.bytes(), kFileBytes) << read.error().message();
  EXPECT_TRUE(memory.bytes() == Content());
}

// Each client is a session of its own, as another process would be.
TEST_P(SmallPool, ManyClientsReadAndWriteAtOnce) {
  Client first = OpenOverPath();
  OpenFile(first);
  constexpr int kClients = 8, kReadersOfEach = 2;
  constexpr size_t kShare = 16 * kMiB;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  std::vector<Client> clients;
  for (int i = 0; i < kClients; ++i) clients.push_back(OpenOverPath());
  for (int i = 0; i < kClients; ++i) {
    for (int reader = 0; reader < kReadersOfEach; ++reader) {
      threads.emplace_back([&, i, reader] {
        auto file = clients[i].open_file("content");
        Memory memory(clients[i], kShare);
        const size_t at = (i * kReadersOfEach + reader) * 5 * kMiB % (kFileBytes - kShare);
        Result read = file->read(at, memory.buffer.span(), {.timeout = kPatience});
        if (read.bytes() != kShare || memory.bytes != Content().substr(at, kShare)) ++wrong;
      });
    }
    threads.emplace_back([&, i] {
      const std::string own = Pattern(100 + i, kShare);
      auto file = clients[i].open_file(GetParam() + std::to_string(i), O_RDWR | O_CREAT);
      Memory memory(clients[i], own);
      if (file->write(0, memory.buffer.span()).bytes() != kShare || file->sync()) ++wrong;
      Memory back(clients[i], kShare);
      if (file->read(0, back.buffer.span(), {.timeout = kPatience}).bytes() != kShare || back.bytes != own)
        ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace nacre::test
