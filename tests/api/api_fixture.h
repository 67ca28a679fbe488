// The fixture of libnacre's tests: a cluster of processes for each suite, a client, memory full of canaries.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <nacre/nacre.hpp>
#include <random>
#include <string>
#include <thread>

#include "tests/api/cluster.h"

namespace nacre::test {

using namespace std::chrono_literals;
using testing::HasSubstr;

inline constexpr size_t kMiB = 1 << 20;
inline constexpr char kCanary = '\xA5';

MATCHER_P(IsError, code, "") {
  const Error error = arg.error();
  *result_listener << error.code() << ": " << error.message();
  return error.code() == code;
}
MATCHER_P2(IsErrorSaying, code, text, "") {
  const Error error = arg.error();
  *result_listener << error.code() << ": " << error.message();
  return error.code() == code && error.message().find(text) != std::string::npos;
}

inline std::string Pattern(unsigned seed, size_t size) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, size - i));
  }
  return bytes;
}

// Registered memory full of canaries.
struct Memory {
  Memory(const Client& client, size_t size) : bytes(size, kCanary) {
    auto registered = client.register_buffer(bytes.data(), size);
    EXPECT_TRUE(registered) << registered.error().message();
    if (registered) buffer = *std::move(registered);
  }
  Memory(const Client& client, std::string content) : bytes(std::move(content)) {
    buffer = *client.register_buffer(bytes.data(), bytes.size());
  }

  std::string bytes;
  Buffer buffer;
};

class ApiTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { StartCluster({}); }
  static void StartCluster(std::vector<std::string> oss_options) {
    cluster_ = std::make_unique<Cluster>(std::move(oss_options));
    // Until files can be made: an OST has registered.
    const auto end = std::chrono::steady_clock::now() + 60s;
    for (bool ready = false; !ready && std::chrono::steady_clock::now() < end;) {
      auto client = Client::open(cluster_->mds());
      ready = client && client->open_file("ready", O_CREAT | O_RDWR);
      std::this_thread::sleep_for(20ms);
    }
  }
  static void TearDownTestSuite() { cluster_.reset(); }

  ApiTest() : client_(Open()) {}

  static Client Open(const ClientOptions& options = {}) {
    auto client = Client::open(cluster_->mds(), options);
    EXPECT_TRUE(client) << client.error().message();
    return client ? *std::move(client) : Client();
  }

  // A file of this test's own with this content.
  File Make(const std::string& content) {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    const std::string name = test->name() + std::to_string(++files_);
    auto file = client_.open_file(name, O_RDWR | O_CREAT | O_EXCL);
    EXPECT_TRUE(file) << file.error().message();
    if (!file) return File();
    name_ = name;
    if (content.empty()) return *std::move(file);
    Memory memory(client_, content);
    Result written = file->write(0, memory.buffer.span());
    EXPECT_EQ(written.bytes(), content.size()) << written.error().message();
    return *std::move(file);
  }

  static inline std::unique_ptr<Cluster> cluster_;
  Client client_;
  std::string name_;  // of the last file made
  int files_ = 0;
};

}  // namespace nacre::test
