// Clients that are frozen: their machines answer, they do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "common/metrics.h"
#include "tests/transport/tcp/raw_socket.h"
#include "tests/transport/transport_fixture.h"
#include "transport/tcp/tcp_transport.h"

namespace nacre {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

FrameHeader FrozenCallHeader(uint64_t id, CallMemory kind, uint64_t size) {
  return {FrameType::kCall, static_cast<uint8_t>(kind), id, size};
}

int64_t Stalled() { return GetCounter("transport.tcp.server.connections_stalled").Get(); }

class FrozenClient : public TransportTest {
 protected:
  // Listens with a handler that runs `transfer` and tells `outcome_` how it ended. A client that does nothing
  // for `timeout` is taken for a frozen one.
  void ListenQuick(std::function<Task<Status>(IncomingCall*)> transfer, Duration timeout = 200ms) {
    TcpOptions options;
    options.transfer_timeout = timeout;
    quick_ = MakeTcpTransport(executor(), RealClock(), options);
    transfer_ = std::move(transfer);
    auto handler = [this](CallPtr call) { return Handle(this, std::move(call)); };
    listener_ = quick_->Listen("127.0.0.1:0", std::move(handler)).value();
  }
  void TearDown() override {
    listener_.reset();
    TransportTest::TearDown();
    quick_.reset();
  }

  RawSocket Greeted() {
    RawSocket socket = RawSocket::ConnectTo(listener_->address());
    socket.Greet();
    return socket;
  }

  static constexpr size_t kSize = 8 << 20;
  Bytes memory_ = RandomBytes(kSize, 3);
  const OneShot<Status> outcome_;

 private:
  static Task<void> Handle(FrozenClient* self, CallPtr call) {
    Task<Status> transfer = self->transfer_(call.get());
    Status status = co_await std::move(transfer);
    self->outcome_.Set(status);
    (void)co_await call->Reply("done");
  }

  std::unique_ptr<Transport> quick_;
  std::function<Task<Status>(IncomingCall*)> transfer_;
  std::unique_ptr<Listener> listener_;
};

Task<Status> PutAll(IncomingCall* call, Bytes* memory) {
  const std::vector<std::span<const std::byte>> buffers(1, std::span<const std::byte>(*memory));
  for (int i = 0; i < 8; ++i) CO_RETURN_IF_ERROR(co_await call->Put(0, buffers));  // more than sockets hold
  co_return OkStatus();
}

Task<Status> GetAll(IncomingCall* call, Bytes* memory) {
  const std::vector<std::span<std::byte>> buffers(1, std::span<std::byte>(*memory));
  co_return co_await call->Get(0, buffers);
}

TEST_P(FrozenClient, WhatItDoesNotSendIsNotWaitedFor) {
  ListenQuick([this](IncomingCall* call) { return GetAll(call, &memory_); });
  RawSocket socket = Greeted();
  socket.Send(FrozenCallHeader(1, CallMemory::kGetSource, kSize));
  std::string rest;
  EXPECT_EQ(socket.ReceiveFrame(FrameReceiver::kClient, &rest).type, FrameType::kGet);
  EXPECT_THAT(std::string(Run(outcome_).message()), HasSubstr("neither sent nor took a byte for 200 ms"));
  EXPECT_TRUE(socket.WaitForEnd());
}

TEST_P(FrozenClient, WhatItDoesNotTakeIsNotKept) {
  ListenQuick([this](IncomingCall* call) { return PutAll(call, &memory_); });
  RawSocket socket = Greeted();
  const int64_t stalled = Stalled();
  socket.Send(FrozenCallHeader(1, CallMemory::kPutTarget, kSize));
  EXPECT_FALSE(Run(outcome_).ok());
  EXPECT_EQ(Stalled(), stalled + 1);
}

TEST_P(FrozenClient, InTheMiddleOfWhatItSends) {
  ListenQuick([this](IncomingCall* call) { return GetAll(call, &memory_); });
  RawSocket socket = Greeted();
  socket.Send(FrozenCallHeader(1, CallMemory::kGetSource, kSize));
  std::string rest;
  FrameHeader data = socket.ReceiveFrame(FrameReceiver::kClient, &rest);
  data.type = FrameType::kData;
  socket.Send(data, std::string(1000, 'x'));
  EXPECT_FALSE(Run(outcome_).ok());
}

TEST_P(FrozenClient, ASlowOneIsServed) {
  // A busy machine may keep this thread from taking anything for a good part of a second.
  constexpr auto kTimeout = 2s;
  ListenQuick([this](IncomingCall* call) { return PutAll(call, &memory_); }, kTimeout);
  RawSocket socket = Greeted();
  socket.Send(FrozenCallHeader(1, CallMemory::kPutTarget, kSize));
  const auto end = std::chrono::steady_clock::now() + kTimeout * 3 / 2;
  size_t left = 8 * (kSize + kFrameHeaderSize);
  for (; std::chrono::steady_clock::now() < end; std::this_thread::sleep_for(10ms)) {
    const size_t some = std::min<size_t>(left, 64 << 10);
    left -= socket.Receive(some).size();
  }
  EXPECT_GT(left, 0u) << "it was not slow";
  socket.Receive(left);
  Status status = Run(outcome_);
  EXPECT_TRUE(status.ok()) << status;
}

INSTANTIATE_TEST_SUITE_P(All, FrozenClient, ::testing::ValuesIn(TcpKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre
