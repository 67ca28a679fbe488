#include "rpc/grpc_channel.h"

#include <absl/container/flat_hash_map.h>
#include <absl/strings/str_format.h>
#include <grpcpp/grpcpp.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "common/burst.h"
#include "common/log.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/metadata.grpc.pb.h"
#include "rpc/convert.h"
#include "rpc/event_queue.h"
#include "rpc/frame_batcher.h"
#include "rpc/grpc_call.h"
#include "rpc/grpc_common.h"
#include "rpc/grpc_completions.h"
#include "rpc/several_servers.h"
#include "rpc/writes_in_turn.h"

namespace nacre {
namespace {

// One of the servers that a list of addresses names.
struct ServerAddress {
  std::string address, target;
  GrpcPatience patience = GrpcPatience::kAlone;

  std::shared_ptr<grpc::Channel> NewChannel() const {
    return NewGrpcChannel(target, grpc::InsecureChannelCredentials(), patience);
  }
};

StatusOr<std::vector<ServerAddress>> ParseServers(const std::string& addresses) {
  ASSIGN_OR_RETURN(std::vector<std::string> parts, SplitAddresses(addresses));
  std::vector<ServerAddress> servers;
  for (const std::string& part : parts) {
    ASSIGN_OR_RETURN(std::string target, GrpcTarget(part));
    servers.push_back({part, target, parts.size() > 1 ? GrpcPatience::kSeveral : GrpcPatience::kAlone});
  }
  return servers;
}

// gRPC tells a stream that never began from one that has, once its first headers have come: but only to what
// is made for the callback API.
class HeaderReader final : public grpc::internal::ClientReactor {
 public:
  // Whether there was nothing but the headers of a refusal.
  static bool IsRefusal(grpc::ClientContext& context) {
    return HeaderReader().InternalTrailersOnly(context.c_call());
  }

 private:
  void OnDone(const grpc::Status&) override {}
};

// One stream. Reactions come from gRPC's thread; Call, GiveUp and Close from any. The stream is read from its
// beginning to its end; a read that fails is the end, of which gRPC is asked the reason when no write is
// under way any more.
class ClientStream : public std::enable_shared_from_this<ClientStream>, private WritesInTurn<ClientStream> {
  friend class WritesInTurn<ClientStream>;

 public:
  using Answer = OneShot<StatusOr<proto::MetadataReply>>;

  ClientStream(const ServerAddress& server, const Executor& executor, MetadataChannelEvents events)
      : address_(server.address),
        executor_(executor),
        guests_(Guests::Of(executor)),
        stub_(proto::Metadata::NewStub(server.NewChannel())),
        events_(executor, std::move(events)) {}

  void Start() {
    stream_ = stub_->PrepareAsyncSession(&context_, Completions::OfChannels().queue());
    stream_->StartCall(started_.Begin());
  }

  // OK once the server has answered.
  Task<Status> Connected() {
    OneShot<Status> connected = connected_;
    co_return co_await connected.Wait();
  }

  void GiveUp(Status why) {
    events_.Close();  // before the caller goes on and its executor may go
    connected_.Set(std::move(why));
    context_.TryCancel();  // last: it ends the stream, and the end has another reason
  }

  Task<StatusOr<proto::MetadataReply>> Call(proto::MetadataRequest request) {
    Answer answer;
    size_t bytes = request.ByteSizeLong();
    if (bytes > kMaxMetadataMessage) {
      co_return ErrnoError(
          EMSGSIZE, absl::StrFormat("a request of %d bytes to the MDS is beyond the limit of %d", bytes,
                                    kMaxMetadataMessage));
    }
    {
      std::unique_lock lock(mutex_);
      if (ended_)
        co_return ErrnoError(ENOTCONN, absl::StrFormat("the connection to the MDS at %s is lost", address_));
      request.set_id(next_id_++);
      pending_.emplace(request.id(), answer);
      *outgoing_.Room(bytes).add_requests() = std::move(request);
      WriteSoon(std::move(lock));
    }
    co_return co_await answer.Wait();
  }

  void Close() {
    events_.Close();
    context_.TryCancel();
  }

 private:
  void OnStarted(bool) { stream_->ReadInitialMetadata(answered_.Begin()); }

  void OnAnswered(bool ok) {
    if (ok && !HeaderReader::IsRefusal(context_)) connected_.Set(OkStatus());
    stream_->Read(&incoming_, read_.Begin());
  }

  // Reads on behind what a lone message leads to, as the server does (GrpcSession::OnRead).
  void OnRead(bool ok) {
    if (!ok) {
      std::unique_lock lock(mutex_);
      ended_ = true;
      return Write(std::move(lock));
    }
    const bool lone = incoming_.replies_size() + incoming_.pushes_size() == 1;
    const GrpcTurn turn(lone, guests_, executor_, [this] { stream_->Read(&incoming_, read_.Begin()); });
    HandOut();
    for (auto& push : *incoming_.mutable_pushes()) events_.Pushed(std::move(push));
    incoming_.Clear();
  }

  void OnWritten(bool ok) {
    if (!ok) context_.TryCancel();
    std::unique_lock lock(mutex_);
    writing_ = false;
    if (ended_) return Write(std::move(lock));
    if (!outgoing_.empty()) WriteSoon(std::move(lock));
  }

  void OnEnded(bool) {
    const Status status = FromGrpc(end_, address_);
    absl::flat_hash_map<uint64_t, Answer> pending;
    {
      std::lock_guard lock(mutex_);
      pending = std::exchange(pending_, {});
    }
    for (auto& [id, answer] : pending) answer.Set(status);
    events_.Lost(status);
    connected_.Set(status);
  }

  // Resumes those who wait for these replies; the requests that they send then leave together.
  void HandOut() {
    std::vector<std::pair<Answer, proto::MetadataReply*>> answers;
    bool waits = false;
    {
      std::lock_guard lock(mutex_);
      for (auto& reply : *incoming_.mutable_replies()) {
        if (const auto asked = pending_.find(reply.id()); asked != pending_.end()) {
          answers.emplace_back(std::move(asked->second), &reply);
          pending_.erase(asked);
        } else {
          LogDebug("the MDS at %s sent a reply to no request: id %d", address_, reply.id());
        }
      }
      waits = answers.size() > 1 && BeginToWait();
    }
    {
      const Burst burst(executor_);
      for (auto& [answer, reply] : answers) answer.Set(std::move(*reply));
    }
    if (waits) PostWrite();
  }

  // Starts what is to be done next, if nothing is under way: a write, or asking for the end.
  void Write(std::unique_lock<std::mutex> lock) {
    if (writing_ || finished_) return;
    if (ended_) {
      finished_ = true;
      lock.unlock();
      stream_->Finish(&end_, finish_.Begin());
      return;
    }
    if (outgoing_.empty()) return;
    writing_ = true;
    writing_frame_ = outgoing_.Take();
    lock.unlock();
    stream_->Write(writing_frame_, write_.Begin());
  }

  const std::string address_;
  const Executor executor_;
  const std::shared_ptr<Guests> guests_;
  const std::unique_ptr<proto::Metadata::Stub> stub_;
  EventQueue events_;
  OneShot<Status> connected_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<proto::ClientFrame, proto::ServerFrame>> stream_;
  proto::ServerFrame incoming_;
  grpc::Status end_;
  std::mutex mutex_;
  absl::flat_hash_map<uint64_t, Answer> pending_;
  uint64_t next_id_ = 1;
  FrameBatcher<proto::ClientFrame> outgoing_;
  proto::ClientFrame writing_frame_;
  bool writing_ = false, ended_ = false, finished_ = false;
  Reaction<ClientStream, &ClientStream::OnStarted> started_{this};
  Reaction<ClientStream, &ClientStream::OnAnswered> answered_{this};
  Reaction<ClientStream, &ClientStream::OnRead> read_{this};
  Reaction<ClientStream, &ClientStream::OnWritten> write_{this};
  Reaction<ClientStream, &ClientStream::OnEnded> finish_{this};
};

class GrpcMetadataChannel : public MetadataChannel {
 public:
  explicit GrpcMetadataChannel(std::shared_ptr<ClientStream> stream) : stream_(std::move(stream)) {}
  ~GrpcMetadataChannel() override { Close(); }

  Task<StatusOr<proto::MetadataReply>> Call(proto::MetadataRequest request) override {
    std::shared_ptr<ClientStream> stream = stream_;
    co_return co_await stream->Call(std::move(request));
  }
  void Close() override { stream_->Close(); }

 private:
  const std::shared_ptr<ClientStream> stream_;
};

class GrpcConnector : public MetadataConnector {
 public:
  explicit GrpcConnector(ServerAddress server) : server_(std::move(server)) {}

  Task<StatusOr<std::shared_ptr<MetadataChannel>>> Connect(MetadataChannelEvents events,
                                                           Duration timeout) override {
    Executor executor = co_await CurrentExecutor();
    auto stream = std::make_shared<ClientStream>(server_, executor, std::move(events));
    stream->Start();
    auto timer = RealClock().After(executor, timeout, [stream, address = server_.address, timeout] {
      stream->GiveUp(ErrnoError(
          ETIMEDOUT,
          absl::StrFormat("the MDS at %s did not answer within %.1f s: check that nacre-mds runs there and "
                          "that nothing between blocks the connection",
                          address, std::chrono::duration<double>(timeout).count())));
    });
    Status status = co_await stream->Connected();
    if (!status.ok()) {
      stream->Close();
      co_return status;
    }
    co_return std::make_shared<GrpcMetadataChannel>(stream);
  }
  std::string address() const override { return server_.address; }

 private:
  const ServerAddress server_;
};

class GrpcClusterChannel : public ClusterChannel {
 public:
  GrpcClusterChannel(const ServerAddress& server, Duration timeout)
      : address_(server.address), timeout_(timeout), stub_(proto::Cluster::NewStub(server.NewChannel())) {}

  Task<StatusOr<proto::RegisterOssReply>> RegisterOss(proto::RegisterOssRequest request) override {
    return Call<proto::RegisterOssReply>(&Stub::PrepareAsyncRegisterOss, std::move(request));
  }
  Task<StatusOr<proto::HeartbeatReply>> Heartbeat(proto::HeartbeatRequest request) override {
    return Call<proto::HeartbeatReply>(&Stub::PrepareAsyncHeartbeat, std::move(request));
  }
  Task<StatusOr<proto::ClusterStatus>> GetStatus() override {
    auto reply = co_await Call<proto::ClusterStatus>(&Stub::PrepareAsyncGetStatus, proto::GetStatusRequest());
    if (reply.ok()) CO_RETURN_IF_ERROR(FromProto(reply->status()));
    co_return reply;
  }
  Task<StatusOr<proto::ReportChainReply>> ReportChain(proto::ReportChainRequest request) override {
    return Call<proto::ReportChainReply>(&Stub::PrepareAsyncReportChain, std::move(request));
  }
  Task<StatusOr<proto::AdminReply>> Administer(proto::AdminRequest request) override {
    return Call<proto::AdminReply>(&Stub::PrepareAsyncAdminister, std::move(request));
  }

 private:
  using Stub = proto::Cluster::Stub;

  template <typename Reply, typename Method, typename Request>
  Task<StatusOr<Reply>> Call(Method method, Request request) {
    const auto call = std::make_shared<GrpcCall<Reply>>(timeout_);
    GrpcAnswer<Reply> answer = co_await call->Ask(*stub_, method, std::move(request));
    if (!answer.status.ok()) co_return FromGrpc(answer.status, address_);
    co_return std::move(answer.reply);
  }

  const std::string address_;
  const Duration timeout_;
  const std::unique_ptr<proto::Cluster::Stub> stub_;
};

}  // namespace

StatusOr<std::shared_ptr<MetadataConnector>> NewGrpcConnector(const std::string& addresses) {
  ASSIGN_OR_RETURN(std::vector<ServerAddress> servers, ParseServers(addresses));
  std::vector<std::shared_ptr<MetadataConnector>> connectors;
  for (ServerAddress& server : servers)
    connectors.push_back(std::make_shared<GrpcConnector>(std::move(server)));
  if (connectors.size() == 1) return connectors.front();
  return NewSeveralConnector(std::move(connectors));
}

StatusOr<std::shared_ptr<ClusterChannel>> NewGrpcClusterChannel(const std::string& addresses,
                                                                Duration timeout) {
  ASSIGN_OR_RETURN(std::vector<ServerAddress> servers, ParseServers(addresses));
  std::vector<std::shared_ptr<ClusterChannel>> channels;
  for (const ServerAddress& server : servers)
    channels.push_back(std::make_shared<GrpcClusterChannel>(server, timeout));
  if (channels.size() == 1) return channels.front();
  return NewSeveralClusterChannel(std::move(channels), RealClock(), timeout);
}

}  // namespace nacre
