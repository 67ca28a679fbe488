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

#include "proto/backup.grpc.pb.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/copies.grpc.pb.h"
#include "proto/metadata.grpc.pb.h"
#include "rpc/convert.h"
#include "rpc/grpc_common.h"
#include "rpc/grpc_completions.h"
#include "rpc/grpc_served.h"
#include "rpc/grpc_session.h"

namespace nacre {
namespace {

// Sends one piece after the other: at any time either a piece is made, on the executor, or one is on its way.
// Only what does the one or the other calls into gRPC, so it ends once.
class BackupStream : public std::enable_shared_from_this<BackupStream> {
 public:
  BackupStream(GrpcServing& serving, proto::Backup::AsyncService& service, BackupHandler& handler)
      : serving_(serving), service_(service), handler_(handler) {}

  // As GrpcCalls wants them.
  void Wait(void* tag) {
    service_.RequestBackupMdt(&context_, &request_, &writer_, serving_.queue, serving_.queue, tag);
  }
  void Start() {
    user_.emplace(serving_.users);
    asio::post(serving_.executor, [self = shared_from_this()] { self->Begin(); });
  }
  void Drop() {}

 private:
  void OnWritten(bool ok) {
    if (!ok || piece_.last() || piece_.status().error() != 0) return End();
    asio::post(serving_.executor, [self = shared_from_this()] { self->MakeNext(); });
  }
  void OnFinished(bool) {}

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
    writer_.Write(piece_, write_.Begin());  // fails at once where the asker is gone
  }

  void End() {
    source_.reset();  // while the store is there: the server waits for this end when it stops
    writer_.Finish(grpc::Status::OK, finish_.Begin());
    user_.reset();
  }

  GrpcServing& serving_;
  proto::Backup::AsyncService& service_;
  BackupHandler& handler_;
  grpc::ServerContext context_;
  proto::BackupRequest request_;
  grpc::ServerAsyncWriter<proto::BackupPiece> writer_{&context_};
  std::optional<GrpcUsers::User> user_;  // until it has been finished
  std::unique_ptr<BackupSource> source_;
  proto::BackupPiece piece_;
  Reaction<BackupStream, &BackupStream::OnWritten> write_{this};
  Reaction<BackupStream, &BackupStream::OnFinished> finish_{this};
};

// One of gRPC's services. Its methods are waited for from Begin on.
class GrpcService {
 public:
  virtual ~GrpcService() = default;
  virtual grpc::Service* service() = 0;
  virtual void Begin(GrpcServing& serving) = 0;

 protected:
  template <typename Call>
  static void Serve(GrpcServing& serving, typename GrpcCalls<Call>::Make make) {
    std::make_shared<GrpcCalls<Call>>(serving, std::move(make))->WaitForNext();
  }

  // A method with one answer. wait_for: the service's Request… of it.
  template <typename Request, typename Reply, typename Service>
  static void ServeUnary(GrpcServing& serving, Service& service,
                         void (Service::*wait_for)(grpc::ServerContext*, Request*,
                                                   grpc::ServerAsyncResponseWriter<Reply>*,
                                                   grpc::CompletionQueue*, grpc::ServerCompletionQueue*,
                                                   void*),
                         typename UnaryCall<Request, Reply>::Handle handle) {
    using Call = UnaryCall<Request, Reply>;
    typename Call::WaitFor wait = [&serving, &service, wait_for](auto* context, auto* request, auto* writer,
                                                                 void* tag) {
      (service.*wait_for)(context, request, writer, serving.queue, serving.queue, tag);
    };
    Serve<Call>(serving, [&serving, wait, handle] { return std::make_shared<Call>(serving, wait, handle); });
  }
};

class MetadataService : public GrpcService {
 public:
  explicit MetadataService(MetadataHandler& handler) : handler_(handler) {}

  grpc::Service* service() override { return &service_; }
  void Begin(GrpcServing& serving) override {
    Serve<GrpcSession>(
        serving, [this, &serving] { return std::make_shared<GrpcSession>(serving, service_, handler_); });
  }

 private:
  MetadataHandler& handler_;
  proto::Metadata::AsyncService service_;
};

class ClusterService : public GrpcService {
 public:
  explicit ClusterService(ClusterHandler& handler) : handler_(handler) {}

