// The memory that an MDS keeps for many clients that read one tree.
#include <malloc.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "tests/server/metadata/lease_clients.h"

namespace nacre::mds {
namespace {

constexpr int kDirectories = 5;

class ManyClients : public testing::Test {
 protected:
  static MetadataOptions Options() {
    MetadataOptions options = WithLeases();
    options.session_timeout = std::chrono::hours(100);
    options.lease = std::chrono::hours(100);
    return options;
  }

  ManyClients() : harness_(2, Options()) {
    TestClient writer(harness_);
    for (int i = 0; i < kDirectories; ++i) {
      directories_.push_back(FidOf(writer.Mkdir(kRootFid, "d" + std::to_string(i))));
      EXPECT_THAT(writer.Mknod(directories_.back(), "f", S_IFREG | 0644), IsOk());
    }
    harness_.RunFor(std::chrono::minutes(1));  // nobody changes anything any more
  }

  // Everybody asks for READ of each directory.
  void Read(TestClient& client) {
    for (Fid directory : directories_) {
      proto::MetadataRequest request;
      *request.mutable_lookup()->mutable_parent() = ToProto(directory);
      request.mutable_lookup()->set_name("f");
      request.mutable_lookup()->set_want_lease(true);
      const proto::MetadataReply reply = client.Call(client.Prepare(std::move(request)));
      ASSERT_THAT(reply, IsOk());
      ASSERT_EQ(reply.directory_leases_size(), 1);
    }
  }

  // Bytes for each of so many more clients, the test's own part of them included.
  uint64_t BytesOfEach(int count) {
    const size_t before = mallinfo2().uordblks;
    for (int i = 0; i < count; ++i) {
      clients_.push_back(std::make_unique<TestClient>(harness_));
      Read(*clients_.back());
    }
    return (mallinfo2().uordblks - before) / static_cast<uint64_t>(count);
  }

  Harness harness_;
  std::vector<Fid> directories_;
  std::vector<std::unique_ptr<TestClient>> clients_;
};

TEST_F(ManyClients, OneMoreTakesNoMoreThanThoseBefore) {
  if (mallinfo2().uordblks == 0) GTEST_SKIP() << "this build's malloc does not say what it has given out";
  (void)BytesOfEach(100);
  const uint64_t few = BytesOfEach(1000);
  const uint64_t many = BytesOfEach(9000);
  std::printf("%d bytes for each of 1,000 clients, %d for each of 9,000 more\n", static_cast<int>(few),
              static_cast<int>(many));
  EXPECT_LE(many, few + few / 5);
  EXPECT_LE(many, 4'000u);
}

}  // namespace
}  // namespace nacre::mds
