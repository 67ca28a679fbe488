// The OSS towards the MGS: registration and heartbeats (proto/cluster.proto).
#include <cerrno>

#include "common/log.h"
#include "common/metrics.h"
#include "rpc/convert.h"
#include "rpc/versions.h"
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
  info.set_copies(target.copies);
  if (target.chain != nullptr) info.set_chain_epoch(target.chain->epoch());
  *info.mutable_scrub() = target.scrubber->State();
  for (Problem& problem : target.store->problems().List()) {
    info.add_problems(std::move(problem.text));
    *info.add_problem_files() = ToProto(problem.file);
  }
  Status place = target.store->CheckPlace();
  if (place.ok()) return info;
  info.set_failing(true);
  info.add_problems(absl::StrCat("the OST in ", target.store->directory(), " has gone: ", place.message(),
                                 ". Is its disk still there?"));
  *info.add_problem_files() = ToProto(Fid{});
  return info;
}

std::string ClusterUuid(const ServerCore& core) {
  for (const Target& target : core.targets) {
    if (!target.store->superblock().cluster_uuid.empty()) return target.store->superblock().cluster_uuid;
  }
  return "";
}

// Logs, once for each, the OSTs that the MGS does not count among the cluster's any more.
void NoteRemoved(ServerCore& core, const google::protobuf::RepeatedField<uint32_t>& removed) {
  for (const uint32_t ost : removed) {
    if (!core.removed.insert(ost).second) continue;
    LogWarning(
        "OST %d has been removed from the cluster and serves nobody any more: take it out of the "
        "configuration; its directory may be deleted",
        ost);
  }
}

constexpr int kAttempts = 5;  // within an interval, until one is answered

// The intervals that the MGS has set for this server.
struct Terms {
  Duration interval{0};  // between heartbeats
  Duration lease{0};     // how long an answered one is good for
};

Task<StatusOr<Terms>> Register(std::shared_ptr<ServerCore> core) {
  proto::RegisterOssRequest request;
  request.set_cluster_uuid(ClusterUuid(*core));
  request.set_address(core->address);
  request.set_instance(core->instance);
  request.set_resident_bytes(ResidentBytes());
  request.set_version(kServerVersions.newest);
  request.set_oldest_version(kServerVersions.oldest);
  for (Target& target : core->targets) *request.add_osts() = Describe(target);
  const Duration sent = core->environment.clock.Now();
  CO_ASSIGN_OR_RETURN(proto::RegisterOssReply reply,
                      co_await core->environment.cluster->RegisterOss(std::move(request)));
  CO_RETURN_IF_ERROR(co_await CheckAnswer(core, reply.mdt_epoch()));
  CO_RETURN_IF_ERROR(FromProto(reply.status()));
  const VersionRange spoken = RangeOf(reply.version(), 0, kUnnumberedServerVersion);
  CO_RETURN_IF_ERROR(CommonVersion(spoken, kServerVersions, "the MDS", "this OSS").status());
  NoteRemoved(*core, reply.removed_osts());
  Terms terms;
  terms.interval = std::chrono::milliseconds(reply.heartbeat_ms());
  if (terms.interval == Duration{0}) terms.interval = core->options.heartbeat;
  terms.lease = std::chrono::milliseconds(reply.lease_ms());
  if (core->stopping()) co_return terms;
  for (Target& target : core->targets)
    CO_RETURN_IF_ERROR(co_await target.store->JoinCluster(reply.cluster_uuid()));
  core->lease.Renew(sent, terms.lease);
  co_return terms;
}

Task<Status> Beat(std::shared_ptr<ServerCore> core, Terms terms) {
  proto::HeartbeatRequest request;
  request.set_address(core->address);
  request.set_instance(core->instance);
  request.set_resident_bytes(ResidentBytes());
  for (Target& target : core->targets) *request.add_osts() = Describe(target);
  const Duration sent = core->environment.clock.Now();
  CO_ASSIGN_OR_RETURN(proto::HeartbeatReply reply,
                      co_await core->environment.cluster->Heartbeat(std::move(request)));
  CO_RETURN_IF_ERROR(co_await CheckAnswer(core, reply.mdt_epoch()));
  CO_RETURN_IF_ERROR(FromProto(reply.status()));
  NoteRemoved(*core, reply.removed_osts());
  if (reply.has_scrub())
    for (const Target& target : core->targets) target.scrubber->Take(reply.scrub());
  core->lease.Renew(sent, terms.lease);
  co_return OkStatus();
}

// The MGS refuses what this server is: trying again changes nothing.
bool IsFinal(const Status& refusal) {
  const int error = ToErrno(refusal);
  return error == EINVAL || error == EEXIST;
}

}  // namespace

Task<void> RunHeartbeats(std::shared_ptr<ServerCore> core) {
  ServerCore::Running running(core);
  Terms terms;
  terms.interval = core->options.heartbeat;
  bool registered = false, was_registered = false;
  std::string last_error;
  while (!core->stopping()) {
    Status status;
    if (registered) {
      status = co_await Beat(core, terms);
      if (absl::IsNotFound(status)) {
        LogInfo("the MGS does not know this server: registering again");
        registered = false;
        continue;
      }
    } else {
      StatusOr<Terms> reply = co_await Register(core);
      status = reply.status();
      registered = reply.ok();
      if (registered) {
        terms = *reply;
        LogInfo("registered with the MGS as %s", core->address);
      }
    }
    if (core->stopping()) break;
    if (!status.ok() && !was_registered && IsFinal(status)) core->refused.Set(status);
    was_registered |= registered;
    std::string error(status.message());
    if (error != last_error && !status.ok()) LogWarning("MGS: %s; trying again", error);
    if (error != last_error && status.ok()) LogInfo("MGS: in contact again");
    last_error = std::move(error);
    co_await core->Pause(status.ok() ? terms.interval : terms.interval / kAttempts);
  }
}

}  // namespace nacre::ost

namespace nacre {

Task<Status> TellOfEnd(std::shared_ptr<ClusterChannel> cluster, Clock& clock, uint64_t instance) {
  constexpr Duration kPatience = 3s, kPause = 100ms;
  const Duration end = clock.Now() + kPatience;
  while (true) {
    proto::HeartbeatRequest request;
    request.set_instance(instance);
    request.set_ended(true);
    auto reply = co_await cluster->Heartbeat(std::move(request));
    Status told = reply.ok() ? FromProto(reply->status()) : reply.status();
    if (told.ok() || clock.Now() + kPause >= end) co_return told;
    co_await clock.Sleep(kPause);
  }
}

}  // namespace nacre
