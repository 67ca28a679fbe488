// Properties special to TCP: hostile and dying other sides, messages, and which connection a call takes. The
// contract of all transports is in conformance_test.cc.
#include "transport/tcp/tcp_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <thread>

#include "common/metrics.h"
#include "tests/transport/tcp/raw_socket.h"
#include "tests/transport/transport_fixture.h"

namespace nacre {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

class TcpTransportTest : public TransportTest {
 protected:
  // A peer of somebody else's address.
  std::shared_ptr<Peer> ConnectTo(const std::string& address) {
    auto peer = client().Connect(address);
    EXPECT_TRUE(peer.ok()) << peer.status();
    return *peer;
  }
};

FrameHeader CallHeader(uint64_t id, CallMemory kind = CallMemory::kNone, uint64_t size = 0) {
  return {FrameType::kCall, static_cast<uint8_t>(kind), id, size};
}

int64_t ProtocolErrors() { return GetCounter("transport.tcp.protocol_errors").Get(); }

std::string Message(const Status& status) { return std::string(status.message()); }

TEST_P(TcpTransportTest, HostileClientsLoseTheirConnectionOnly) {
  Listen(Echo);
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "before").ok());
  const std::vector<std::function<void(RawSocket&)>> attacks = {
      [](RawSocket& s) { s.Send(RandomBytes(100'000, 1)); },
      [](RawSocket& s) { s.Send(std::as_bytes(std::span("GET / HTTP/1.1\r\nHost: nacre.example\r\n\r\n"))); },
      [](RawSocket& s) { s.Send(CallHeader(1)); },                   // no greeting
      [](RawSocket& s) { s.Greet(), s.Send(FrameHeader{}); },        // a second one
      [](RawSocket& s) { s.Greet(), s.Send({FrameType::kReply}); },  // not from a client
      [](RawSocket& s) {
        s.Greet(), s.Send({FrameType::kCall, 0, 1, 0, kMaxBodySize + 1});
      },
      [](RawSocket& s) {
        s.Greet(), s.Send({FrameType::kCall, 2, 1, 10, 0, 11});
      },
      [](RawSocket& s) {
        s.Greet(), s.Send({FrameType::kData, 0, 1, 0, 0, 5}, "hello");
      },  // not asked for
      [](RawSocket& s) { s.Greet(), s.Send(RandomBytes(32, 2)); },
  };
  for (size_t i = 0; i < attacks.size(); ++i) {
    const int64_t errors = ProtocolErrors();
    RawSocket socket = RawSocket::ConnectTo(address());
    attacks[i](socket);
    EXPECT_TRUE(socket.WaitForEnd()) << i;
    EXPECT_TRUE(Eventually([&] { return ProtocolErrors() == errors + 1; })) << i;
  }
  EXPECT_TRUE(Call(*peer, "after").ok());
}

TEST_P(TcpTransportTest, ClientsThatHangUpAnywhereDoNoHarm) {
  Listen(Echo);
  const Bytes everything = [] {
    FrameHeader hello;
    hello.body_length = 4;
    Bytes bytes(2 * kFrameHeaderSize + 4 + 10 + 100);
    EncodeFrameHeader(hello, bytes.data());
    EncodeFrameHeader({FrameType::kCall, 2, 1, 100, 10, 100}, bytes.data() + kFrameHeaderSize + 4);
    return bytes;
  }();
  for (size_t length = 0; length <= everything.size(); length += 3) {
    RawSocket socket = RawSocket::ConnectTo(address());
    socket.Send(std::span(everything).first(length));
  }
  auto peer = Connect();
  EXPECT_TRUE(Call(*peer, "after").ok());
}

// Holds all handlers until it is told to let them go.
class WaitingRoom {
 public:
  Task<void> Enter(CallPtr call) {
    OneShot<Unit> turn;
    {
      std::lock_guard lock(mutex_);
      if (!open_) waiting_.push_back(turn);
      if (open_) turn.Set({});
    }
    co_await turn.Wait();
    (void)co_await call->Reply(std::string());
  }

  size_t size() {
    std::lock_guard lock(mutex_);
    return waiting_.size();
  }

  void Open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    for (const OneShot<Unit>& turn : waiting_) turn.Set({});
  }

 private:
  std::mutex mutex_;
  bool open_ = false;
  std::vector<OneShot<Unit>> waiting_;
};

TEST_P(TcpTransportTest, MoreCallsThanAllowedEndTheConnection) {
  const size_t bound = static_cast<size_t>(TcpOptions().calls_per_connection);
  WaitingRoom room;
  Listen([&](CallPtr call) { return room.Enter(std::move(call)); });
  RawSocket socket = RawSocket::ConnectTo(address());
  socket.Greet();
  for (uint64_t id = 1; id <= bound + 1; ++id) socket.Send(CallHeader(id));
  EXPECT_TRUE(socket.WaitForEnd());
  EXPECT_TRUE(Eventually([&] { return room.size() == bound; }));
  room.Open();
}

TEST_P(TcpTransportTest, ANumberInUseEndsTheConnection) {
  WaitingRoom room;
  Listen([&](CallPtr call) { return room.Enter(std::move(call)); });
  RawSocket socket = RawSocket::ConnectTo(address());
  socket.Greet();
  socket.Send(CallHeader(7));
  socket.Send(CallHeader(7));
  EXPECT_TRUE(socket.WaitForEnd());
  room.Open();
}

TEST_P(TcpTransportTest, CallsBeyondTheLimitWaitAtTheClientAndTimeOutThere) {
  WaitingRoom room;
  TcpOptions options;
  options.connections = 1;
  options.calls_per_connection = 2;
  auto narrow = MakeTcpTransport(executor(), RealClock(), options);
  auto listener = narrow->Listen("127.0.0.1:0", [&](CallPtr call) { return room.Enter(std::move(call)); });
  ASSERT_TRUE(listener.ok()) << listener.status();
  auto connected = narrow->Connect((*listener)->address());
  ASSERT_TRUE(connected.ok()) << connected.status();
  std::shared_ptr<Peer> peer = *connected;
  auto call = [](std::shared_ptr<Peer> peer, Duration timeout) -> Task<int> {
    CallRequest request;
    auto reply = co_await peer->Call(std::move(request), timeout);
    co_return static_cast<int>(reply.status().code());
  };
  OneShot<std::vector<int>> codes;
  Spawn(executor(), [](auto call, std::shared_ptr<Peer> peer, OneShot<std::vector<int>> codes) -> Task<void> {
    std::vector<Task<int>> tasks;
    for (Duration timeout : {20s, 20s, 20s}) tasks.push_back(call(peer, timeout));
    codes.Set(co_await WhenAll(std::move(tasks)));
  }(call, peer, codes));
  ASSERT_TRUE(Eventually([&] { return room.size() == 2; }));
  // The third waits; so does this one, and gives up without taking the connection down.
  EXPECT_EQ(Run(call(peer, 30ms)), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(room.size(), 2u);
  room.Open();
  EXPECT_EQ(Run(codes), (std::vector<int>{0, 0, 0}));
}

// An action of a hostile server after it has read the call.
using Attack = std::function<void(RawSocket&, uint64_t call_id)>;

TEST_P(TcpTransportTest, HostileServersCannotTouchOtherMemory) {
  const std::string text(4096, 'x');
  const std::vector<Attack> attacks = {
      [&](RawSocket& s, uint64_t id) {
        s.Send({FrameType::kPut, 0, id, 1, 0, 4096}, text);
      },  // beyond the end
      [&](RawSocket& s, uint64_t id) {
        s.Send({FrameType::kPut, 0, id, UINT64_MAX - 5000, 0, 4096}, text);
      },
      [&](RawSocket& s, uint64_t id) {
        s.Send({FrameType::kPut, 0, id + 1, 0, 0, 4096}, text);
      },  // another call
      [&](RawSocket& s, uint64_t id) {
        s.Send({FrameType::kPut, 0, id + (1 << 16), 0, 0, 4096}, text);
      },
      [&](RawSocket& s, uint64_t) {
        s.Send({FrameType::kPut, 0, UINT64_MAX, 0, 0, 4096}, text);
      },
      [&](RawSocket& s, uint64_t id) {
        s.Send({FrameType::kGet, 0, id, 0, 0, 100});
      },  // it is to put into
      [&](RawSocket& s, uint64_t id) {
        s.Send({FrameType::kReply, 0, id + 1, 0, 0, 0});
      },
      [&](RawSocket& s, uint64_t id) {
        s.Send({FrameType::kReply, 0, id, 0, kMaxBodySize + 1, 0});
      },
      [&](RawSocket& s, uint64_t) { s.Send(RandomBytes(1000, 3)); },
      [&](RawSocket& s, uint64_t) { s.AnswerGreeting(); },
  };
  for (size_t i = 0; i < attacks.size(); ++i) {
    RawListener listener;
    std::thread server([&] {
      RawSocket socket = listener.Accept();
      socket.AnswerGreeting();
      std::string rest;
      const FrameHeader call = socket.ReceiveFrame(FrameReceiver::kServer, &rest);
      if (i + 1 == attacks.size()) return socket.Send({FrameType::kHello, 0, 0, 16});  // a second greeting
      attacks[i](socket, call.call_id);
      EXPECT_TRUE(socket.WaitForEnd()) << i;
    });
    Bytes memory(3 * 4096, std::byte{0x77});
    auto region = Register(memory);
    auto peer = ConnectTo(listener.address());
    auto reply = Call(*peer, "read", CallMemory::kPutTarget, {{region, 4096, 4096}});
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable) << i << " " << reply.status();
    EXPECT_TRUE(memory == Bytes(memory.size(), std::byte{0x77})) << i;
    server.join();
  }
}

TEST_P(TcpTransportTest, AServerThatDiesInsideAPayload) {
  for (size_t sent : {0, 1, 5000, 99'999}) {
    RawListener listener;
    std::thread server([&] {
      RawSocket socket = listener.Accept();
      socket.AnswerGreeting();
      std::string rest;
      const FrameHeader call = socket.ReceiveFrame(FrameReceiver::kServer, &rest);
      socket.Send({FrameType::kPut, 0, call.call_id, 0, 0, 100'000}, std::string(sent, 'p'));
    });
    Bytes memory(100'000);
    auto peer = ConnectTo(listener.address());
    Status status = Call(*peer, "read", CallMemory::kPutTarget, Whole(memory)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(Message(status), HasSubstr("lost the connection to " + listener.address()));
    server.join();
  }
}

TEST_P(TcpTransportTest, AReplyBeforeTheServerHasReadEverything) {
  RawListener listener;
  Bytes memory(8 << 20);
  std::thread server([&] {
    RawSocket socket = listener.Accept();
    socket.AnswerGreeting();
    std::string rest;
    const FrameHeader call = socket.ReceiveFrame(FrameReceiver::kServer, &rest);
    FrameHeader get{FrameType::kGet, 0, call.call_id, 0, 0, 8 << 20};
    socket.Send(get);
    socket.Send({FrameType::kReply, 0, call.call_id, 0, 2, 0}, "ok");
    // The client must not tell its caller before it is done with the memory: so it has to be read here first.
    EXPECT_EQ(socket.Receive(kFrameHeaderSize + (8 << 20)).size(), kFrameHeaderSize + (8 << 20));
    socket.WaitForEnd();
  });
  auto peer = ConnectTo(listener.address());
  auto reply = Call(*peer, "write", CallMemory::kGetSource, Whole(memory));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(*reply, "ok");
  peer->Close();
  server.join();
}

TEST_P(TcpTransportTest, SomethingElseListensThere) {
  RawListener listener;
  std::thread server([&] {
    RawSocket socket = listener.Accept();
    socket.Send(std::as_bytes(std::span("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n")));
    socket.WaitForEnd();
  });
  auto peer = ConnectTo(listener.address());
  Status status = Call(*peer, "x").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(status), HasSubstr(listener.address()));
  EXPECT_THAT(Message(status), HasSubstr("SSH"));
  server.join();
}

TEST_P(TcpTransportTest, AServerThatRefuses) {
  RawListener listener;
  std::thread server([&] {
    RawSocket socket = listener.Accept();
    std::string rest;
    socket.ReceiveFrame(FrameReceiver::kServer, &rest);
    socket.Send({FrameType::kHello, kFrameFailed, 0, 0, 8, 0}, "too full");
    socket.WaitForEnd();
  });
  auto peer = ConnectTo(listener.address());
  Status status = Call(*peer, "x").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(status), HasSubstr("too full"));
  server.join();
}

TEST_P(TcpTransportTest, AServerThatDoesNotGreetInTime) {
  RawListener listener;
  auto peer = ConnectTo(listener.address());
  Status status = Call(*peer, "x", CallMemory::kNone, {}, 50ms).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(Message(status), HasSubstr(listener.address()));
}

TEST_P(TcpTransportTest, MessagesNameTheAddressAndWhatToCheck) {
  Listen(Echo);
  const std::string taken = address();
  EXPECT_THAT(Message(server().Listen(taken, Echo).status()),
              HasSubstr("cannot listen on " + taken + ": Address already in use"));
  StopListening();
  EXPECT_THAT(Message(Call(*ConnectTo(taken), "x").status()),
              HasSubstr("cannot connect to " + taken + ": Connection refused: is nacre-oss running there?"));
  EXPECT_THAT(Message(Call(*ConnectTo("unix:/no/such/socket"), "x").status()),
              HasSubstr("cannot connect to unix:/no/such/socket: No such file or directory: is nacre-oss"));
  EXPECT_THAT(Message(server().Listen("192.0.2.1:7000", Echo).status()), HasSubstr("192.0.2.1:7000"));
  EXPECT_THAT(Message(server().Listen("unix:/no/such/directory/socket", Echo).status()),
              HasSubstr("unix:/no/such/directory/socket"));
}

TEST_P(TcpTransportTest, ASocketLeftBehindIsTakenOver) {
  std::string directory = ::testing::TempDir() + "nacre_socket.XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const std::string path = directory + "/socket";
  int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un at{AF_UNIX, {}};
  path.copy(at.sun_path, sizeof at.sun_path - 1);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  ::close(fd);  // without unlink, as after a crash
  {
    auto listener = server().Listen("unix:" + path, Echo);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_TRUE(Call(*ConnectTo("unix:" + path), "x").ok());
    EXPECT_THAT(Message(server().Listen("unix:" + path, Echo).status()),
                HasSubstr("another process listens there"));
  }
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
  ::rmdir(directory.c_str());
}

TEST_P(TcpTransportTest, AFileIsNotTakenForASocketLeftBehind) {
  std::string path = ::testing::TempDir() + "nacre_file.XXXXXX";
  ::close(::mkstemp(path.data()));
  EXPECT_FALSE(server().Listen("unix:" + path, Echo).ok());
  EXPECT_EQ(::unlink(path.c_str()), 0);
}

// Large calls whose handlers put only when told to; small ones are answered at once.
TEST_P(TcpTransportTest, ATimeoutEndsOnlyTheCallsOfItsConnection) {
  OneShot<Unit> open;
  OneShot<Unit> entered;
  auto handle = [](OneShot<Unit> open, OneShot<Unit> entered, CallPtr call) -> Task<void> {
    if (call->body() == "wait") {
      entered.Set({});
      co_await open.Wait();
    }
    (void)co_await call->Reply(std::string("done"));
  };
  Listen([&](CallPtr call) { return handle(open, entered, std::move(call)); });
  auto peer = Connect();
  Bytes memory(1 << 20);
  auto spans = Whole(memory);
  ASSERT_TRUE(Call(*peer, "connect", CallMemory::kPutTarget, spans).ok());
  OneShot<Status> ended;
  auto wait = [](std::shared_ptr<Peer> peer, std::vector<MemorySpan> spans,
                 OneShot<Status> ended) -> Task<void> {
    CallRequest request;
    request.body = "wait";
    request.kind = CallMemory::kPutTarget;
    request.memory = std::move(spans);
    auto reply = co_await peer->Call(std::move(request), 50ms);
    ended.Set(reply.status());
  };
  Spawn(executor(), wait(peer, spans, ended));
  Run(entered);
  while (!ended.IsSet()) ASSERT_TRUE(Call(*peer, "small").ok());
  EXPECT_EQ(Run(ended).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Call(*peer, "large", CallMemory::kPutTarget, spans).ok());
  open.Set({});
}

TEST_P(TcpTransportTest, CountsBytes) {
  Counter& put = GetCounter("transport.tcp.client.bytes_put");
  Counter& sent = GetCounter("transport.tcp.server.bytes_put");
  const int64_t put_before = put.Get(), sent_before = sent.Get();
  Listen([](CallPtr call) -> Task<void> {
    Bytes data(call->memory_size());
    std::vector<std::span<const std::byte>> buffers = {data};
    (void)co_await call->Put(0, buffers);
    (void)co_await call->Reply(std::string());
  });
  Bytes memory(12'345);
  auto peer = Connect();
  ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, Whole(memory)).ok());
  EXPECT_EQ(put.Get() - put_before, 12'345);
  EXPECT_EQ(sent.Get() - sent_before, 12'345);
  EXPECT_EQ(peer->path().path, "tcp");
}

INSTANTIATE_TEST_SUITE_P(All, TcpTransportTest, ::testing::ValuesIn(TcpKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre
