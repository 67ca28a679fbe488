#include "server/metadata/administer.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>

#include <atomic>
#include <cerrno>

#include "common/metrics.h"
#include "rpc/convert.h"
#include "server/metadata/eviction.h"
#include "server/metadata/lease_report.h"
#include "server/metadata/ost_files.h"
#include "server/metadata/ost_removal.h"
#include "server/metadata/paths.h"

namespace nacre::mds {
namespace {

constexpr Duration kSpacePatience = std::chrono::seconds(1);

// An OST that does not answer in time keeps its task a little longer than its asker.
Task<void> RefreshOne(MdsPtr mds, OstIndex ost, std::shared_ptr<std::atomic<size_t>> left,
                      OneShot<Unit> done) {
  co_await mds->osts.RefreshSpace(ost);
  if (left->fetch_sub(1) == 1) done.Set({});
}

Task<void> RefreshSpace(MdsPtr mds) {
  std::vector<OstIndex> up;
  for (OstIndex ost : mds->osts.Known()) {
    if (mds->osts.IsUp(ost)) up.push_back(ost);
  }
  if (up.empty()) co_return;
  OneShot<Unit> done;
  auto left = std::make_shared<std::atomic<size_t>>(up.size());
  for (OstIndex ost : up) Spawn(mds->env.executor, RefreshOne(mds, ost, left, done));
  auto timer = mds->env.clock.After(mds->env.executor, kSpacePatience, [done] { done.Set({}); });
  co_await done.Wait();
}

// Adds the file's path where a problem is about one.
void NamePaths(Mds& mds, proto::OstInfo* info) {
  const int known = std::min(info->problems_size(), info->problem_files_size());
  for (int i = 0; i < known; ++i) {
    const Fid file = FromProto(info->problem_files(i));
    if (file) info->mutable_problems(i)->append(PathRemark(*mds.tables, file));
  }
}

void AddSessions(Mds& mds, proto::ClusterStatus* status) {
  const auto leases = mds.leases.CountBySession();
  const auto locks = mds.file_locks.CountBySession();
  auto count = [](const auto& counts, SessionId session) {
    auto it = counts.find(session);
    return it != counts.end() ? it->second : typename std::decay_t<decltype(counts)>::mapped_type{};
  };
  for (const SessionPtr& session : mds.sessions.All()) {
    proto::SessionState* out = status->add_sessions();
    proto::KeepAlive report = session->report();
    out->set_id(session->id);
    out->set_name(session->record.name);
    out->set_connected(session->peer() != nullptr);
    out->set_open_files(mds.opens.CountOf(session->id));
    const LeaseTable::Counts held = count(leases, session->id);
    out->set_leases(held.held);
    out->set_write_leases(held.writes);
    out->set_leases_asked_back(held.asked_back);
    out->set_locks(count(locks, session->id));
    *out->mutable_paths() = report.paths();
    *out->mutable_path_states() = report.path_states();
    out->set_resident_bytes(report.resident_bytes());
  }
}

void AddProblems(Mds& mds, proto::ClusterStatus* status) {
  for (std::string& problem : mds.Problems()) status->add_problems(std::move(problem));
  for (const proto::OstState& ost : status->map().osts()) {
    for (const std::string& problem : ost.info().problems()) {
      status->add_problems(absl::StrFormat("OST %d: %s", ost.info().index(), problem));
    }
    if (!ost.up())
      status->add_problems(absl::StrFormat("OST %d at %s is down", ost.info().index(), ost.address()));
  }
}

// By its number, its name, or its name up to the last @ (HOST:MOUNTPOINT).
StatusOr<SessionPtr> FindClient(Mds& mds, const std::string& client) {
  std::vector<SessionPtr> found;
  uint64_t id = 0;
  const bool is_number = absl::SimpleAtoi(client, &id);
  for (const SessionPtr& session : mds.sessions.All()) {
    const std::string& name = session->record.name;
    if ((is_number && session->id == id) || name == client || name.substr(0, name.rfind('@')) == client) {
      found.push_back(session);
    }
  }
  if (found.size() == 1) return found[0];
  if (found.empty())
    return ErrnoError(ENOENT, absl::StrFormat("no client is called '%s': nacre status shows them", client));
  auto number = [](std::string* out, const SessionPtr& session) { absl::StrAppend(out, session->id); };
  return ErrnoError(EINVAL, absl::StrFormat("%d clients are called '%s': give the number of one, %s",
                                            found.size(), client, absl::StrJoin(found, " or ", number)));
}

Task<Status> EvictClient(MdsPtr mds, std::string client, proto::AdminReply* reply) {
  CO_ASSIGN_OR_RETURN(SessionPtr session, FindClient(*mds, client));
  reply->set_evicted(session->record.name);
  std::string reason = "an administrator asked for it";
  co_return co_await Evict(mds, session, std::move(reason));
}

// Where else would its files go?
Status CheckOthers(const Mds& mds, OstIndex ost) {
  const auto usable = mds.osts.Usable();
  if (usable->size() > 1 || !usable->Includes(ost)) return OkStatus();
  return ErrnoError(EBUSY,
                    absl::StrFormat("OST %d is the only one that takes files: add another one first", ost));
}

Task<Status> ManageOst(MdsPtr mds, proto::ManageOst request, proto::AdminReply* reply) {
  const OstIndex ost = request.ost();
  CO_ASSIGN_OR_RETURN(const cluster::OstRegistry::UseChange alone, mds->osts.BeginUseChange(ost));
  switch (request.action()) {
    case proto::ManageOst::DRAIN:
      CO_RETURN_IF_ERROR(CheckOthers(*mds, ost));
      if (mds->osts.UseOf(ost) != cluster::OstUse::kDraining) mds->drainer.Forget(ost);
      CO_RETURN_IF_ERROR(co_await mds->osts.SetUse(ost, cluster::OstUse::kDraining));
      mds->drainer.Wake(mds);
      co_return OkStatus();
    case proto::ManageOst::UNDRAIN:
      co_return co_await mds->osts.SetUse(ost, cluster::OstUse::kActive);
    case proto::ManageOst::REMOVE:
      co_return co_await RemoveOst(mds, ost);
    case proto::ManageOst::REMOVE_LOST: {
      CO_ASSIGN_OR_RETURN(const uint64_t files, co_await RemoveLostOst(mds, ost));
      reply->set_files(files);
      co_return OkStatus();
    }
    default:
      co_return ErrnoError(EPROTO,
                           absl::StrFormat("action %d is none that this version knows", request.action()));
  }
}

Status ListFilesOn(Mds& mds, const proto::FilesOnOst& request, proto::AdminReply* reply) {
  const Fid after = request.has_after() ? FromProto(request.after()) : Fid{};
  ASSIGN_OR_RETURN(FilesFound found, FindFilesOn(mds, request.ost(), after));
  for (const Fid& fid : found.files) {
    auto paths = PathsOf(*mds.tables, fid);
    reply->add_paths(paths.ok() && !paths->empty() ? paths->front() : fid.ToString());
  }
  if (!found.end) *reply->mutable_next() = ToProto(found.last);
  return OkStatus();
}

Status FindPaths(Mds& mds, const proto::PathsOf& request, proto::AdminReply* reply) {
  ASSIGN_OR_RETURN(std::vector<std::string> paths, PathsOf(*mds.tables, FromProto(request.fid())));
  for (std::string& path : paths) reply->add_paths(std::move(path));
  return OkStatus();
}

Status FindLeases(Mds& mds, const proto::LeasesOf& request, proto::AdminReply* reply) {
  ASSIGN_OR_RETURN(*reply->mutable_leases_of(), ReportLeases(mds, request.path()));
  return OkStatus();
}

}  // namespace

Task<proto::ClusterStatus> MakeStatus(MdsPtr mds) {
  co_await RefreshSpace(mds);
  proto::ClusterStatus status;
  *status.mutable_map() = mds->osts.Map();
  for (proto::OstState& ost : *status.mutable_map()->mutable_osts()) NamePaths(*mds, ost.mutable_info());
  for (proto::OstState& ost : *status.mutable_map()->mutable_osts()) {
    if (ost.has_drain()) *ost.mutable_drain() = mds->drainer.StateOf(ost.info().index());
  }
  AddSessions(*mds, &status);
  AddProblems(*mds, &status);
  if (auto rebalance = mds->rebalancer.State(*mds)) *status.mutable_rebalance() = *std::move(rebalance);
  status.set_destroy_queue(Destroyer::QueuedObjects(*mds));
  status.set_version(NACRE_VERSION);
  status.set_inodes(mds->tables->InodeCount());
  KvStore::Space space = mds->env.store.GetSpace();
  status.set_mdt_total_bytes(space.total_bytes);
  status.set_mdt_free_bytes(space.free_bytes);
  status.set_mdt_used_bytes(mds->env.store.UsedBytes());
  mds->messages.Show(&status);
  status.set_mds_resident_bytes(ResidentBytes());
  status.set_mds_uptime_seconds(static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::seconds>(mds->env.clock.Now() - mds->started).count()));
  co_return status;
}

Task<proto::AdminReply> Administer(MdsPtr mds, proto::AdminRequest request) {
  proto::AdminReply reply;
  Status status = ErrnoError(EPROTO, "the request names nothing that this version knows");
  if (mds->closed) {
    status = absl::UnavailableError("the metadata server is stopping");
  } else if (request.has_paths_of()) {
    status = FindPaths(*mds, request.paths_of(), &reply);
  } else if (request.has_leases_of()) {
    status = FindLeases(*mds, request.leases_of(), &reply);
  } else if (request.has_evict()) {
    status = co_await EvictClient(mds, request.evict().client(), &reply);
  } else if (request.has_manage_ost()) {
    status = co_await ManageOst(mds, request.manage_ost(), &reply);
  } else if (request.has_migrate()) {
    auto state = co_await mds->migrations.Ask(mds, std::move(*request.mutable_migrate()));
    status = state.status();
    if (state.ok()) *reply.mutable_migrate() = *std::move(state);
  } else if (request.has_rebalance()) {
    auto state = co_await mds->rebalancer.Ask(mds, request.rebalance());
    status = state.status();
    if (state.ok()) *reply.mutable_rebalance() = *std::move(state);
  } else if (request.has_files_on_ost()) {
    status = ListFilesOn(*mds, request.files_on_ost(), &reply);
  } else if (request.has_scrub()) {
    mds->osts.OrderScrub(request.scrub());
    status = OkStatus();
  }
  *reply.mutable_status() = ToProto(status);
  co_return reply;
}

}  // namespace nacre::mds
