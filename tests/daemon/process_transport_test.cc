#include "daemon/process_transport.h"

#include <gtest/gtest.h>

#include <absl/strings/match.h>

#include <cstdlib>
#include <filesystem>

#include "common/runtime.h"

namespace nacre {
namespace {

Task<void> Echo(std::shared_ptr<IncomingCall> call) {
  std::string body = call->body();
  std::string text = "put " + body;
  std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  Status put = co_await call->Put(0, std::span(&bytes, 1));
  EXPECT_TRUE(put.ok()) << put;
  Status replied = co_await call->Reply(std::move(body));
  EXPECT_TRUE(replied.ok()) << replied;
}

class ProcessTransportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/nacre-transport-test.XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Calls "hello" with memory to put into; the path that it took.
  std::string CallThrough(Transport& transport, const std::string& address) {
    auto peer = transport.Connect(address);
    EXPECT_TRUE(peer.ok()) << peer.status();
    if (!peer.ok()) return "";
    std::string memory(16, '.');
    auto region = transport.Register(reinterpret_cast<std::byte*>(memory.data()), memory.size());
    CallRequest request{"hello", CallMemory::kPutTarget, {{*region, 0, memory.size()}}};
    auto reply = runtime_.Run((*peer)->Call(std::move(request), 5s));
    EXPECT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply.value_or(""), "hello");
    EXPECT_EQ(memory, "put hello.......");
    return (*peer)->path().path;
  }

  Runtime runtime_{2};
  std::string directory_;
};

TEST_F(ProcessTransportTest, ReachesItsOwnListenersDirectlyAndOthersBySocket) {
  auto own = MakeProcessTransport(runtime_.executor(), RealClock());
  auto other = MakeProcessTransport(runtime_.executor(), RealClock());
  for (const std::string& address : {"unix:" + directory_ + "/socket", std::string("127.0.0.1:0")}) {
    auto listener = own->Listen(address, Echo);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_FALSE(absl::StartsWith((*listener)->address(), "inproc"));
    EXPECT_EQ(CallThrough(*own, (*listener)->address()), "inproc");
    EXPECT_NE(CallThrough(*other, (*listener)->address()), "inproc");
  }
  auto named = own->Listen("inproc:name", Echo);
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(CallThrough(*own, "inproc:name"), "inproc");
}

}  // namespace
}  // namespace nacre
