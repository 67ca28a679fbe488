#include "daemon/mds_member_role.h"

#include <absl/strings/str_format.h>

#include <cerrno>

#include "common/log.h"
#include "common/random.h"
#include "daemon/background.h"
#include "daemon/mdt_store.h"
#include "rpc/grpc_copies.h"
#include "server/coordination/etcd_coordinator.h"
#include "server/replication/withheld_transport.h"

namespace nacre {
namespace {

// A start that fails because the member was deposed meanwhile is known as such within this time.
constexpr Duration kDeposedFirst = 2s;
// The last writes of a metadata server that stops may wait this long for members that are away.
constexpr Duration kStopPatience = 30s;

void Say(const std::string& state) {
  LogInfo("%s", state);
  NotifySystemd("STATUS=" + state);
}

}  // namespace

// The cluster's side of the metadata server, which knows nothing of its copies: they are added to its status.
class MdsMemberRole::ShownCopies : public ClusterHandler {
 public:
  ShownCopies(ClusterHandler& cluster, replication::Member& member) : cluster_(cluster), member_(member) {}

  Task<proto::RegisterOssReply> RegisterOss(proto::RegisterOssRequest request) override {
    return cluster_.RegisterOss(std::move(request));
  }
  Task<proto::HeartbeatReply> Heartbeat(proto::HeartbeatRequest request) override {
    return cluster_.Heartbeat(std::move(request));
  }
  Task<proto::ReportChainReply> ReportChain(proto::ReportChainRequest request) override {
    return cluster_.ReportChain(std::move(request));
  }
  Task<proto::ClusterStatus> GetStatus() override {
    proto::ClusterStatus status = co_await cluster_.GetStatus();
    *status.mutable_copies() = member_.Describe();
    if (std::string problem = member_.Problem(); !problem.empty()) status.add_problems(std::move(problem));
    co_return status;
  }
  Task<proto::AdminReply> Administer(proto::AdminRequest request) override {
    return cluster_.Administer(std::move(request));
  }

