// The OSS towards the MGS: registration and heartbeats (proto/cluster.proto).
#include "common/log.h"
#include "common/metrics.h"
#include "rpc/convert.h"
#include "server/object/server_core.h"

namespace nacre::ost {
namespace {

proto::OstInfo Describe(Target& target) {
  proto::OstInfo info;
  StoreSpace space = target.store->GetSpace();
  info.set_index(target.store->superblock().index);
  info.set_uuid(target.store->superblock().uuid);
  info.set_total_bytes(space.total_bytes);
  info.set_available_bytes(space.available_bytes);
  info.set_objects(space.objects);
  info.set_directory(target.store->directory());
  for (std::string& problem : target.store->problems().List()) info.add_problems(std::move(problem));
  return info;
}

std::string ClusterUuid(const ServerCore& core) {
  for (const Target& target : core.targets) {
    if (!target.store->superblock().cluster_uuid.empty()) return target.store->superblock().cluster_uuid;
  }
  return "";
}

Task<StatusOr<Duration>> Register(std::shared_ptr<ServerCore> core) {
  proto::RegisterOssRequest request;
  request.set_cluster_uuid(ClusterUuid(*core));
  request.set_address(core->address);
  request.set_instance(core->instance);
  request.set_resident_bytes(ResidentBytes());
  for (Target& target : core->targets) *request.add_osts() = Describe(target);
  CO_ASSIGN_OR_RETURN(proto::RegisterOssReply reply,
                      co_await core->environment.cluster->RegisterOss(std::move(request)));
  CO_RETURN_IF_ERROR(FromProto(reply.status()));
  if (core->stopping()) co_return core->options.heartbeat;
  for (Target& target : core->targets)
    CO_RETURN_IF_ERROR(co_await target.store->JoinCluster(reply.cluster_uuid()));
  Duration interval = std::chrono::milliseconds(reply.heartbeat_ms());
  co_return interval > Duration{0} ? interval : core->options.heartbeat;
}

Task<Status> Beat(std::shared_ptr<ServerCore> core) {
  proto::HeartbeatRequest request;
  request.set_address(core->address);
  request.set_instance(core->instance);
  request.set_resident_bytes(ResidentBytes());
  for (Target& target : core->targets) *request.add_osts() = Describe(target);
  CO_ASSIGN_OR_RETURN(proto::HeartbeatReply reply,
                      co_await core->environment.cluster->Heartbeat(std::move(request)));
  co_return FromProto(reply.status());
}

}  // namespace

Task<void> RunHeartbeats(std::shared_ptr<ServerCore> core) {
  ServerCore::Running running(core);
  Duration interval = core->options.heartbeat;
  bool registered = false;
  std::string last_error;
  while (!core->stopping()) {
    Status status;
    if (registered) {
      status = co_await Beat(core);
      if (absl::IsNotFound(status)) {
        LogInfo("the MGS does not know this server: registering again");
        registered = false;
        continue;
      }
    } else {
      StatusOr<Duration> reply = co_await Register(core);
      status = reply.status();
      registered = reply.ok();
      if (registered) {
        interval = *reply;
        LogInfo("registered with the MGS as %s", core->address);
      }
    }
    if (core->stopping()) break;
    std::string error(status.message());
    if (error != last_error && !status.ok()) LogWarning("MGS: %s; trying again", error);
    if (error != last_error && status.ok()) LogInfo("MGS: in contact again");
    last_error = std::move(error);
    co_await core->Pause(interval);
  }
}

}  // namespace nacre::ost
