// The promises of MetadataChannel and ClusterChannel, on every form: in process, unix socket, TCP.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "common/random.h"
#include "common/runtime.h"
#include "rpc/grpc_channel.h"
#include "rpc/grpc_server.h"
#include "rpc/inproc_channel.h"

namespace nacre {
namespace {

using testing::HasSubstr;

std::string Message(const Status& status) { return std::string(status.message()); }

// Getattr echoes its fid; SetLock waits until it is let go; Readlink answers with as many bytes as asked;
// Statfs pushes three messages; Close ends the stream behind a last push.
class EchoMds : public MetadataHandler, public ClusterHandler {
 public:
  Task<proto::MetadataReply> Handle(std::shared_ptr<MetadataPeer> peer,
                                    proto::MetadataRequest request) override {
    {
      std::lock_guard lock(mutex);
      ++handled;
      last_peer = peer;
    }
    proto::MetadataReply reply;
    switch (request.op_case()) {
      case proto::MetadataRequest::kGetattr:
        *reply.mutable_attr()->mutable_attr()->mutable_fid() = request.getattr().fid();
        break;
      case proto::MetadataRequest::kReadlink:
        reply.mutable_readlink()->set_target(std::string(request.readlink().fid().sequence(), 'x'));
        break;
      case proto::MetadataRequest::kSetLock: {
        OneShot<Unit> wait = go;
        co_await wait.Wait();
        break;
      }
      case proto::MetadataRequest::kStatfs:
        for (uint64_t i = 1; i <= 3; ++i) peer->Send(MakePush(i));
        break;
      case proto::MetadataRequest::kClose:
        peer->Send(MakePush(99));
        peer->Close();
        break;
      default:
        reply.mutable_status()->set_error(EPROTO);
        reply.mutable_status()->set_message("no operation");
    }
    co_return reply;
  }

  void Disconnected(std::shared_ptr<MetadataPeer> peer) override {
    std::lock_guard lock(mutex);
    EXPECT_NE(peer, nullptr);
    ++disconnected;
    gone.Set({});
  }

  Task<proto::RegisterOssReply> RegisterOss(proto::RegisterOssRequest request) override {
    proto::RegisterOssReply reply;
    reply.set_cluster_uuid(request.cluster_uuid() + "!");
    co_return reply;
  }
  Task<proto::HeartbeatReply> Heartbeat(proto::HeartbeatRequest request) override {
    proto::HeartbeatReply reply;
    reply.mutable_status()->set_error(static_cast<uint32_t>(request.instance()));
    co_return reply;
  }
  Task<proto::ReportChainReply> ReportChain(proto::ReportChainRequest request) override {
    proto::ReportChainReply reply;
    reply.mutable_chain()->set_epoch(request.epoch() + 1);
    co_return reply;
  }
  Task<proto::AdminReply> Administer(proto::AdminRequest request) override {
    proto::AdminReply reply;
    reply.set_evicted(request.evict().client());
    co_return reply;
  }
  Task<proto::ClusterStatus> GetStatus() override {
    OneShot<Unit> wait = go;
    co_await wait.Wait();
    proto::ClusterStatus status;
    status.set_inodes(7);
    co_return status;
  }

  static proto::Push MakePush(uint64_t id) {
    proto::Push push;
    push.mutable_revoke()->set_id(id);
    return push;
  }

  std::mutex mutex;
  int handled = 0;
  int disconnected = 0;
  std::shared_ptr<MetadataPeer> last_peer;
  OneShot<Unit> go;  // one waiter
  OneShot<Unit> gone;
};

// The events that a client has received.
struct Heard {
  std::mutex mutex;
  std::vector<uint64_t> pushes;
  std::vector<Status> lost;
  OneShot<Unit> any_lost;
  OneShot<Unit> third_push;

  MetadataChannelEvents Events() {
    MetadataChannelEvents events;
    events.on_push = [this](proto::Push push) {
      std::lock_guard lock(mutex);
      EXPECT_TRUE(lost.empty());
      pushes.push_back(push.revoke().id());
      if (pushes.size() == 3) third_push.Set({});
    };
    events.on_lost = [this](Status status) {
      std::lock_guard lock(mutex);
      lost.push_back(std::move(status));
      any_lost.Set({});
    };
    return events;
  }
};

// A server of one form at an address that stays the same when it starts again.
class Server {
 public:
  Server(const std::string& form, const std::string& directory) : form_(form) {
    address_ = form == "unix" ? absl::StrCat("unix:", directory, "/mds.sock") : "127.0.0.1:0";
  }

  void Start(Runtime& runtime, EchoMds& mds) {
    if (form_ == "inproc") {
      inproc_ = std::make_unique<InprocServer>(runtime.executor(), mds, mds);
      return;
    }
    auto server = GrpcServer::Start(runtime.executor(), {&mds, &mds}, {address_});
    ASSERT_TRUE(server.ok()) << server.status();
    grpc_ = *std::move(server);
    address_ = grpc_->addresses()[0];
  }
  void Stop() {
    if (inproc_ != nullptr) inproc_->Stop();
    if (grpc_ != nullptr) grpc_->Stop();
  }

  const std::string& address() const { return address_; }
  std::shared_ptr<MetadataConnector> Connector() {
    return inproc_ != nullptr ? inproc_->NewConnector("test") : *NewGrpcConnector(address_);
  }
  std::shared_ptr<ClusterChannel> Cluster(Duration timeout) {
    return inproc_ != nullptr ? inproc_->NewClusterChannel() : *NewGrpcClusterChannel(address_, timeout);
  }

 private:
  const std::string form_;
  std::string address_;
  std::unique_ptr<InprocServer> inproc_;
  std::unique_ptr<GrpcServer> grpc_;
};

proto::MetadataRequest GetattrOf(uint64_t sequence) {
  proto::MetadataRequest request;
  request.mutable_getattr()->mutable_fid()->set_sequence(sequence);
  return request;
}

class ChannelTest : public testing::TestWithParam<std::string> {
 protected:
  template <typename T>
  T Await(OneShot<T> value) {
    return runtime_.Run([](OneShot<T> value) -> Task<T> { co_return co_await value.Wait(); }(value));
  }

  // Set when the call ends, which is not before `go`.
  OneShot<StatusOr<proto::MetadataReply>> AskForTheLock() {
    OneShot<StatusOr<proto::MetadataReply>> locked;
    proto::MetadataRequest lock;
    lock.mutable_set_lock()->set_wait(true);
    Spawn(runtime_.executor(), channel_->Call(std::move(lock)),
          [locked](StatusOr<proto::MetadataReply> reply) { locked.Set(std::move(reply)); });
    return locked;
  }

  void SetUp() override {
    std::string pattern = testing::TempDir() + "/nacre-rpc.XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    server_ = std::make_unique<Server>(GetParam(), directory_);
    server_->Start(runtime_, mds_);
  }
  void TearDown() override {
    channel_.reset();
    server_->Stop();
    std::filesystem::remove_all(directory_);
  }

  void Connect() {
    auto connector = server_->Connector();
    auto channel = runtime_.Run(connector->Connect(heard_.Events(), 5s));
    ASSERT_TRUE(channel.ok()) << channel.status();
    channel_ = *channel;
  }

  std::string directory_;
  EchoMds mds_;
  Heard heard_;
  Runtime runtime_{3};
  std::unique_ptr<Server> server_;
  std::shared_ptr<MetadataChannel> channel_;
};

TEST_P(ChannelTest, AReplyAnswersItsRequest) {
  Connect();
  auto reply = runtime_.Run(channel_->Call(GetattrOf(4711)));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->attr().attr().fid().sequence(), 4711);
  reply = runtime_.Run(channel_->Call(proto::MetadataRequest()));
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->status().error(), EPROTO);
}

Task<int> Hammer(std::shared_ptr<MetadataChannel> channel, uint64_t from, uint64_t count) {
  int good = 0;
  for (uint64_t i = from; i < from + count; ++i) {
    proto::MetadataRequest request = GetattrOf(i);
    auto reply = co_await channel->Call(std::move(request));
    good += reply.ok() && reply->attr().attr().fid().sequence() == i;
  }
  co_return good;
}

TEST_P(ChannelTest, ManyAtOnceDoNotMixUp) {
  Connect();
  auto all = [](std::shared_ptr<MetadataChannel> channel) -> Task<std::vector<int>> {
    std::vector<Task<int>> tasks;
    for (uint64_t i = 0; i < 64; ++i) tasks.push_back(Hammer(channel, i * 1000, 50));
    co_return co_await WhenAll(std::move(tasks));
  };
  for (int good : runtime_.Run(all(channel_))) EXPECT_EQ(good, 50);
}

TEST_P(ChannelTest, AWaitingRequestDoesNotHoldUpOthers) {
  Connect();
  const auto locked = AskForTheLock();
  EXPECT_EQ(runtime_.Run(Hammer(channel_, 0, 20)), 20);
  EXPECT_FALSE(locked.IsSet());
  mds_.go.Set({});
  EXPECT_TRUE(Await(locked).ok());
}

TEST_P(ChannelTest, PushesComeInOrder) {
  Connect();
  proto::MetadataRequest request;
  request.mutable_statfs();
  ASSERT_TRUE(runtime_.Run(channel_->Call(request)).ok());
  Await(heard_.third_push);
  EXPECT_EQ(heard_.pushes, (std::vector<uint64_t>{1, 2, 3}));
}

TEST_P(ChannelTest, TheServersCloseDeliversWhatWasSentBefore) {
  Connect();
  proto::MetadataRequest request;
  request.mutable_close();
  (void)runtime_.Run(channel_->Call(request));
  Await(heard_.any_lost);
  EXPECT_EQ(heard_.pushes, std::vector<uint64_t>{99});
  ASSERT_EQ(heard_.lost.size(), 1u);
  EXPECT_TRUE(IsRetryable(heard_.lost[0])) << heard_.lost[0];
  Await(mds_.gone);
  auto late = runtime_.Run(channel_->Call(GetattrOf(1)));
  EXPECT_TRUE(IsRetryable(late.status())) << late.status();
}

TEST_P(ChannelTest, ClosingFailsPendingCallsAndTellsTheServerButNotTheClient) {
  Connect();
  const auto locked = AskForTheLock();
  EXPECT_EQ(runtime_.Run(Hammer(channel_, 0, 1)), 1);
  channel_->Close();
  Status status = Await(locked).status();
  EXPECT_TRUE(IsRetryable(status)) << status;
  Await(mds_.gone);
  EXPECT_EQ(mds_.disconnected, 1);
  EXPECT_TRUE(heard_.lost.empty());
}

TEST_P(ChannelTest, AStoppedServerIsNoticedAndARestartedOneTakesConnectionsAgain) {
  Connect();
  const auto locked = AskForTheLock();
  EXPECT_EQ(runtime_.Run(Hammer(channel_, 0, 1)), 1);
  server_->Stop();
  EXPECT_TRUE(IsRetryable(Await(locked).status()));
  Await(heard_.any_lost);
  Await(mds_.gone);

  auto connector = server_->Connector();
  auto refused = runtime_.Run(connector->Connect({}, 2s));
  EXPECT_TRUE(IsRetryable(refused.status())) << refused.status();

  server_->Start(runtime_, mds_);
  heard_.lost.clear();
  Connect();
  EXPECT_EQ(runtime_.Run(Hammer(channel_, 0, 5)), 5);
}

TEST_P(ChannelTest, ClusterCallsGoThroughAndEndWithTheServer) {
  auto cluster = server_->Cluster(5s);
  proto::RegisterOssRequest announce;
  announce.set_cluster_uuid("uuid");
  auto announced = runtime_.Run(cluster->RegisterOss(announce));
  ASSERT_TRUE(announced.ok()) << announced.status();
  EXPECT_EQ(announced->cluster_uuid(), "uuid!");
  proto::HeartbeatRequest beat;
  beat.set_instance(ENOENT);
  EXPECT_EQ(runtime_.Run(cluster->Heartbeat(beat))->status().error(), ENOENT);
  proto::ReportChainRequest report;
  report.set_epoch(7);
  EXPECT_EQ(runtime_.Run(cluster->ReportChain(report))->chain().epoch(), 8u);
  mds_.go.Set({});
  EXPECT_EQ(runtime_.Run(cluster->GetStatus())->inodes(), 7);
  proto::AdminRequest evict;
  evict.mutable_evict()->set_client("a client");
  EXPECT_EQ(runtime_.Run(cluster->Administer(evict))->evicted(), "a client");
  server_->Stop();
  EXPECT_TRUE(IsRetryable(runtime_.Run(cluster->Heartbeat(beat)).status()));
}

INSTANTIATE_TEST_SUITE_P(Forms, ChannelTest, testing::Values("inproc", "unix", "tcp"),
                         [](const auto& info) { return info.param; });

class GrpcTest : public ChannelTest {};

TEST_P(GrpcTest, StopEndsACallThatWouldNeverBeAnswered) {
  auto cluster = server_->Cluster(60s);
  OneShot<StatusOr<proto::ClusterStatus>> asked;
  Spawn(runtime_.executor(), [](auto cluster, auto asked) -> Task<void> {
    asked.Set(co_await cluster->GetStatus());
  }(cluster, asked));
  proto::HeartbeatRequest beat;
  ASSERT_TRUE(runtime_.Run(cluster->Heartbeat(beat)).ok());
  server_->Stop();
  EXPECT_FALSE(Await(asked).ok());
}

TEST_P(GrpcTest, AClusterCallEndsAtItsTimeout) {
  auto cluster = server_->Cluster(50ms);
  EXPECT_EQ(ToErrno(runtime_.Run(cluster->GetStatus()).status()), ETIMEDOUT);
}

TEST_P(GrpcTest, LargeMessagesPassAndTooLargeOnesAreRefusedWithoutLosingTheStream) {
  Connect();
  proto::MetadataRequest request;
  request.mutable_readlink()->mutable_fid()->set_sequence(8 << 20);
  auto reply = runtime_.Run(channel_->Call(request));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->readlink().target().size(), 8u << 20);
  request.mutable_readlink()->mutable_fid()->set_sequence(20 << 20);
  reply = runtime_.Run(channel_->Call(request));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->status().error(), EMSGSIZE);
  request.mutable_lookup()->set_name(std::string(20 << 20, 'x'));
  EXPECT_EQ(ToErrno(runtime_.Run(channel_->Call(request)).status()), EMSGSIZE);
  EXPECT_EQ(runtime_.Run(Hammer(channel_, 0, 1)), 1);
}

TEST_P(GrpcTest, ASecondServerAtTheAddressIsRefusedWithTheReason) {
  if (GetParam() == "unix")
    GTEST_SKIP() << "a socket file is replaced: the directory's lock keeps a second server out";
  auto second = GrpcServer::Start(runtime_.executor(), {&mds_, &mds_}, {server_->address()});
  EXPECT_EQ(ToErrno(second.status()), EADDRINUSE);
  EXPECT_THAT(Message(second.status()), HasSubstr(server_->address()));
}

INSTANTIATE_TEST_SUITE_P(Forms, GrpcTest, testing::Values("unix", "tcp"),
                         [](const auto& info) { return info.param; });

int ConnectTo(const std::string& address) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&where), sizeof where), 0);
  return fd;
}

// An HTTP/2 frame on stream 1 (0: settings).
std::string Http2Frame(uint8_t type, uint8_t flags, uint8_t stream, const std::string& payload) {
  std::string frame = {0,
                       static_cast<char>(payload.size() >> 8),
                       static_cast<char>(payload.size()),
                       static_cast<char>(type),
                       static_cast<char>(flags),
                       0,
                       0,
                       0,
                       static_cast<char>(stream)};
  return frame + payload;
}

// Opens a session's stream as a client would, then says this instead of a ClientFrame.
std::string SessionSaying(const std::string& message) {
  std::string headers;
  for (auto [name, value] : {std::pair<std::string, std::string>(":method", "POST"),
                             {":scheme", "http"},
                             {":path", "/nacre.proto.Metadata/Session"},
                             {":authority", "x"},
                             {"te", "trailers"},
                             {"content-type", "application/grpc"}}) {
    headers +=
        std::string(1, 0) + static_cast<char>(name.size()) + name + static_cast<char>(value.size()) + value;
  }
  std::string prefix = {0, 0, 0, static_cast<char>(message.size() >> 8), static_cast<char>(message.size())};
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Http2Frame(4, 0, 0, "") + Http2Frame(1, 4, 1, headers) +
         Http2Frame(0, 0, 1, prefix + message);
}

TEST_P(GrpcTest, HostileBytesHurtNobodyElse) {
  if (GetParam() != "tcp") GTEST_SKIP() << "the bytes are the same on a unix socket";
  Connect();
  SeededRandom random(7);
  std::vector<std::string> attacks = {"", "GET / HTTP/1.1\r\n\r\n", SessionSaying("\xff\xff\xff\xff"),
                                      SessionSaying(std::string("\x0a\xff\xff\xff\x7f", 5))};
  for (int i = 0; i < 20; ++i) {
    std::string noise;
    for (uint64_t n = random.Below(300); n > 0; --n) noise += static_cast<char>(random.Next());
    attacks.push_back(noise);
    attacks.push_back(SessionSaying(noise));
  }
  for (const std::string& attack : attacks) {
    int fd = ConnectTo(server_->address());
    EXPECT_EQ(send(fd, attack.data(), attack.size(), MSG_NOSIGNAL), static_cast<ssize_t>(attack.size()));
    shutdown(fd, SHUT_WR);
    for (char answer[4096]; recv(fd, answer, sizeof answer, 0) > 0;) continue;
    close(fd);
  }
  EXPECT_EQ(runtime_.Run(Hammer(channel_, 0, 3)), 3);
}

TEST(Inproc, AConnectorKnowsWhereOthersReachTheServer) {
  Runtime runtime(1);
  EchoMds mds;
  InprocServer server(runtime.executor(), mds, mds);
  EXPECT_EQ(server.NewConnector("a", "unix:/run/mds.sock")->address(), "unix:/run/mds.sock");
}

}  // namespace
}  // namespace nacre