 private:
  ClusterHandler& cluster_;
  replication::Member& member_;
};

MdsMemberRole::MdsMemberRole(Runtime& runtime, Transport& transport, const MdsConfig& config)
    : runtime_(runtime), transport_(transport), config_(config) {}

MdsMemberRole::~MdsMemberRole() = default;

StatusOr<std::unique_ptr<MdsMemberRole>> MdsMemberRole::Start(Runtime& runtime, Transport& transport,
                                                              const MdsConfig& config) {
  std::unique_ptr<MdsMemberRole> role(new MdsMemberRole(runtime, transport, config));
  Status opened = role->Open();
  if (opened.ok()) {
    Spawn(runtime.executor(), role->Live());
    return role;
  }
  if (role->member_ != nullptr) {
    Status stopped = runtime.Run(role->member_->Stop());
    (void)stopped;  // the error before it counts
  }
  return opened;
}

Status MdsMemberRole::Open() {
  const CopiesConfig& copies = config_.copies;
  ASSIGN_OR_RETURN(store_, OpenMdtStore(config_));
  ASSIGN_OR_RETURN(coordinator_, coordination::NewEtcdCoordinator(copies.etcd));
  connector_ = NewGrpcCopyConnector();
  replication::MemberEnvironment environment{runtime_.executor(), RealClock(), SystemRandom(), *store_,
                                             *coordinator_,       *connector_};
  replication::MemberOptions options;
  options.name = copies.name;
  options.address = copies.address;
  options.prefix = copies.prefix;
  options.boot = config_.options.boot;
  options.accept_loss = copies.accept_loss;
  ASSIGN_OR_RETURN(member_, runtime_.Run(replication::Member::Start(environment, options)));
  front_ = std::make_unique<MdsFront>(copies.name, [member = member_] { return member->primary_address(); });
  GrpcServices services;
  services.metadata = front_.get();
  services.cluster = front_.get();
  services.backup = front_.get();
  services.copies = member_.get();
  ASSIGN_OR_RETURN(grpc_, GrpcServer::Start(runtime_.executor(), services, config_.listen));
  return OkStatus();
}

// The whole life of the member; says how it ends, unless it was stopped.
Task<void> MdsMemberRole::Live() {
  StatusOr<replication::Member::Primacy> primacy = co_await member_->AwaitPrimary();
  Status status = primacy.status();
  if (primacy.ok()) {
    Spawn(runtime_.executor(),
          [](std::shared_ptr<replication::Member> member, OneShot<Status> deposed) -> Task<void> {
            Status why = co_await member->AwaitEnd();
            deposed.Set(std::move(why));
          }(member_, deposed_));
    status = co_await Serve(*primacy);
    if (!status.ok()) co_await RealClock().Sleep(kDeposedFirst);
  }
  if (!status.ok()) failed_.Set(status);
  over_.Set({});
}

Task<Status> MdsMemberRole::Serve(replication::Member::Primacy primacy) {
  Say(absl::StrFormat("MDS %s becomes the primary, in epoch %d", config_.copies.name, primacy.epoch));
  to_osts_ = replication::NewWithheldTransport(transport_, member_, RealClock());
  MetadataEnvironment environment{runtime_.executor(), RealClock(), SystemRandom(),
                                  member_->store(),    *to_osts_,   member_.get()};
  MetadataOptions options = config_.options;
  options.epoch = primacy.epoch;
  options.boot = primacy.boot;
  auto started = co_await MetadataServer::Start(environment, options);
  if (!started.ok()) {
    co_return Status(
        started.status().code(),
        absl::StrFormat("MDS %s has become the primary, but the MDT in %s cannot be served: %s",
                        config_.copies.name, config_.directory, std::string(started.status().message())));
  }
  {
    std::lock_guard lock(mutex_);
    server_ = *std::move(started);
    if (stopping_) co_return OkStatus();
  }
  cluster_ = std::make_unique<ShownCopies>(*server_, *member_);
  backups_ = std::make_unique<MdtBackups>(member_->store(), RealClock());
  front_->Serve(*server_, *cluster_, *backups_, member_);
  Say(absl::StrFormat("MDS %s serves as the primary, in epoch %d", config_.copies.name, primacy.epoch));
  co_return OkStatus();
}

// Not for ever: when the member has ended, what still waits fails, and so this end comes, too.
Task<Status> MdsMemberRole::StopServer() {
  OneShot<Status> stopped;
  Spawn(runtime_.executor(),
        [](MetadataServer& server, OneShot<Status> stopped, OneShot<Unit> ended) -> Task<void> {
          Status status = co_await server.Stop();
          stopped.Set(std::move(status));
          ended.Set({});
        }(*server_, stopped, server_ended_));
  Spawn(runtime_.executor(), [](OneShot<Status> stopped) -> Task<void> {
    co_await RealClock().Sleep(kStopPatience);
    stopped.Set(ErrnoError(ETIMEDOUT, "the other MDSes have not taken the last changes"));
  }(stopped));
  co_return co_await stopped.Wait();
}

bool MdsMemberRole::BeginStop() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  return server_ != nullptr;
}

Status MdsMemberRole::Stop() {
  auto await = [this](OneShot<Unit> end) {
    runtime_.Run([](OneShot<Unit> end) -> Task<Unit> { co_return co_await end.Wait(); }(end));
  };
  grpc_->Stop();
  const bool serves = BeginStop();
  Status stopped = serves ? runtime_.Run(StopServer()) : OkStatus();
  stopped.Update(runtime_.Run(member_->Stop()));
  if (serves) await(server_ended_);
  await(over_);
  if (!serves && server_ != nullptr) {
    Status unused = runtime_.Run(server_->Stop());  // it had begun meanwhile: nothing was asked of it
    (void)unused;
  }
  return stopped;
}

}  // namespace nacre
