// A client that breaks the rules of the data plane over verbs gets its queue pair ended and counted; the
// server and its other clients go on. Needs an RDMA device: tests/rdma/transport.sh.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "common/metrics.h"
#include "common/random.h"
#include "tests/transport/transport_fixture.h"
#include "tests/transport/verbs/fake_rdma.h"
#include "tests/transport/verbs/raw_link.h"
#include "transport/tcp/client_connection.h"
#include "transport/verbs/rail_set.h"

namespace nacre::verbs {
namespace {

using Bytes = std::vector<std::byte>;

class HostileClientTest : public TransportTest {
 protected:
  // `change`: of what the server has said of itself.
  static Task<StatusOr<std::shared_ptr<RawLink>>> Establish(HostileClientTest* test,
                                                            std::function<void(Endpoint*)> change) {
    std::string address = test->address();
    CO_ASSIGN_OR_RETURN(StreamSocket socket, co_await Dial(test->executor(), RealClock(), address, 5s));
    auto control = std::make_shared<ClientConnection>(std::move(socket), address, RealClock());
    std::string who = "the test";
    CO_RETURN_IF_ERROR(co_await control->Greet(std::move(who), 5s));
    CO_ASSIGN_OR_RETURN(std::shared_ptr<Rail> rail, test->rails()->Choose(std::nullopt, 0));
    auto end = [control](const Status& why) { control->Shutdown(why); };
    auto link = std::make_shared<RawLink>(std::move(rail), test->executor(), end);
    CO_RETURN_IF_ERROR(link->Open());
    absl::AnyInvocable<void(const Status&)> closed = [weak = std::weak_ptr(link)](const Status& why) {
      if (auto link = weak.lock()) link->Shutdown(why);
    };
    std::string request = EncodeEndpoint(link->local());
    CO_ASSIGN_OR_RETURN(std::string reply,
                        co_await control->Attach(std::move(request), 5s, std::move(closed)));
    CO_ASSIGN_OR_RETURN(Endpoint remote, ParseEndpoint(reply));
    if (change) change(&remote);
    CO_RETURN_IF_ERROR(link->Join(remote));
    co_return link;
  }

  std::shared_ptr<RawLink> Attach(std::function<void(Endpoint*)> change = nullptr) {
    StatusOr<std::shared_ptr<RawLink>> link = Run(Establish(this, std::move(change)));
    EXPECT_TRUE(link.ok()) << link.status();
    return link.ok() ? *link : nullptr;
  }

  void ExpectServerGoesOn() {
    auto peer = Connect();
    StatusOr<std::string> reply = Call(*peer, "still there");
    EXPECT_TRUE(reply.ok()) << reply.status();
  }

  void TearDown() override {
    if (rails_ != nullptr) rails_->Stop();
    TransportTest::TearDown();
  }

  const std::shared_ptr<RailSet>& rails() {
    if (rails_ == nullptr) rails_ = RailSet::Make(executor(), RealClock(), {});
    return rails_;
  }

 private:
  std::shared_ptr<RailSet> rails_;
};

TEST_P(HostileClientTest, AMalformedEndpointIsRefused) {
  Listen(Echo);
  for (const std::string& bad :
       {std::string(), std::string("garbage"), std::string(44, '\0'), std::string(1024, 'x')}) {
    Status refused = Run([](HostileClientTest* test, std::string bad) -> Task<Status> {
      std::string address = test->address();
      CO_ASSIGN_OR_RETURN(StreamSocket socket, co_await Dial(test->executor(), RealClock(), address, 5s));
      auto control = std::make_shared<ClientConnection>(std::move(socket), address, RealClock());
      std::string who = "the test";
      CO_RETURN_IF_ERROR(co_await control->Greet(std::move(who), 5s));
      absl::AnyInvocable<void(const Status&)> ignore = [](const Status&) {};
      StatusOr<std::string> reply = co_await control->Attach(std::move(bad), 5s, std::move(ignore));
      control->Shutdown(absl::CancelledError("the test is done"));
      co_return reply.status();
    }(this, bad));
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  }
  ExpectServerGoesOn();
}

TEST_P(HostileClientTest, MessagesThatMayNotComeEndTheLink) {
  Listen(Echo);
  Counter& errors = GetCounter("transport.verbs.protocol_errors");
  const std::pair<FragmentKind, std::string> messages[] = {
      {FragmentKind::kReply, "a reply"},
      {FragmentKind::kPong, ""},
      {FragmentKind::kCall, ""},
      {FragmentKind::kCall, std::string(8, '\xff')},
      {FragmentKind::kCall, std::string("\1\0\0\0\5\0\0\0", 8)},
      {FragmentKind::kCall, std::string(kMaxMessageSize, 'x')},
      {FragmentKind::kCredit, ""},
  };
  for (const auto& [kind, message] : messages) {
    const int64_t before = errors.Get();
    auto link = Attach();
    ASSERT_NE(link, nullptr);
    EXPECT_TRUE(link->Send(kind, 0, 1, message));
    EXPECT_FALSE(Run(link->closed).ok());
    EXPECT_GT(errors.Get(), before) << static_cast<int>(kind) << " " << message.size();
  }
  ExpectServerGoesOn();
}

// The caller's keys and ranges are checked by its own device; whoever lies about them harms only the call.
TEST_P(HostileClientTest, WrongKeysAndRangesEndTheLink) {
  OneShot<Status> outcome;
  Listen([&outcome](CallPtr call) -> Task<void> {
    return [](OneShot<Status> outcome, CallPtr call) -> Task<void> {
      Bytes data(call->memory_size(), std::byte{0xbb});
      const std::span<const std::byte> out(data);
      Status status = OkStatus();
      if (!data.empty()) status = co_await call->Put(0, std::span(&out, 1));
      (void)co_await call->Reply(std::string());
      if (!data.empty()) outcome.Set(status);
    }(outcome, std::move(call));
  });
  Bytes memory(8192, std::byte{0xaa});
  auto region = rails()->regions()->Register(memory.data(), 4096);
  ASSERT_TRUE(region.ok());
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  auto rail = rails()->Choose(std::nullopt, 0);
  ASSERT_TRUE(rail.ok());
  const uint32_t key = rails()->regions()->Find((*rail)->domain(), memory.data(), 4096)->remote;
  rail = absl::CancelledError("not needed any more");
  for (RemoteSpan span : {RemoteSpan{address, 4096, key ^ 0x100}, RemoteSpan{address + 1, 4096, key},
                          RemoteSpan{address + 4096, 16, key}, RemoteSpan{1, 16, key}}) {
    outcome = OneShot<Status>();
    auto link = Attach();
    ASSERT_NE(link, nullptr);
    const RemoteSpans spans = {span};
    EXPECT_TRUE(link->Send(FragmentKind::kCall, 0, 1, EncodeCall(CallMemory::kPutTarget, spans, "").value()));
    EXPECT_EQ(Run(outcome).code(), absl::StatusCode::kUnavailable);
    EXPECT_FALSE(Run(link->closed).ok());
  }
  EXPECT_TRUE(memory == Bytes(8192, std::byte{0xaa}));
  ExpectServerGoesOn();
}

// Not even of nothing, for which a device asks no key.
TEST_P(HostileClientTest, ClientsCannotReachTheServersMemory) {
  Listen(Echo);
  for (ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE_WITH_IMM}) {
    auto link = Attach();
    ASSERT_NE(link, nullptr);
    Transfer transfer;
    transfer.opcode = opcode;
    transfer.parts.resize(1);
    EXPECT_EQ(Run(link->Run(&transfer)).code(), absl::StatusCode::kUnavailable) << opcode;
    EXPECT_FALSE(Run(link->closed).ok());
  }
  ExpectServerGoesOn();
}

TEST_P(HostileClientTest, MoreCallsThanAllowedEndTheLink) {
  OneShot<Unit> open;
  std::atomic<int> started = 0;
  Listen([&](CallPtr call) -> Task<void> {
    return [](OneShot<Unit> open, std::atomic<int>& started, CallPtr call) -> Task<void> {
      if (call->body() == "wait" && ++started == 1) co_await open.Wait();
      (void)co_await call->Reply(std::string());
    }(open, started, std::move(call));
  });
  auto link = Attach();
  ASSERT_NE(link, nullptr);
  // The same number twice while the first is in progress.
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(link->Send(FragmentKind::kCall, 0, 1, EncodeCall(CallMemory::kNone, {}, "wait").value()));
  }
  EXPECT_FALSE(Run(link->closed).ok());
  EXPECT_EQ(started, 1);
  open.Set({});
  ExpectServerGoesOn();
}

// It takes receives that others need for a moment; these wait, and lose nothing.
TEST_P(HostileClientTest, AFloodEndsNoOtherLink) {
  Listen(Echo);
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "before").ok());
  const int64_t lost = GetCounter("transport.verbs.client.connections_lost").Get();
  auto link = Attach([](Endpoint* server) { server->credits = 10'000; });
  ASSERT_NE(link, nullptr);
  const std::string call = EncodeCall(CallMemory::kNone, {}, std::string(500'000, 'b')).value();
  for (uint64_t id = 1; id < 20; ++id) link->Send(FragmentKind::kCall, 0, id, call);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(Call(*peer, "meanwhile").ok());
  link->Shutdown(absl::CancelledError("that was it"));
  EXPECT_FALSE(Run(link->closed).ok());
  EXPECT_EQ(GetCounter("transport.verbs.client.connections_lost").Get(), lost);
  ExpectServerGoesOn();
}

// A client that takes no grants and sends on is refused, and counted.
TEST_P(HostileClientTest, MoreThanItWasGrantedEndsTheLink) {
  if (FakeRdma::Current() == nullptr) GTEST_SKIP() << "a real device takes the grants in any case";
  Listen(Echo);
  Counter& beyond = GetCounter("transport.verbs.fragments_beyond_credits");
  const int64_t before = beyond.Get();
  auto link = Attach([](Endpoint* server) { server->credits = 10'000; });
  ASSERT_NE(link, nullptr);
  FakeRdma::Current()->MakeDeaf(link->local().queue_pair);
  const std::string call = EncodeCall(CallMemory::kNone, {}, std::string(500'000, 'b')).value();
  for (uint64_t id = 1; id < 20; ++id) link->Send(FragmentKind::kCall, 0, id, call);
  EXPECT_FALSE(Run(link->closed).ok());
  EXPECT_EQ(beyond.Get(), before + 1);
  ExpectServerGoesOn();
}

// Moves a little in the direction that the call asks for.
Task<void> MoveAndReply(CallPtr call) {
  Bytes data(std::min<uint64_t>(call->memory_size(), 4096));
  const std::span<std::byte> in(data);
  const std::span<const std::byte> out(data);
  if (call->memory_kind() == CallMemory::kPutTarget) (void)co_await call->Put(0, std::span(&out, 1));
  if (call->memory_kind() == CallMemory::kGetSource) (void)co_await call->Get(0, std::span(&in, 1));
  (void)co_await call->Reply(std::string());
}

// Does to a server that lives what the fuzz target does to the parsers alone: sends fragments with some bytes
// changed, or cut short.
TEST_P(HostileClientTest, WhateverAFragmentSaysTheServerGoesOn) {
  Listen(MoveAndReply);
  SeededRandom random(1);
  Bytes memory(2 * kMinReceive);
  auto region = rails()->regions()->Register(memory.data(), memory.size());
  ASSERT_TRUE(region.ok());
  auto rail = rails()->Choose(std::nullopt, 0);
  ASSERT_TRUE(rail.ok());
  const MemoryKeys keys = rails()->regions()->Find((*rail)->domain(), memory.data(), memory.size()).value();
  rail = absl::CancelledError("not needed any more");
  const RemoteSpans spans(
      3, RemoteSpan{reinterpret_cast<uint64_t>(memory.data()) + kMinReceive, 64, keys.remote});

  Counter& errors = GetCounter("transport.verbs.protocol_errors");
  const int64_t before = errors.Get();
  std::shared_ptr<RawLink> link;
  const int fragments = FakeRdma::Current() != nullptr ? 500 : 60;
  for (int i = 0; i < fragments; ++i) {
    if (link == nullptr || link->closing()) link = Attach();
    ASSERT_NE(link, nullptr);
    const CallMemory kind = random.Below(2) == 0 ? CallMemory::kPutTarget : CallMemory::kGetSource;
    const bool with_reply = kind == CallMemory::kPutTarget && random.Below(2) == 0;
    const std::string call =
        EncodeCall(kind, std::span(spans).first(with_reply ? 1 : 3), "body", with_reply).value();
    FragmentHeader header{FragmentKind::kCall, 0, static_cast<uint16_t>(call.size()), 0,
                          random.Next(),       0, static_cast<uint32_t>(call.size())};
    EncodeFragmentHeader(header, memory.data());
    std::memcpy(memory.data() + kFragmentHeaderSize, call.data(), call.size());
    auto size = static_cast<uint32_t>(kFragmentHeaderSize + call.size());
    for (uint64_t k = random.Below(4); k > 0; --k) memory[random.Below(size)] = std::byte(random.Next());
    if (random.Below(8) == 0) size = static_cast<uint32_t>(random.Below(size));
    Transfer transfer;
    transfer.opcode = IBV_WR_SEND;
    transfer.parts.resize(1);
    transfer.parts[0].local.push_back({reinterpret_cast<uint64_t>(memory.data()), size, keys.local});
    (void)Run(link->Run(&transfer));
  }
  EXPECT_GT(errors.Get(), before);
  link->Shutdown(absl::CancelledError("that was it"));
  EXPECT_FALSE(Run(link->closed).ok());
  ExpectServerGoesOn();
}

INSTANTIATE_TEST_SUITE_P(Device, HostileClientTest, ::testing::ValuesIn(VerbsKinds()),
                         [](const auto& info) { return info.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HostileClientTest);

}  // namespace
}  // namespace nacre::verbs