  grpc::Service* service() override { return &service_; }
  void Begin(GrpcServing& serving) override {
    using Async = proto::Cluster::AsyncService;
    ServeUnary<proto::RegisterOssRequest, proto::RegisterOssReply, Async>(
        serving, service_, &Async::RequestRegisterOss,
        [this](auto request) { return handler_.RegisterOss(std::move(request)); });
    ServeUnary<proto::HeartbeatRequest, proto::HeartbeatReply, Async>(
        serving, service_, &Async::RequestHeartbeat,
        [this](auto request) { return handler_.Heartbeat(std::move(request)); });
    ServeUnary<proto::ReportChainRequest, proto::ReportChainReply, Async>(
        serving, service_, &Async::RequestReportChain,
        [this](auto request) { return handler_.ReportChain(std::move(request)); });
    ServeUnary<proto::GetStatusRequest, proto::ClusterStatus, Async>(
        serving, service_, &Async::RequestGetStatus, [this](auto) { return handler_.GetStatus(); });
    ServeUnary<proto::AdminRequest, proto::AdminReply, Async>(
        serving, service_, &Async::RequestAdminister,
        [this](auto request) { return handler_.Administer(std::move(request)); });
  }

 private:
  ClusterHandler& handler_;
  proto::Cluster::AsyncService service_;
};

class BackupService : public GrpcService {
 public:
  explicit BackupService(BackupHandler& handler) : handler_(handler) {}

  grpc::Service* service() override { return &service_; }
  void Begin(GrpcServing& serving) override {
    Serve<BackupStream>(
        serving, [this, &serving] { return std::make_shared<BackupStream>(serving, service_, handler_); });
  }

 private:
  BackupHandler& handler_;
  proto::Backup::AsyncService service_;
};

class CopiesService : public GrpcService {
 public:
  explicit CopiesService(CopyHandler& handler) : handler_(handler) {}

  grpc::Service* service() override { return &service_; }
  void Begin(GrpcServing& serving) override {
    using Async = proto::Copies::AsyncService;
    ServeUnary<proto::CopyRequest, proto::CopyReply, Async>(
        serving, service_, &Async::RequestExchange,
        [this](auto request) { return handler_.Exchange(std::move(request)); });
  }

 private:
  CopyHandler& handler_;
  proto::Copies::AsyncService service_;
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

// Destroyed from the last to the first: the queue has ended, with all that is under way, before what it uses.
struct GrpcServer::Impl {
  explicit Impl(const Executor& executor) : serving(executor) {}
  ~Impl() { Stop(); }

  void Stop();

  GrpcServing serving;
  std::vector<std::unique_ptr<GrpcService>> services;
  std::vector<std::string> addresses;
  std::unique_ptr<grpc::Server> server;
  std::optional<Completions> completions;
};

void GrpcServer::Impl::Stop() {
  if (server == nullptr) return;
  server->Shutdown(gpr_now(GPR_CLOCK_MONOTONIC));  // cancels what is under way
  server->Wait();
  serving.users.WaitForNone();
  completions.reset();
  server.reset();
}

StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(Executor executor, const GrpcServices& services,
                                                        const std::vector<std::string>& addresses) {
  QuietGrpc();
  auto impl = std::make_unique<Impl>(executor);
  const auto add = [&impl](std::unique_ptr<GrpcService> service) {
    impl->services.push_back(std::move(service));
  };
  if (services.metadata != nullptr) add(std::make_unique<MetadataService>(*services.metadata));
  if (services.cluster != nullptr) add(std::make_unique<ClusterService>(*services.cluster));
  if (services.backup != nullptr) add(std::make_unique<BackupService>(*services.backup));
  if (services.copies != nullptr) add(std::make_unique<CopiesService>(*services.copies));
  grpc::ServerBuilder builder;
  SetServerArguments(&builder);
  for (const auto& service : impl->services) builder.RegisterService(service->service());
  std::vector<int> ports(addresses.size(), 0);
  for (size_t i = 0; i < addresses.size(); ++i) {
    ASSIGN_OR_RETURN(std::string target, GrpcTarget(addresses[i]));
    builder.AddListeningPort(target, grpc::InsecureServerCredentials(), &ports[i]);
  }
  auto queue = builder.AddCompletionQueue();
  impl->serving.queue = queue.get();
  impl->server = builder.BuildAndStart();
  impl->completions.emplace(std::move(queue));
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (ports[i] == 0) return WhyNot(addresses[i]);
    std::string address = addresses[i];
    if (absl::EndsWith(address, ":0"))
      address = absl::StrFormat("%s%d", address.substr(0, address.size() - 1), ports[i]);
    impl->addresses.push_back(address);
  }
  if (impl->server == nullptr) return ErrnoError(EIO, "the gRPC server did not start");
  for (const auto& service : impl->services) service->Begin(impl->serving);
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GrpcServer::~GrpcServer() { Stop(); }

const std::vector<std::string>& GrpcServer::addresses() const { return impl_->addresses; }

void GrpcServer::Stop() { impl_->Stop(); }

}  // namespace nacre
