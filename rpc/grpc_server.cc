#include "rpc/grpc_server.h"

#include <absl/strings/match.h>
#include <absl/strings/str_format.h>
#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>

#include "common/log.h"
#include "proto/backup.grpc.pb.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/copies.grpc.pb.h"
#include "proto/metadata.grpc.pb.h"
#include "rpc/convert.h"
#include "rpc/frame_batcher.h"
#include "rpc/grpc_common.h"
#include "rpc/request_queue.h"
#include "rpc/writes_in_turn.h"

namespace nacre {
namespace {

// Requests neither begin nor are read while so much waits to be sent: a client that does not read cannot fill
// our memory.
constexpr size_t kMaxQueuedBytes = 64 << 20;

// One stream, and for the MDS its peer. gRPC's reactions and Send come from any thread. Calls into gRPC are
// made without the lock: a reaction may run inside them.
class ServerStream : public grpc::ServerBidiReactor<proto::ClientFrame, proto::ServerFrame>,
                     public MetadataPeer,
                     public std::enable_shared_from_this<ServerStream>,
                     private WritesInTurn<ServerStream> {
  friend class WritesInTurn<ServerStream>;

 public:
  ServerStream(Executor executor, MetadataHandler& handler, std::string name)
      : executor_(std::move(executor)), handler_(handler), name_(std::move(name)) {}

  void Start() {
    self_ = shared_from_this();
    StartSendInitialMetadata();  // tells the client that we are there
    StartRead(&incoming_);
  }

  std::string name() const override { return name_; }

  void Send(proto::Push push) override {
    std::unique_lock lock(mutex_);
    if (ended_) return;
    *outgoing_.Room(push.ByteSizeLong()).add_pushes() = std::move(push);
    Write(std::move(lock));
  }

  // Messages that were sent before still go out.
  void Close() override { End(false); }

  void OnReadDone(bool ok) override {
    if (!ok) return End(true);
    std::unique_lock lock(mutex_);
    reading_ = false;
    for (auto& request : *incoming_.mutable_requests()) {
      const size_t bytes = request.ByteSizeLong();
      requests_.Add(std::move(request), bytes);
    }
    incoming_.Clear();
    Proceed(std::move(lock));
  }

  void OnWriteDone(bool ok) override {
    if (!ok) End(true);
    std::unique_lock lock(mutex_);
    writing_ = false;
    if (ended_ || outgoing_.empty())
      Write(std::move(lock));
    else
      WriteSoon(std::move(lock));
    Proceed(std::unique_lock(mutex_));
  }

  void OnDone() override {
    asio::post(executor_, [self = self_] { self->handler_.Disconnected(self); });
    self_.reset();
  }

 private:
  static Task<void> Handle(std::shared_ptr<ServerStream> self, proto::MetadataRequest request) {
    const uint64_t id = request.id();
    proto::MetadataReply reply = co_await self->handler_.Handle(self, std::move(request));
    reply.set_id(id);
    self->Answer(std::move(reply));
  }

  // Lets requests begin, and reads on, while not too much waits to be sent. The executor takes what is posted
  // in order, so when the next burst has its turn, those of this one have been answered or wait for
  // something.
  void Proceed(std::unique_lock<std::mutex> lock) {
    if (ended_) return;
    std::vector<proto::MetadataRequest> begun;
    if (outgoing_.bytes() <= kMaxQueuedBytes && !burst_posted_) begun = requests_.Begin();
    const bool more = !begun.empty() && requests_.CanBegin();
    burst_posted_ |= more;
    const bool read = !reading_ && requests_.HasRoom() && outgoing_.bytes() <= kMaxQueuedBytes;
    reading_ |= read;
    // The answers of those that begin together leave together.
    const bool waits = begun.size() > 1 && BeginToWait();
    lock.unlock();
    for (auto& request : begun) Spawn(executor_, Handle(shared_from_this(), std::move(request)));
    if (waits) PostWrite();
    if (more) asio::post(executor_, [self = shared_from_this()] { self->NextBurst(); });
    if (read) StartRead(&incoming_);
  }

  void NextBurst() {
    std::unique_lock lock(mutex_);
    burst_posted_ = false;
    Proceed(std::move(lock));
  }

  void Answer(proto::MetadataReply reply) {
    size_t bytes = reply.ByteSizeLong();
    if (bytes > kMaxMetadataMessage) {
      std::string message =
          absl::StrFormat("a reply of %d bytes is beyond the limit of %d", bytes, kMaxMetadataMessage);
      LogError("%s: %s", name_, message);
      const uint64_t id = reply.id();
      reply.Clear();
      reply.set_id(id);
      reply.mutable_status()->set_error(EMSGSIZE);
      reply.mutable_status()->set_message(message);
      bytes = reply.ByteSizeLong();
    }
    std::unique_lock lock(mutex_);
    requests_.Ended();
    if (ended_) return;
    *outgoing_.Room(bytes).add_replies() = std::move(reply);
    WriteSoon(std::move(lock));
    if (lock = std::unique_lock(mutex_); requests_.CanBegin()) Proceed(std::move(lock));
  }

  // Starts what is to be done next, if nothing is under way: a write, or the end.
  void Write(std::unique_lock<std::mutex> lock) {
    if (writing_ || finished_) return;
    if (!outgoing_.empty()) {
      writing_ = true;
      writing_frame_ = outgoing_.Take();
      lock.unlock();
      StartWrite(&writing_frame_);
      return;
    }
    if (!ended_) return;
    finished_ = true;
    lock.unlock();
    Finish(grpc::Status::OK);
  }

  void End(bool lost) {
    std::unique_lock lock(mutex_);
    ended_ = true;
    requests_.Clear();
    if (lost) outgoing_.Clear();
    Write(std::move(lock));
  }

  const Executor executor_;
  MetadataHandler& handler_;
  const std::string name_;
  std::shared_ptr<ServerStream> self_;  // until gRPC is done with it
  proto::ClientFrame incoming_;
  std::mutex mutex_;
  RequestQueue<proto::MetadataRequest> requests_;
  FrameBatcher<proto::ServerFrame> outgoing_;
  proto::ServerFrame writing_frame_;
  bool writing_ = false, ended_ = false, finished_ = false;
  bool reading_ = true;        // from Start on
  bool burst_posted_ = false;  // NextBurst is to come
};

// A call with one answer. Ends with the handler's reply or by cancellation, whatever comes first.
template <typename Reply>
class UnaryCall : public grpc::ServerUnaryReactor, public std::enable_shared_from_this<UnaryCall<Reply>> {
 public:
  explicit UnaryCall(Reply* reply) : reply_(reply) {}

  void Start(const Executor& executor, Task<Reply> task) {
    self_ = this->shared_from_this();
    Spawn(executor, Run(self_, std::move(task)));
  }

  void OnCancel() override { End(nullptr, grpc::Status(grpc::StatusCode::CANCELLED, "cancelled")); }
  void OnDone() override { self_.reset(); }

 private:
  static Task<void> Run(std::shared_ptr<UnaryCall> self, Task<Reply> task) {
    Reply reply = co_await std::move(task);
    self->End(&reply, grpc::Status::OK);
  }

  void End(Reply* reply, grpc::Status status) {
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(ended_, true)) return;
      if (reply != nullptr) *reply_ = std::move(*reply);
    }
    Finish(status);
  }

  Reply* reply_;
  std::mutex mutex_;
  bool ended_ = false;
  std::shared_ptr<UnaryCall> self_;
};

class MetadataService : public proto::Metadata::CallbackService {
 public:
  MetadataService(Executor executor, MetadataHandler& handler)
      : executor_(std::move(executor)), handler_(handler) {}

  grpc::ServerBidiReactor<proto::ClientFrame, proto::ServerFrame>* Session(
      grpc::CallbackServerContext* context) override {
    auto stream = std::make_shared<ServerStream>(executor_, handler_, context->peer());
    stream->Start();
    return stream.get();
  }

 private:
  const Executor executor_;
  MetadataHandler& handler_;
};

class ClusterService : public proto::Cluster::CallbackService {
 public:
  ClusterService(Executor executor, ClusterHandler& handler)
      : executor_(std::move(executor)), handler_(handler) {}

  grpc::ServerUnaryReactor* RegisterOss(grpc::CallbackServerContext*,
                                        const proto::RegisterOssRequest* request,
                                        proto::RegisterOssReply* reply) override {
    return Start(reply, handler_.RegisterOss(*request));
  }
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext*, const proto::HeartbeatRequest* request,
                                      proto::HeartbeatReply* reply) override {
    return Start(reply, handler_.Heartbeat(*request));
  }
  grpc::ServerUnaryReactor* ReportChain(grpc::CallbackServerContext*,
                                        const proto::ReportChainRequest* request,
                                        proto::ReportChainReply* reply) override {
    return Start(reply, handler_.ReportChain(*request));
  }
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext*, const proto::GetStatusRequest*,
                                      proto::ClusterStatus* reply) override {
    return Start(reply, handler_.GetStatus());
  }
  grpc::ServerUnaryReactor* Administer(grpc::CallbackServerContext*, const proto::AdminRequest* request,
                                       proto::AdminReply* reply) override {
    return Start(reply, handler_.Administer(*request));
  }

 private:
  template <typename Reply>
  grpc::ServerUnaryReactor* Start(Reply* reply, Task<Reply> task) {
    auto call = std::make_shared<UnaryCall<Reply>>(reply);
    call->Start(executor_, std::move(task));
    return call.get();
  }

  const Executor executor_;
  ClusterHandler& handler_;
};

// Sends one piece after the other: at any time either a piece is made, on the executor, or one is on its way.
// Only what does the one or the other calls into gRPC, so it ends once.
class BackupStream : public grpc::ServerWriteReactor<proto::BackupPiece>,
                     public std::enable_shared_from_this<BackupStream> {
 public:
  BackupStream(Executor executor, BackupHandler& handler)
      : executor_(std::move(executor)), handler_(handler) {}

  void Start() {
    self_ = shared_from_this();
    asio::post(executor_, [self = self_] { self->Begin(); });
  }

  void OnWriteDone(bool ok) override {
    if (!ok || piece_.last() || piece_.status().error() != 0) return End();
    asio::post(executor_, [self = self_] { self->MakeNext(); });
  }
  void OnDone() override { self_.reset(); }

 private:
  void Begin() {
    auto source = handler_.BeginBackup();
    if (!source.ok()) return Send(source.status());
    source_ = *std::move(source);
    piece_.set_expected_bytes(source_->expected_bytes());
    MakeNext();
  }

  void MakeNext() {
    auto data = source_->Next();
    if (!data.ok()) return Send(data.status());
    piece_.set_last(!data->has_value());
    piece_.set_data(std::move(*data).value_or(std::string()));
    Send(OkStatus());
  }

  void Send(const Status& status) {
    *piece_.mutable_status() = ToProto(status);
    StartWrite(&piece_);  // fails at once where the asker is gone
  }

  void End() {
    source_.reset();  // while the store is there: the server waits for this end when it stops
    Finish(grpc::Status::OK);
  }

  const Executor executor_;
  BackupHandler& handler_;
  std::shared_ptr<BackupStream> self_;  // until gRPC is done with it
  std::unique_ptr<BackupSource> source_;
  proto::BackupPiece piece_;
};

class BackupService : public proto::Backup::CallbackService {
 public:
  BackupService(Executor executor, BackupHandler& handler)
      : executor_(std::move(executor)), handler_(handler) {}

  grpc::ServerWriteReactor<proto::BackupPiece>* BackupMdt(grpc::CallbackServerContext*,
                                                          const proto::BackupRequest*) override {
    auto stream = std::make_shared<BackupStream>(executor_, handler_);
    stream->Start();
    return stream.get();
  }

 private:
  const Executor executor_;
  BackupHandler& handler_;
};

class CopiesService : public proto::Copies::CallbackService {
 public:
  CopiesService(Executor executor, CopyHandler& handler)
      : executor_(std::move(executor)), handler_(handler) {}

  grpc::ServerUnaryReactor* Exchange(grpc::CallbackServerContext*, const proto::CopyRequest* request,
                                     proto::CopyReply* reply) override {
    auto call = std::make_shared<UnaryCall<proto::CopyReply>>(reply);
    call->Start(executor_, handler_.Exchange(*request));
    return call.get();
  }

 private:
  const Executor executor_;
  CopyHandler& handler_;
};

int TryBind(int family, const sockaddr* address, socklen_t size) {
  int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  int error = bind(fd, address, size) == 0 && listen(fd, 1) == 0 ? 0 : errno;
  close(fd);
  return error;
}

// gRPC does not say why it could not listen; this finds out.
Status WhyNot(const std::string& address) {
  int error = 0;
  if (absl::StartsWith(address, "unix:")) {
    sockaddr_un where{};
    where.sun_family = AF_UNIX;
    std::strncpy(where.sun_path, address.c_str() + 5, sizeof where.sun_path - 1);
    error = TryBind(AF_UNIX, reinterpret_cast<sockaddr*>(&where), sizeof where);
    if (error == 0) unlink(where.sun_path);
  } else {
    size_t colon = address.rfind(':');
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (int code =
            getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &hints, &found);
        code != 0) {
      return ErrnoError(EADDRNOTAVAIL,
                        absl::StrFormat("cannot listen at %s: %s", address, gai_strerror(code)));
    }
    error = TryBind(found->ai_family, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
  }
  if (error == 0) error = EIO;
  std::string hint =
      error == EADDRINUSE ? "; another server listens there: stop it, or choose another address" : "";
  return ErrnoError(error, absl::StrFormat("cannot listen at %s: %s%s", address, strerror(error), hint));
}

}  // namespace

struct GrpcServer::Impl {
  Impl(const Executor& executor, const GrpcServices& services) {
    if (services.metadata != nullptr) metadata.emplace(executor, *services.metadata);
    if (services.cluster != nullptr) cluster.emplace(executor, *services.cluster);
    if (services.backup != nullptr) backup.emplace(executor, *services.backup);
    if (services.copies != nullptr) copies.emplace(executor, *services.copies);
  }

  std::optional<MetadataService> metadata;
  std::optional<ClusterService> cluster;
  std::optional<BackupService> backup;
  std::optional<CopiesService> copies;
  std::vector<std::string> addresses;
  std::unique_ptr<grpc::Server> server;
};

StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(Executor executor, const GrpcServices& services,
                                                        const std::vector<std::string>& addresses) {
  QuietGrpc();
  auto impl = std::make_unique<Impl>(executor, services);
  grpc::ServerBuilder builder;
  SetServerArguments(&builder);
  if (impl->metadata) builder.RegisterService(&*impl->metadata);
  if (impl->cluster) builder.RegisterService(&*impl->cluster);
  if (impl->backup) builder.RegisterService(&*impl->backup);
  if (impl->copies) builder.RegisterService(&*impl->copies);
  std::vector<int> ports(addresses.size(), 0);
  for (size_t i = 0; i < addresses.size(); ++i) {
    ASSIGN_OR_RETURN(std::string target, GrpcTarget(addresses[i]));
    builder.AddListeningPort(target, grpc::InsecureServerCredentials(), &ports[i]);
  }
  impl->server = builder.BuildAndStart();
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (ports[i] == 0) return WhyNot(addresses[i]);
    std::string address = addresses[i];
    if (absl::EndsWith(address, ":0"))
      address = absl::StrFormat("%s%d", address.substr(0, address.size() - 1), ports[i]);
    impl->addresses.push_back(address);
  }
  if (impl->server == nullptr) return ErrnoError(EIO, "the gRPC server did not start");
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GrpcServer::~GrpcServer() { Stop(); }

const std::vector<std::string>& GrpcServer::addresses() const { return impl_->addresses; }

void GrpcServer::Stop() {
  if (impl_->server == nullptr) return;
  impl_->server->Shutdown(gpr_now(GPR_CLOCK_MONOTONIC));  // cancels what is under way
  impl_->server->Wait();
  impl_->server.reset();
}

}  // namespace nacre
