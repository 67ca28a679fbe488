#include "daemon/mds_role.h"

#include "common/random.h"
#include "daemon/mdt_store.h"
#include "server/replication/alone.h"

namespace nacre {

StatusOr<std::unique_ptr<MdsRole>> MdsRole::Start(Runtime& runtime, Transport& transport,
                                                  const MdsConfig& config) {
  std::unique_ptr<MdsRole> role(new MdsRole(runtime));
  ASSIGN_OR_RETURN(role->store_, OpenMdtStore(config));
  MetadataOptions options = config.options;
  ASSIGN_OR_RETURN(options.epoch, replication::EpochOfAlone(*role->store_, config.directory));
  MetadataEnvironment environment{runtime.executor(), RealClock(), SystemRandom(), *role->store_, transport};
  ASSIGN_OR_RETURN(role->server_, runtime.Run(MetadataServer::Start(environment, options)));
  role->inproc_ = std::make_unique<InprocServer>(runtime.executor(), *role->server_, *role->server_);
  role->backups_ = std::make_unique<MdtBackups>(*role->store_, RealClock());
  GrpcServices services;
  services.metadata = role->server_.get();
  services.cluster = role->server_.get();
  services.backup = role->backups_.get();
  auto grpc = GrpcServer::Start(runtime.executor(), services, config.listen);
  if (!grpc.ok()) {
    Status stopped = role->Stop();
    (void)stopped;  // nothing was asked of it yet
    return grpc.status();
  }
  role->grpc_ = *std::move(grpc);
  return role;
}

Status MdsRole::Stop() {
  if (grpc_ != nullptr) grpc_->Stop();
  inproc_->Stop();
  return runtime_.Run(server_->Stop());
}

}  // namespace nacre
