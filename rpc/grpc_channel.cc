#include "rpc/grpc_channel.h"

#include <absl/strings/str_format.h>
#include <grpcpp/grpcpp.h>

#include <cerrno>
#include <unordered_map>

#include "common/log.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/metadata.grpc.pb.h"
#include "rpc/convert.h"
#include "rpc/event_queue.h"
#include "rpc/frame_batcher.h"
#include "rpc/grpc_common.h"
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

// One stream. gRPC's reactions and Call come from any thread. Calls into gRPC are made without the lock: a
// reaction may run inside them. A hold keeps gRPC from ending the stream while we may still start a write.
class ClientStream : public grpc::ClientBidiReactor<proto::ClientFrame, proto::ServerFrame>,
                     public std::enable_shared_from_this<ClientStream>,
                     private WritesInTurn<ClientStream> {
  friend class WritesInTurn<ClientStream>;

 public:
  using Answer = OneShot<StatusOr<proto::MetadataReply>>;

  ClientStream(const ServerAddress& server, const Executor& executor, MetadataChannelEvents events)
      : address_(server.address),
        executor_(executor),
        stub_(proto::Metadata::NewStub(server.NewChannel())),
        events_(executor, std::move(events)) {}

  void Start() {
    self_ = shared_from_this();
    stub_->async()->Session(&context_, this);
    AddHold();
    StartRead(&incoming_);
    StartCall();
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

  void OnReadInitialMetadataDone(bool ok) override {
    if (ok) connected_.Set(OkStatus());
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End();
    HandOut();
    for (auto& push : *incoming_.mutable_pushes()) events_.Pushed(std::move(push));
    incoming_.Clear();
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) End();
    std::unique_lock lock(mutex_);
    writing_ = false;
    if (ended_) return Write(std::move(lock));
    if (!outgoing_.empty()) WriteSoon(std::move(lock));
  }

  void OnDone(const grpc::Status& grpc_status) override {
    Status status = FromGrpc(grpc_status, address_);
    std::unordered_map<uint64_t, Answer> pending;
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
      pending = std::move(pending_);
    }
    for (auto& [id, answer] : pending) answer.Set(status);
    events_.Lost(status);
    connected_.Set(status);
    self_.reset();
  }

 private:
  // Resumes those who wait for these replies; the requests that they send then leave together.
  void HandOut() {
    bool waits = false;
    if (incoming_.replies_size() > 1) {
      std::lock_guard lock(mutex_);
      waits = BeginToWait();
    }
    for (auto& reply : *incoming_.mutable_replies()) Answered(std::move(reply));
    if (waits) PostWrite();
  }

  // Starts what is to be done next, if nothing is under way: a write, or letting go.
  void Write(std::unique_lock<std::mutex> lock) {
    if (writing_ || released_) return;
    if (ended_) {
      released_ = true;
      lock.unlock();
      RemoveHold();
      return;
    }
    if (outgoing_.empty()) return;
    writing_ = true;
    writing_frame_ = outgoing_.Take();
    lock.unlock();
    StartWrite(&writing_frame_);
  }

  void End() {
    std::unique_lock lock(mutex_);
    ended_ = true;
    Write(std::move(lock));
  }

  void Answered(proto::MetadataReply reply) {
    std::unique_lock lock(mutex_);
    auto pending = pending_.extract(reply.id());
    lock.unlock();
    if (pending.empty()) {
      LogDebug("the MDS at %s sent a reply to no request: id %d", address_, reply.id());
      return;
    }
    pending.mapped().Set(std::move(reply));
  }

  const std::string address_;
  const Executor executor_;
  const std::unique_ptr<proto::Metadata::Stub> stub_;
  EventQueue events_;
  OneShot<Status> connected_;
  grpc::ClientContext context_;
  std::shared_ptr<ClientStream> self_;  // until gRPC is done with it
  proto::ServerFrame incoming_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, Answer> pending_;
  uint64_t next_id_ = 1;
  FrameBatcher<proto::ClientFrame> outgoing_;
  proto::ClientFrame writing_frame_;
  bool writing_ = false, ended_ = false, released_ = false;
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
    return Call<proto::RegisterOssReply>(&proto::Cluster::Stub::async_interface::RegisterOss,
                                         std::move(request));
  }
  Task<StatusOr<proto::HeartbeatReply>> Heartbeat(proto::HeartbeatRequest request) override {
    return Call<proto::HeartbeatReply>(&proto::Cluster::Stub::async_interface::Heartbeat, std::move(request));
  }
  Task<StatusOr<proto::ClusterStatus>> GetStatus() override {
    proto::GetStatusRequest request;
    auto reply = co_await Call<proto::ClusterStatus>(&proto::Cluster::Stub::async_interface::GetStatus,
                                                     std::move(request));
    if (reply.ok()) CO_RETURN_IF_ERROR(FromProto(reply->status()));
    co_return reply;
  }
  Task<StatusOr<proto::ReportChainReply>> ReportChain(proto::ReportChainRequest request) override {
    return Call<proto::ReportChainReply>(&proto::Cluster::Stub::async_interface::ReportChain,
                                         std::move(request));
  }
  Task<StatusOr<proto::AdminReply>> Administer(proto::AdminRequest request) override {
    return Call<proto::AdminReply>(&proto::Cluster::Stub::async_interface::Administer, std::move(request));
  }

 private:
  template <typename Request, typename Reply>
  using Method = void (proto::Cluster::Stub::async_interface::*)(grpc::ClientContext*, const Request*, Reply*,
                                                                 std::function<void(grpc::Status)>);

  // Memory that gRPC writes to while the call lasts, whether or not somebody still waits.
  template <typename Request, typename Reply>
  struct Pending {
    grpc::ClientContext context;
    Request request;
    Reply reply;
    OneShot<grpc::Status> done;
  };

  template <typename Reply, typename Request>
  Task<StatusOr<Reply>> Call(Method<Request, Reply> method, Request request) {
    auto pending = std::make_shared<Pending<Request, Reply>>();
    pending->request = std::move(request);
    pending->context.set_deadline(
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(timeout_.count(), GPR_TIMESPAN)));
    std::function<void(grpc::Status)> done = [pending](grpc::Status status) {
      pending->done.Set(std::move(status));
    };
    (stub_->async()->*method)(&pending->context, &pending->request, &pending->reply, std::move(done));
    grpc::Status status = co_await pending->done.Wait();
    if (!status.ok()) co_return FromGrpc(status, address_);
    co_return std::move(pending->reply);
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
