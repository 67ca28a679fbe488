// The contract of transports (transport/transport.h), tested on each kind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "tests/transport/transport_fixture.h"

namespace nacre {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;
using ConstBuffers = std::vector<std::span<const std::byte>>;
using Buffers = std::vector<std::span<std::byte>>;

// Gets everything and answers with it turned round.
Task<void> GetAll(CallPtr call) {
  Bytes data(call->memory_size());
  Buffers buffers = {data};
  Status status = co_await call->Get(0, buffers);
  std::string reply(data.size(), 0);
  std::transform(data.rbegin(), data.rend(), reply.begin(), [](std::byte b) { return static_cast<char>(b); });
  if (!status.ok()) reply = std::string(status.message());
  EXPECT_EQ(co_await call->Reply(std::move(reply)), OkStatus());
}

std::string Reversed(const Bytes& data) {
  std::string text(data.size(), 0);
  std::transform(data.rbegin(), data.rend(), text.begin(), [](std::byte b) { return static_cast<char>(b); });
  return text;
}

// A handler that puts `data` at the memory's start.
TransportTest::Handler PutAll(const Bytes& data) {
  return [&data](CallPtr call) -> Task<void> {
    return [](const Bytes& data, CallPtr call) -> Task<void> {
      ConstBuffers buffers = {std::span(data).first(call->memory_size())};
      EXPECT_EQ(co_await call->Put(0, buffers), OkStatus());
      std::string reply = "done";
      EXPECT_EQ(co_await call->Reply(std::move(reply)), OkStatus());
    }(data, std::move(call));
  };
}

TEST_P(TransportTest, EchoesBodiesOfAnySize) {
  Listen(Echo);
  auto peer = Connect();
  for (size_t size : {size_t{0}, size_t{1}, size_t{100}, size_t{16000}, size_t{70001}, kMaxBodySize}) {
    std::string body(size, 'b');
    StatusOr<std::string> reply = Call(*peer, body);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_TRUE(*reply == body) << size;
  }
}

TEST_P(TransportTest, RefusesABodyBeyondTheLimit) {
  Listen(Echo);
  auto peer = Connect();
  EXPECT_EQ(Call(*peer, std::string(kMaxBodySize + 1, 'b')).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Call(*peer, "still there").ok());
}

TEST_P(TransportTest, PutsOddSizesAtOddAddresses) {
  const Bytes data = RandomBytes(3'000'001, 1);
  Listen(PutAll(data));
  auto peer = Connect();
  for (size_t size : {0, 1, 7, 4095, 4096, 4097, 16'384, 65'537, 1'000'003, 3'000'001}) {
    for (size_t shift : {0, 1, 3}) {
      Bytes memory(size + shift + 1, std::byte{0x5a});
      auto region = Register(memory);
      auto reply = Call(*peer, "", CallMemory::kPutTarget, {{region, shift, size}});
      ASSERT_TRUE(reply.ok()) << reply.status();
      ASSERT_TRUE(std::equal(data.begin(), data.begin() + size, memory.begin() + shift))
          << size << " " << shift;
      for (size_t i = 0; i < shift; ++i) ASSERT_EQ(memory[i], std::byte{0x5a});
      ASSERT_EQ(memory.back(), std::byte{0x5a});
    }
  }
}

TEST_P(TransportTest, GetsOddSizesFromOddAddresses) {
  Listen(GetAll);
  auto peer = Connect();
  for (size_t size : {0, 1, 4096, 65'536, 65'537, 500'009}) {
    for (size_t shift : {0, 1}) {
      Bytes memory = RandomBytes(size + shift + 1, size);
      auto region = Register(memory);
      auto reply = Call(*peer, "", CallMemory::kGetSource, {{region, shift, size}});
      ASSERT_TRUE(reply.ok()) << reply.status();
      ASSERT_TRUE(*reply == Reversed(Bytes(memory.begin() + shift, memory.begin() + shift + size))) << size;
    }
  }
}

TEST_P(TransportTest, ManySpansMakeOneFlatMemory) {
  const Bytes data = RandomBytes(400'000, 2);
  Listen(PutAll(data));
  auto peer = Connect();
  Bytes memory(1'000'000);
  auto region = Register(memory);
  SeededRandom random(3);
  std::vector<MemorySpan> spans;
  uint64_t at = 0, total = 0;
  while (spans.size() < 500) {
    uint64_t length = spans.size() % 17 == 0 ? 0 : 1 + random.Below(700);  // empty ones too
    spans.push_back({region, at, length});
    at += length + random.Below(1200);
    total += length;
  }
  ASSERT_LT(at, memory.size());
  auto reply = Call(*peer, "", CallMemory::kPutTarget, spans);
  ASSERT_TRUE(reply.ok()) << reply.status();
  Bytes expected(memory.size());
  uint64_t done = 0;
  for (const MemorySpan& span : spans) {
    std::copy_n(data.begin() + done, span.length, expected.begin() + span.offset);
    done += span.length;
  }
  EXPECT_EQ(done, total);
  EXPECT_TRUE(memory == expected);
}

TEST_P(TransportTest, GetsFromManySpansIntoManyBuffers) {
  Listen([](CallPtr call) -> Task<void> {
    Bytes data(call->memory_size());
    Buffers buffers;
    for (size_t at = 0; at < data.size(); at += 333) {
      buffers.push_back(std::span(data).subspan(at, std::min<size_t>(333, data.size() - at)));
    }
    EXPECT_EQ(co_await call->Get(0, buffers), OkStatus());
    EXPECT_EQ(co_await call->Reply(Reversed(data)), OkStatus());
  });
  auto peer = Connect();
  Bytes memory = RandomBytes(300'000, 4);
  auto region = Register(memory);
  std::vector<MemorySpan> spans;
  Bytes flat;
  for (size_t at = 0; at + 1000 < memory.size(); at += 1000) {
    spans.push_back({region, at, 777});
    flat.insert(flat.end(), memory.begin() + at, memory.begin() + at + 777);
  }
  auto reply = Call(*peer, "", CallMemory::kGetSource, spans);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(*reply == Reversed(flat));
}

TEST_P(TransportTest, PutsInAnyOrder) {
  const Bytes data = RandomBytes(300'000, 5);
  Listen([&data](CallPtr call) -> Task<void> {
    return [](const Bytes& data, CallPtr call) -> Task<void> {
      const std::vector<std::pair<size_t, size_t>> parts = {
          {200'000, 100'000}, {0, 3}, {100'001, 99'999}, {3, 100'000}, {100'003, 0}, {100'000, 1}};
      for (auto [offset, length] : parts) {
        ConstBuffers buffers = {std::span(data).subspan(offset, length / 2),
                                std::span(data).subspan(offset + length / 2, length - length / 2)};
        EXPECT_EQ(co_await call->Put(offset, buffers), OkStatus());
      }
      ConstBuffers hole = {std::span(data).subspan(100'001, 2)};
      EXPECT_EQ(co_await call->Put(100'001, hole), OkStatus());
      EXPECT_EQ(co_await call->Reply(std::string()), OkStatus());
    }(data, std::move(call));
  });
  auto peer = Connect();
  Bytes memory(data.size());
  ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, Whole(memory)).ok());
  EXPECT_TRUE(memory == data);
}

TEST_P(TransportTest, BuffersMayBeReusedAfterPut) {
  Listen([](CallPtr call) -> Task<void> {
    Bytes buffer(5000);
    for (uint64_t at = 0; at < call->memory_size(); at += buffer.size()) {
      std::fill(buffer.begin(), buffer.end(), static_cast<std::byte>(at / buffer.size()));
      ConstBuffers buffers = {buffer};
      EXPECT_EQ(co_await call->Put(at, buffers), OkStatus());
    }
    std::fill(buffer.begin(), buffer.end(), std::byte{0xff});
    EXPECT_EQ(co_await call->Reply(std::string()), OkStatus());
  });
  auto peer = Connect();
  Bytes memory(100 * 5000);
  ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, Whole(memory)).ok());
  for (size_t i = 0; i < memory.size(); ++i) ASSERT_EQ(memory[i], static_cast<std::byte>(i / 5000)) << i;
}

TEST_P(TransportTest, SixteenMebibytesBothWays) {
  const Bytes data = RandomBytes(16 << 20, 6);
  Listen([&data](CallPtr call) -> Task<void> {
    return [](const Bytes& data, CallPtr call) -> Task<void> {
      std::string reply = "same";
      if (call->memory_kind() == CallMemory::kPutTarget) {
        ConstBuffers buffers = {data};
        EXPECT_EQ(co_await call->Put(0, buffers), OkStatus());
      } else {
        Bytes got(data.size());
        Buffers buffers = {got};
        EXPECT_EQ(co_await call->Get(0, buffers), OkStatus());
        if (got != data) reply = "different";
      }
      EXPECT_EQ(co_await call->Reply(std::move(reply)), OkStatus());
    }(data, std::move(call));
  });
  auto peer = Connect();
  Bytes memory(data.size());
  auto spans = Whole(memory);
  ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, spans).ok());
  ASSERT_TRUE(memory == data);
  auto reply = Call(*peer, "", CallMemory::kGetSource, spans);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(*reply, "same");
}

TEST_P(TransportTest, RefusesTransfersBeyondTheMemory) {
  Listen([](CallPtr call) -> Task<void> {
    Bytes data(200);
    ConstBuffers put = {data};
    Buffers get = {data};
    const bool target = call->memory_kind() == CallMemory::kPutTarget;
    for (uint64_t offset :
         {uint64_t{0}, uint64_t{1}, uint64_t{100}, uint64_t{101}, UINT64_MAX, UINT64_MAX - 100}) {
      Status status;
      if (target) {
        status = co_await call->Put(offset, put);
      } else {
        status = co_await call->Get(offset, get);
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << offset;
    }
    Status wrong_way;
    if (target) {
      wrong_way = co_await call->Get(0, get);
    } else {
      wrong_way = co_await call->Put(0, put);
    }
    EXPECT_EQ(wrong_way.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(co_await call->Reply(std::string("refused")), OkStatus());
  });
  auto peer = Connect();
  Bytes memory(102, std::byte{7});
  auto region = Register(memory);
  for (CallMemory kind : {CallMemory::kPutTarget, CallMemory::kGetSource}) {
    auto reply = Call(*peer, "", kind, {{region, 1, 100}});
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(*reply, "refused");
  }
  EXPECT_TRUE(memory == Bytes(102, std::byte{7}));
}

TEST_P(TransportTest, ChecksTheCallersSpans) {
  Listen(Echo);
  auto peer = Connect();
  Bytes memory(100);
  auto region = Register(memory);
  auto code = [&](CallMemory kind, MemorySpan span) { return Call(*peer, "", kind, {span}).status().code(); };
  EXPECT_EQ(code(CallMemory::kPutTarget, {region, 1, 100}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(CallMemory::kPutTarget, {region, UINT64_MAX, 2}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(CallMemory::kGetSource, {nullptr, 0, 1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(CallMemory::kNone, {region, 0, 1}), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(client().Register(nullptr, 10).ok());
}

TEST_P(TransportTest, ThousandsOfSmallCalls) {
  Listen(Echo);
  auto peer = Connect();
  int right = Run([](std::shared_ptr<Peer> peer) -> Task<int> {
    int right = 0;
    for (int i = 0; i < 3000; ++i) {
      CallRequest request;
      request.body = std::to_string(i);
      auto reply = co_await peer->Call(std::move(request), 20s);
      right += reply.ok() && *reply == std::to_string(i);
    }
    co_return right;
  }(peer));
  EXPECT_EQ(right, 3000);
}

// Each call has its own piece of one region and its own pattern, of sizes on both sides of every limit.
Task<int> MixedCall(std::shared_ptr<Peer> peer, std::shared_ptr<MemoryRegion> region, int i, uint64_t offset,
                    uint64_t size) {
  const std::byte mark{static_cast<unsigned char>(i)};
  const bool put = i % 2 == 0;
  std::fill_n(region->data() + offset, size, put ? std::byte{0} : mark);
  CallRequest request;
  request.body = std::string(1, static_cast<char>(i));
  request.kind = put ? CallMemory::kPutTarget : CallMemory::kGetSource;
  request.memory.push_back({region, offset, size});
  auto reply = co_await peer->Call(std::move(request), 20s);
  EXPECT_TRUE(reply.ok()) << reply.status();
  if (!reply.ok() || *reply != "right") co_return 0;
  for (uint64_t at = 0; at < size; ++at) {
    if (region->data()[offset + at] != mark) co_return 0;
  }
  co_return 1;
}

TEST_P(TransportTest, ConcurrentCallsOfAllSizes) {
  Listen([](CallPtr call) -> Task<void> {
    const std::byte mark{static_cast<unsigned char>(call->body()[0])};
    Bytes data(call->memory_size(), mark);
    bool right = true;
    if (call->memory_kind() == CallMemory::kPutTarget) {
      ConstBuffers buffers = {data};
      EXPECT_EQ(co_await call->Put(0, buffers), OkStatus());
    } else {
      std::fill(data.begin(), data.end(), ~mark);
      Buffers buffers = {data};
      EXPECT_EQ(co_await call->Get(0, buffers), OkStatus());
      right = std::all_of(data.begin(), data.end(), [&](std::byte b) { return b == mark; });
    }
    EXPECT_EQ(co_await call->Reply(std::string(right ? "right" : "wrong")), OkStatus());
  });
  auto peer = Connect();
  constexpr int kCalls = 200;
  static constexpr uint64_t kSizes[] = {1, 4096, 9000, 40'000, 65'536, 100'001, 700'000};
  Bytes memory(kCalls * 700'000 / 3);
  auto region = Register(memory);
  int right = Run([](std::shared_ptr<Peer> peer, std::shared_ptr<MemoryRegion> region) -> Task<int> {
    std::vector<Task<int>> tasks;
    uint64_t offset = 0;
    for (int i = 0; i < kCalls; ++i) {
      uint64_t size = kSizes[i % std::size(kSizes)];
      tasks.push_back(MixedCall(peer, region, i, offset, size));
      offset += size;
    }
    EXPECT_LE(offset, region->size());
    std::vector<int> results = co_await WhenAll(std::move(tasks));
    co_return std::accumulate(results.begin(), results.end(), 0);
  }(peer, region));
  EXPECT_EQ(right, kCalls);
}

TEST_P(TransportTest, NobodyListens) {
  Listen(Echo);
  StopListening();
  auto peer = Connect();
  Status status = Call(*peer, "x").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(address()));
}

TEST_P(TransportTest, ReconnectsAfterTheListenerRestarts) {
  Listen(Echo);
  auto peer = Connect();
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(Call(*peer, "before").ok());
    StopListening();
    EXPECT_EQ(Call(*peer, "away").status().code(), absl::StatusCode::kUnavailable);
    Listen(Echo);
    auto reply = Call(*peer, "back");
    EXPECT_TRUE(reply.ok()) << reply.status();
  }
}

TEST_P(TransportTest, ABusyAddressIsRefused) {
  Listen(Echo);
  auto second = server().Listen(address(), Echo);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(address()));
}

TEST_P(TransportTest, BadAddressesAreRefused) {
  for (const char* bad : {"", "nonsense", "inproc:", "unix:", "host:", ":1", "host:99999", "host:port:x"}) {
    auto peer = client().Connect(bad);
    EXPECT_EQ(peer.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    auto listener = server().Listen(bad, Echo);
    EXPECT_EQ(listener.status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

Task<void> PutWhenOpen(Gate gate, std::byte mark, CallPtr call) {
  if (call->body() == "warm up") {
    (void)co_await call->Reply(std::string());
    co_return;
  }
  gate.entered.Set({});
  co_await gate.open.Wait();
  Bytes data(call->memory_size(), mark);
  ConstBuffers buffers = {data};
  Status status = co_await call->Put(0, buffers);
  Status replied = co_await call->Reply(std::string("late"));
  gate.outcome.Set(status.ok() ? replied : status);
}

TransportTest::Handler PutAtGate(Gate gate, std::byte mark) {
  return [gate, mark](CallPtr call) { return PutWhenOpen(gate, mark, std::move(call)); };
}

TEST_P(TransportTest, ATimeoutNeverWritesLate) {
  for (size_t size : {4096, 1 << 20}) {
    Gate gate;
    Listen(PutAtGate(gate, std::byte{0xbb}));
    auto peer = Connect();
    Bytes memory(size, std::byte{0xaa});
    auto spans = Whole(memory);
    // The connection first, so that the time runs out while the handler waits.
    ASSERT_TRUE(Call(*peer, "warm up", CallMemory::kPutTarget, spans).ok());
    Status status = Call(*peer, "", CallMemory::kPutTarget, spans, 30ms).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    gate.open.Set({});
    // Whether the server has noticed by now is open; what counts is the memory.
    (void)Run(gate.outcome);
    EXPECT_TRUE(memory == Bytes(size, std::byte{0xaa}));
    StopListening();
  }
}

TEST_P(TransportTest, CloseEndsTheCallsInProgress) {
  Gate gate;
  Listen(PutAtGate(gate, std::byte{0xbb}));
  auto peer = Connect();
  Bytes memory(100'000, std::byte{0xaa});
  CallRequest request{"", CallMemory::kPutTarget, Whole(memory)};
  OneShot<Status> ended;
  Spawn(executor(), [](std::shared_ptr<Peer> peer, CallRequest request, OneShot<Status> ended) -> Task<void> {
    auto reply = co_await peer->Call(std::move(request), 20s);
    ended.Set(reply.status());
  }(peer, std::move(request), ended));
  Run(gate.entered);
  peer->Close();
  EXPECT_EQ(Run(ended).code(), absl::StatusCode::kUnavailable);
  gate.open.Set({});
  (void)Run(gate.outcome);
  EXPECT_TRUE(memory == Bytes(100'000, std::byte{0xaa}));
  EXPECT_EQ(Call(*peer, "later").status().code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportTest, ALostListenerEndsTheCallsInProgress) {
  Gate gate;
  Listen(PutAtGate(gate, std::byte{0xbb}));
  auto peer = Connect();
  Bytes memory(100'000, std::byte{0xaa});
  CallRequest request{"", CallMemory::kPutTarget, Whole(memory)};
  OneShot<Status> ended;
  Spawn(executor(), [](std::shared_ptr<Peer> peer, CallRequest request, OneShot<Status> ended) -> Task<void> {
    auto reply = co_await peer->Call(std::move(request), 20s);
    ended.Set(reply.status());
  }(peer, std::move(request), ended));
  Run(gate.entered);
  StopListening();
  EXPECT_EQ(Run(ended).code(), absl::StatusCode::kUnavailable);
  gate.open.Set({});
  EXPECT_FALSE(Run(gate.outcome).ok());
  EXPECT_TRUE(memory == Bytes(100'000, std::byte{0xaa}));
}

TEST_P(TransportTest, AHandlerThatForgetsToReplyFailsTheCall) {
  Listen([](CallPtr) -> Task<void> { co_return; });
  auto peer = Connect();
  EXPECT_EQ(Call(*peer, "x").status().code(), absl::StatusCode::kInternal);
}

INSTANTIATE_TEST_SUITE_P(All, TransportTest, ::testing::ValuesIn(AllKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre
