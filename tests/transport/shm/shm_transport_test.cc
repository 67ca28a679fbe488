// Properties special to shared memory: bytes that lie in it, other sides that are hostile, slow or dead, and
// which processes are let in. The contract of all transports is in conformance_test.cc.
#include "transport/shm/shm_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <future>
#include <thread>

#include "common/host.h"
#include "common/metrics.h"
#include "tests/transport/shm/asking.h"
#include "tests/transport/shm/raw_server.h"
#include "tests/transport/shm/shm_fixture.h"
#include "tests/transport/tcp/raw_socket.h"
#include "tests/transport/transport_fixture.h"
#include "transport/shm/pieces.h"
#include "transport/shm/setup.h"

namespace nacre {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

class ShmTransportTest : public ShmFixture {};

int64_t Count(const std::string& name) { return GetCounter("transport.shm." + name).Get(); }

// Puts what the body says out of the pool: "OFFSET PIECES", pieces of equal size spread over it.
TransportTest::Handler PutFromPool(const std::shared_ptr<SharedMemory>& pool) {
  return [pool](CallPtr call) -> Task<void> {
    return [](std::shared_ptr<SharedMemory> pool, CallPtr call) -> Task<void> {
      size_t offset = 0, pieces = 1;
      EXPECT_EQ(std::sscanf(call->body().c_str(), "%zu %zu", &offset, &pieces), 2);
      std::vector<std::span<const std::byte>> buffers;
      const size_t each = call->memory_size() / pieces;
      for (size_t i = 0; i < pieces; ++i) buffers.emplace_back(pool->data() + offset + 2 * i * each, each);
      Status status = co_await call->Put(0, buffers);
      (void)co_await call->Reply(std::string(status.ok() ? "done" : status.message()));
    }(pool, std::move(call));
  };
}

TEST_P(ShmTransportTest, PutsOutOfThePoolInOneCopy) {
  Show();
  Listen(PutFromPool(pool_));
  auto peer = Connect();
  SeededRandom random(1);
  for (int i = 0; i < 60; ++i) {
    const size_t pieces = 1 + random.Below(i % 3 == 0 ? 100 : 3);
    const size_t each = random.Below(i % 2 == 0 ? 700'000 : 70'000) / pieces + 1;
    const size_t offset = random.Below(5000), shift = random.Below(100);
    const size_t size = each * pieces;
    Bytes memory(size + shift + 1, std::byte{0x5a});
    std::shared_ptr<MemoryRegion> region = Register(memory);
    const int64_t before = Count("client.bytes_put");
    const std::string body = std::to_string(offset) + " " + std::to_string(pieces);
    auto reply = Call(*peer, body, CallMemory::kPutTarget,
                      {{region, shift, size / 3}, {region, shift + size / 3, size - size / 3}});
    ASSERT_TRUE(reply.ok()) << reply.status();
    ASSERT_EQ(*reply, "done");
    for (size_t piece = 0; piece < pieces; ++piece) {
      const auto from = Pool(offset + 2 * piece * each, each);
      ASSERT_TRUE(std::equal(from.begin(), from.end(), memory.begin() + shift + piece * each)) << piece;
    }
    for (size_t at = 0; at < shift; ++at) ASSERT_EQ(memory[at], std::byte{0x5a});
    ASSERT_EQ(memory.back(), std::byte{0x5a});
    EXPECT_EQ(Count("client.bytes_put") - before, static_cast<int64_t>(size));
  }
  EXPECT_EQ(peer->path().path, "shm");
}

// Gets everything into a buffer of its own, in two halves, and replies with it.
Task<void> GetInHalves(CallPtr call) {
  std::string data(call->memory_size(), 0);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(data));
  const size_t half = data.size() / 2;
  std::vector<std::span<std::byte>> second = {bytes.subspan(half)};
  Status status = co_await call->Get(half, second);
  std::vector<std::span<std::byte>> first = {bytes.first(half / 3), bytes.subspan(half / 3, half - half / 3)};
  if (status.ok()) status = co_await call->Get(0, first);
  if (!status.ok()) data = std::string(status.message());
  (void)co_await call->Reply(std::move(data));
}

TEST_P(ShmTransportTest, GetsOutOfSharedMemoryWithoutAskingTheClient) {
  Show();
  Listen(GetInHalves);
  auto peer = Connect();
  const Bytes content = RandomBytes(kPool, 12);
  std::copy(content.begin(), content.end(), memory_->data());
  SeededRandom random(2);
  for (int i = 0; i < 60; ++i) {
    std::vector<MemorySpan> spans;
    std::string expected;
    for (size_t n = random.Below(6); n > 0; --n) {
      const size_t offset = random.Below(kPool / 2), length = random.Below(150'000);
      spans.push_back({region_, offset, length});
      expected.append(reinterpret_cast<const char*>(content.data()) + offset, length);
    }
    const CallMemory kind = spans.empty() ? CallMemory::kNone : CallMemory::kGetSource;
    auto reply = Call(*peer, "", kind, spans);
    if (spans.empty()) continue;
    ASSERT_TRUE(reply.ok()) << reply.status();
    ASSERT_TRUE(*reply == expected) << i;
  }
}

TEST_P(ShmTransportTest, MemoryRegisteredLaterGoesThroughTheSocket) {
  Listen(GetInHalves);
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "").ok());
  Show();
  const Bytes content = RandomBytes(300'000, 13);
  std::copy(content.begin(), content.end(), memory_->data());
  auto reply = Call(*peer, "", CallMemory::kGetSource, {{region_, 0, content.size()}});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(std::memcmp(reply->data(), content.data(), content.size()), 0);
}

// A call that was given up is not read any more, even where the server can see the memory for ever.
TEST_P(ShmTransportTest, NothingIsGotOutOfTheMemoryOfACallThatTimedOut) {
  Show();
  Gate gate;
  Listen([gate](CallPtr call) -> Task<void> {
    return [](Gate gate, CallPtr call) -> Task<void> {
      if (call->memory_kind() == CallMemory::kNone) {
        (void)co_await call->Reply(std::string());
        co_return;
      }
      gate.entered.Set({});
      co_await gate.open.Wait();
      Bytes data(call->memory_size());
      std::vector<std::span<std::byte>> buffers = {data};
      gate.outcome.Set(co_await call->Get(0, buffers));
    }(gate, std::move(call));
  });
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "warm up").ok());
  Status status = Call(*peer, "", CallMemory::kGetSource, {{region_, 0, 100'000}}, 30ms).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  std::memset(memory_->data(), 1, 100'000);  // another use of it
  gate.open.Set({});
  EXPECT_FALSE(Run(gate.outcome).ok());
}

Task<void> PutAndTell(std::shared_ptr<SharedMemory> pool, OneShot<Status> outcome, CallPtr call) {
  std::vector<std::span<const std::byte>> buffers = {{pool->data(), call->memory_size()}};
  outcome.Set(co_await call->Put(0, buffers));
}

TEST_P(ShmTransportTest, AClientThatNeverTakesIsCutOff) {
  OneShot<Status> outcome;
  const std::string address =
      ListenQuick([&](CallPtr call) { return PutAndTell(pool_, outcome, std::move(call)); });
  const int64_t before = Count("server.puts_not_taken");
  RawSocket socket = HalfAClient(address, 100'000);
  std::string rest;
  EXPECT_EQ(socket.ReceiveFrame(FrameReceiver::kClient, &rest).type, FrameType::kSharedPut);
  EXPECT_EQ(Run(outcome).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(socket.WaitForEnd());
  EXPECT_EQ(Count("server.puts_not_taken"), before + 1);
}

TEST_P(ShmTransportTest, AClientThatDiesFreesWhatWasPut) {
  Show();
  OneShot<Status> outcome;
  Listen([&](CallPtr call) { return PutAndTell(pool_, outcome, std::move(call)); });
  {
    RawSocket socket = HalfAClient(address(), 100'000);
    std::string rest;
    EXPECT_EQ(socket.ReceiveFrame(FrameReceiver::kClient, &rest).type, FrameType::kSharedPut);
  }
  EXPECT_EQ(Run(outcome).code(), absl::StatusCode::kUnavailable);
}

TEST_P(ShmTransportTest, HostileClientsLoseTheirConnectionOnly) {
  Show();
  Listen(PutFromPool(pool_));
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "0 1").ok());
  FrameHeader shared{FrameType::kSharedCall, static_cast<uint8_t>(CallMemory::kGetSource), 1, 100};
  auto call_with = [shared](const shm::Piece& piece) {
    return [shared, piece](int fd) {
      const auto own = SharedMemory::Create("nacre-test", 4096).value();
      EXPECT_EQ(shm::SendSetup(fd, {own}), OkStatus());
      RawSocket socket(::dup(fd));
      (void)socket.Receive(kSetupSize);
      socket.Greet();
      std::string text;
      shm::AppendPiece(piece, &text);
      text = shm::CountedPieces(text);
      FrameHeader header = shared;
      header.body_length = static_cast<uint32_t>(text.size());
      socket.Send(header, text);
    };
  };
  auto after_greeting = [](const FrameHeader& header, const std::string& rest) {
    return [header, rest](int fd) {
      EXPECT_EQ(shm::SendSetup(fd, {}), OkStatus());
      RawSocket socket(::dup(fd));
      (void)socket.Receive(kSetupSize);
      socket.Greet();
      socket.Send(header, rest);
    };
  };
  const std::vector<std::function<void(int)>> attacks = {
      [](int fd) { EXPECT_GT(::send(fd, "GET / HTTP/1.1\r\n\r\n", 18, 0), 0); },
      [](int fd) {
        const Bytes bytes = RandomBytes(kSetupSize, 5);
        EXPECT_GT(::send(fd, bytes.data(), bytes.size(), 0), 0);
      },
      [](int fd) {  // announces a region that does not come
        Bytes bytes(kSetupSize);
        std::memcpy(bytes.data(), "NACSHM\0\1", 8);
        bytes[12] = std::byte{1};
        EXPECT_GT(::send(fd, bytes.data(), bytes.size(), 0), 0);
      },
      call_with({0, 4000, 100}),
      call_with({1, 0, 100}),
      call_with({0, UINT64_MAX, 100}),
      call_with({0, 0, 99}),
      after_greeting({FrameType::kSharedCall, 2, 1, 100, 4}, std::string("\xff\xff\xff\xff")),
      after_greeting({FrameType::kSharedCall, 2, 1, 100, 2}, "xx"),
      after_greeting({FrameType::kTaken, 0, 1, 0, 0, 100}, ""),
      after_greeting({FrameType::kSharedPut, 0, 1, 0, 0, 100}, ""),
  };
  for (size_t i = 0; i < attacks.size(); ++i) {
    const int64_t errors = Count("protocol_errors");
    const int fd = ConnectRaw(address());
    attacks[i](fd);
    EXPECT_TRUE(RawSocket(fd).WaitForEnd()) << i;
    EXPECT_TRUE(Eventually([&] { return Count("protocol_errors") == errors + 1; })) << i;
  }
  EXPECT_TRUE(Call(*peer, "0 1").ok());
}

// A server that shows one page and answers the call for a page with this frame, and with others behind it.
using Frame = std::pair<FrameHeader, std::string>;
void HostileServer(const std::string& address, const FrameHeader& answer, const std::string& rest,
                   const std::vector<Frame>& more = {}) {
  RawServer listener(address);
  std::thread server([&] {
    for (int fd = listener.Accept(); fd >= 0; fd = -1) {
      const auto own = SharedMemory::Create("nacre-test", 4096).value();
      EXPECT_EQ(shm::SendSetup(fd, {own}), OkStatus());
      RawSocket socket(fd);
      (void)socket.Receive(kSetupSize);
      socket.AnswerGreeting();
      std::string body;
      const FrameHeader call = socket.ReceiveFrame(FrameReceiver::kServer, &body);
      std::vector<Frame> frames = more;
      frames.insert(frames.begin(), {answer, rest});
      Bytes all;  // in one message
      for (auto& [header, text] : frames) {
        header.call_id = call.call_id;
        const size_t at = all.size();
        all.resize(at + kFrameHeaderSize + text.size());
        EncodeFrameHeader(header, all.data() + at);
        std::memcpy(all.data() + at + kFrameHeaderSize, text.data(), text.size());
      }
      socket.Send(all);
      EXPECT_TRUE(socket.WaitForEnd());
    }
  });
  asio::io_context context(1);
  auto work = asio::make_work_guard(context);
  std::thread thread([&] { context.run(); });
  {
    auto transport = MakeShmTransport(context.get_executor(), RealClock());
    auto peer = transport->Connect(address).value();
    Bytes memory(3 * 4096, std::byte{0xaa});
    auto region = transport->Register(memory.data(), memory.size()).value();
    std::promise<Status> ended;
    CallRequest request{"x", CallMemory::kPutTarget, {{region, 4096, 4096}}};
    Spawn(context.get_executor(), peer->Call(std::move(request), 10s),
          [&](StatusOr<std::string> reply) { ended.set_value(reply.status()); });
    EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kUnavailable);
    for (size_t i = 0; i < memory.size(); ++i) {
      if (i >= 4096 && i < 8192) continue;
      ASSERT_EQ(memory[i], std::byte{0xaa}) << i;
    }
  }
  work.reset();
  thread.join();
  server.join();
}

TEST_P(ShmTransportTest, HostileServersCannotTouchOtherMemory) {
  auto piece = [](shm::Piece piece) {
    std::string text;
    shm::AppendPiece(piece, &text);
    return text;
  };
  const std::string where = "unix:@nacre_hostile." + std::to_string(::getpid());
  HostileServer(where, {FrameType::kSharedPut, 0, 0, 1, 24, 4096},
                piece({0, 0, 4096}));  // beyond the call's memory
  HostileServer(where, {FrameType::kSharedPut, 0, 0, 0, 24, 4096}, piece({0, 1, 4096}));  // beyond the region
  HostileServer(where, {FrameType::kSharedPut, 0, 0, 0, 24, 4096}, piece({7, 0, 4096}));  // no such region
  HostileServer(where, {FrameType::kSharedPut, 0, 0, 0, 24, 100}, piece({0, 0, 4096}));   // more than it says
  HostileServer(where, {FrameType::kSharedPut, 0, 0, 0, 25, 4096}, piece({0, 0, 4096}) + "x");
  HostileServer(where, {FrameType::kSharedCall, 2, 0, 0, 4, 0}, std::string(4, 0));
  const FrameHeader put{FrameType::kSharedPut, 0, 0, 0, 24, 4096};
  const FrameHeader reply{FrameType::kReply, 0, 0, 0, 4};
  HostileServer(where, put, piece({0, 0, 4096}), {{reply, "done"}, {put, piece({0, 0, 4096})}});
  HostileServer(where, put, piece({0, 0, 4096}), {{reply, "done"}, {reply, "done"}});
  HostileServer(where, put, piece({0, 0, 4096}), {{put, piece({0, 0, 4097})}});
}

TEST_P(ShmTransportTest, AnotherUserIsNotLetIn) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Show();
  Listen(PutFromPool(pool_));
  const std::string where = address();
  const int64_t refused = Count("server.connections_refused");
  auto another_user = [] { return ::setgid(65534) == 0 && ::setuid(65534) == 0; };
  EXPECT_EQ(AskAs(where, another_user), Outcome::kRefused);
  EXPECT_EQ(Count("server.connections_refused"), refused + 1);
}

TEST_P(ShmTransportTest, ARefusalIsToldToTheCaller) {
  const std::string where = "unix:@nacre_refusal." + std::to_string(::getpid());
  RawServer listener(where);
  std::thread server([&] {
    const int fd = listener.Accept();
    EXPECT_EQ(shm::SendRefusal(fd), OkStatus());
    EXPECT_TRUE(RawSocket(fd).WaitForEnd());
  });
  auto peer = client().Connect(where).value();
  Status status = Call(*peer, "x").status();
  EXPECT_EQ(ToErrno(status), ENOTSUP) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("only to processes of its own user and of root that could read it"));
  server.join();
}

TEST_P(ShmTransportTest, TheCandidateTellsMachinesApart) {
  auto meters = std::make_shared<PathMeters>();
  auto candidate = MakeShmCandidate(executor(), RealClock());
  auto listener =
      candidate->Listen([](CallPtr call) -> Task<void> { (void)co_await call->Reply(std::string("here")); })
          .value();
  const std::string offer = listener->address();
  EXPECT_EQ(offer.substr(0, offer.find(' ')), BootId().value());
  auto peer = Run(candidate->Connect(offer, 5s, meters));
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(Call(**peer, "x").value(), "here");
  EXPECT_EQ((*peer)->path().path, "shm");
  const std::string address = offer.substr(offer.find(' '));
  Status elsewhere =
      Run(candidate->Connect("00000000-0000-0000-0000-000000000000" + address, 5s, meters)).status();
  EXPECT_EQ(elsewhere.message(), "the server runs on another machine");
  EXPECT_FALSE(IsRetryable(elsewhere));
  Status nonsense = Run(candidate->Connect(BootId().value() + " 127.0.0.1:1", 5s, meters)).status();
  EXPECT_EQ(nonsense.code(), absl::StatusCode::kInvalidArgument);
  listener.reset();
  EXPECT_EQ(Run(candidate->Connect(offer, 5s, meters)).status().code(), absl::StatusCode::kUnavailable);
}

INSTANTIATE_TEST_SUITE_P(All, ShmTransportTest, ::testing::ValuesIn(ShmKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre
