// Calls that their caller gives up (Peer::EndGivenUp), over every transport.
#include <gtest/gtest.h>

#include <atomic>

#include "tests/transport/transport_fixture.h"

namespace nacre {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::byte kBefore{0xaa}, kLate{0xbb};

// Puts into the memory when the gate is open. A call without memory is answered at once.
Task<void> PutWhenOpen(Gate gate, CallPtr call) {
  if (call->memory_kind() == CallMemory::kNone) {
    (void)co_await call->Reply(std::string());
    co_return;
  }
  gate.entered.Set({});
  co_await gate.open.Wait();
  Bytes data(call->memory_size(), kLate);
  std::vector<std::span<const std::byte>> buffers = {data};
  Status status = co_await call->Put(0, buffers);
  Status replied = co_await call->Reply(std::string("late"));
  gate.outcome.Set(status.ok() ? replied : status);
}

class GivingUpTest : public TransportTest {
 protected:
  using Ended = OneShot<StatusOr<std::string>>;

  void ListenWith(Gate gate) {
    Listen([gate](CallPtr call) { return PutWhenOpen(gate, std::move(call)); });
  }

  CallRequest IntoMemory(Bytes& memory) {
    return {.kind = CallMemory::kPutTarget,
            .memory = Whole(memory),
            .given_up = std::make_shared<std::atomic<bool>>(false)};
  }

  Ended Start(std::shared_ptr<Peer> peer, CallRequest request) {
    Ended ended;
    Spawn(executor(), [](std::shared_ptr<Peer> peer, CallRequest request, Ended ended) -> Task<void> {
      ended.Set(co_await peer->Call(std::move(request), 20s));
    }(std::move(peer), std::move(request), ended));
    return ended;
  }

  bool Answers(Peer& peer) {
    return Eventually([&] { return Call(peer, "").ok(); });
  }
};

// The server may be frozen, with a connection that looks well.
TEST_P(GivingUpTest, ACallEndsAtOnceAndIsNeverWrittenLate) {
  for (size_t size : {4096, 1 << 20}) {
    Gate gate;
    ListenWith(gate);
    auto peer = Connect();
    Bytes memory(size, kBefore);
    const CallRequest request = IntoMemory(memory);
    const Ended ended = Start(peer, request);
    Run(gate.entered);
    const Duration begin = RealClock().Now();
    request.given_up->store(true);
    peer->EndGivenUp();
    const Status status = Run(ended).status();
    EXPECT_TRUE(IsRetryable(status)) << status;
    // One that begins like this needs nobody to end it.
    const Status later = Run(Start(peer, request)).status();
    EXPECT_TRUE(IsRetryable(later)) << later;
    EXPECT_LT(RealClock().Now() - begin, 10s);
    gate.open.Set({});
    (void)Run(gate.outcome);
    EXPECT_TRUE(memory == Bytes(size, kBefore));
    EXPECT_TRUE(Answers(*peer));  // the peer is as good as before
    StopListening();
  }
}

TEST_P(GivingUpTest, WhatNobodyGivesUpGoesOn) {
  Gate gate;
  ListenWith(gate);
  auto peer = Connect();
  Bytes memory(4096, kBefore);
  const Ended ended = Start(peer, IntoMemory(memory));
  Run(gate.entered);
  peer->EndGivenUp();
  ASSERT_TRUE(Answers(*Connect()));  // by then it would have ended
  EXPECT_FALSE(ended.IsSet());
  gate.open.Set({});
  const StatusOr<std::string> reply = Run(ended);
  EXPECT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(memory == Bytes(4096, kLate));
}

// Calls that are given up while they look for a connection, or just when they begin.
TEST_P(GivingUpTest, NoneIsForgotten) {
  constexpr size_t kCalls = 20;
  std::vector<Gate> gates;
  for (size_t i = 0; i < kCalls; ++i) gates.emplace_back();
  Listen([gates](CallPtr call) {
    const Gate gate = gates[std::stoul(call->body())];
    return PutWhenOpen(gate, std::move(call));
  });
  auto peer = Connect();
  std::vector<Bytes> memory(kCalls, Bytes(4096, kBefore));
  std::vector<Ended> ended;
  const GiveUpFlag flag = std::make_shared<std::atomic<bool>>(false);
  const Duration begin = RealClock().Now();
  for (size_t i = 0; i < kCalls; ++i) {
    CallRequest request = IntoMemory(memory[i]);
    request.body = std::to_string(i);
    request.given_up = flag;
    ended.push_back(Start(peer, std::move(request)));
  }
  flag->store(true);
  peer->EndGivenUp();
  for (Ended& call : ended) EXPECT_FALSE(Run(call).ok());
  EXPECT_LT(RealClock().Now() - begin, 10s);
  for (const Gate& gate : gates) gate.open.Set({});
  for (const Bytes& bytes : memory) EXPECT_TRUE(bytes == Bytes(4096, kBefore));
}

INSTANTIATE_TEST_SUITE_P(All, GivingUpTest, ::testing::ValuesIn(AllKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre
