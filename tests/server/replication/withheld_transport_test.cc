// Calls to OSSes wait until what was changed before them is kept.
#include "server/replication/withheld_transport.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "tests/sim/world.h"

namespace nacre::replication {
namespace {

class TestAuthority : public Authority {
 public:
  bool MayServe() const override { return true; }
  Task<Status> AwaitAuthority() override { co_return OkStatus(); }
  void WhenKept(absl::AnyInvocable<void(bool)> done) override {
    if (!pending) return done(true);
    waiting.push_back(std::move(done));
  }
  void End(bool kept) {
    pending = false;
    for (auto& done : std::exchange(waiting, {})) done(kept);
  }

  bool pending = false;
  std::vector<absl::AnyInvocable<void(bool)>> waiting;
};

class EchoPeer : public Peer {
 public:
  explicit EchoPeer(std::vector<Duration>* calls) : calls_(calls) {}
  Task<StatusOr<std::string>> Call(CallRequest request, Duration timeout) override {
    calls_->push_back(timeout);
    co_return request.body;
  }
  PathInfo path() const override { return {"echo", ""}; }
  bool connected() const override { return true; }
  std::string address() const override { return "there"; }
  void Close() override { closed = true; }

  bool closed = false;

 private:
  std::vector<Duration>* const calls_;
};

class EchoTransport : public Transport {
 public:
  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte*, size_t) override {
    return absl::UnimplementedError("registered");
  }
  StatusOr<std::shared_ptr<Peer>> Connect(const std::string& address) override {
    if (address != "there") return absl::InvalidArgumentError(address);
    return peer = std::make_shared<EchoPeer>(&calls);
  }
  StatusOr<std::unique_ptr<Listener>> Listen(const std::string&, CallHandler) override {
    return absl::UnimplementedError("listening");
  }

  std::shared_ptr<EchoPeer> peer;
  std::vector<Duration> calls;  // their timeouts
};

class WithheldTransportTest : public testing::Test {
 protected:
  ~WithheldTransportTest() override { world.KillAll(); }

  std::shared_ptr<std::optional<StatusOr<std::string>>> Begin(Duration timeout = 10s) {
    auto result = std::make_shared<std::optional<StatusOr<std::string>>>();
    auto call = [](std::shared_ptr<Peer> peer, Duration timeout) -> Task<StatusOr<std::string>> {
      CallRequest request;
      request.body = "hello";
      co_return co_await peer->Call(std::move(request), timeout);
    };
    Spawn(process->executor(), call(peer, timeout),
          [result](StatusOr<std::string> reply) { *result = std::move(reply); });
    world.RunFor(1us);
    return result;
  }

  sim::World world{1};
  sim::Process* const process = world.Start(1, "mds");
  EchoTransport below;
  std::shared_ptr<TestAuthority> authority = std::make_shared<TestAuthority>();
  std::shared_ptr<Transport> transport = NewWithheldTransport(below, authority, process->clock());
  std::shared_ptr<Peer> peer = *transport->Connect("there");
};

TEST_F(WithheldTransportTest, ACallGoesOutAtOnceWhenNothingIsUnderWay) {
  const auto reply = Begin();
  ASSERT_TRUE(reply->has_value());
  EXPECT_EQ((*reply)->value(), "hello");
}

TEST_F(WithheldTransportTest, ACallWaitsForWhatWasChangedBeforeIt) {
  authority->pending = true;
  const auto reply = Begin();
  world.RunFor(4s);
  EXPECT_FALSE(reply->has_value());
  EXPECT_TRUE(below.calls.empty());
  authority->End(true);
  world.RunFor(1us);
  ASSERT_TRUE(reply->has_value());
  EXPECT_EQ((*reply)->value(), "hello");
  ASSERT_EQ(below.calls.size(), 1u);
  EXPECT_LE(below.calls[0], 6s) << "the time that it has waited is its own";
  EXPECT_GT(below.calls[0], 5s);
}

TEST_F(WithheldTransportTest, ACallDoesNotWaitLongerThanItsTime) {
  authority->pending = true;
  const auto reply = Begin(2s);
  world.RunFor(3s);
  ASSERT_TRUE(reply->has_value());
  EXPECT_EQ(ToErrno((*reply)->status()), ETIMEDOUT);
  authority->End(true);
  world.RunFor(1s);
  EXPECT_TRUE(below.calls.empty()) << "nobody waits for its answer";
}

TEST_F(WithheldTransportTest, WhatIsNeverKeptIsNeverAskedFor) {
  authority->pending = true;
  const auto reply = Begin();
  authority->End(false);
  world.RunFor(1us);
  ASSERT_TRUE(reply->has_value());
  EXPECT_TRUE(IsRetryable((*reply)->status())) << (*reply)->status();
  EXPECT_TRUE(below.calls.empty());
}

TEST_F(WithheldTransportTest, TheRestIsThatOfTheTransport) {
  EXPECT_EQ(peer->path().path, "echo");
  EXPECT_EQ(peer->address(), "there");
  EXPECT_TRUE(peer->connected());
  peer->Close();
  EXPECT_TRUE(below.peer->closed);
  EXPECT_TRUE(absl::IsInvalidArgument(transport->Connect("elsewhere").status()));
  EXPECT_EQ(transport->Register(nullptr, 0).status().message(), "registered");
  EXPECT_EQ(transport->Listen("", {}).status().message(), "listening");
}

}  // namespace
}  // namespace nacre::replication
