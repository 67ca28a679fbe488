#include "server/metadata/recall.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "common/log.h"
#include "rpc/convert.h"
#include "server/metadata/eviction.h"
#include "server/metadata/late_data.h"
#include "server/metadata/revocation_deadline.h"

namespace nacre::mds {
namespace {

// How often a holder is looked at.
constexpr Duration kStep = std::chrono::seconds(1);

// Waits for a release, a while at a time.
class ReleaseWatch {
 public:
  ReleaseWatch(MdsPtr mds, uint64_t id) : mds_(std::move(mds)), state_(std::make_shared<State>()) {
    Spawn(mds_->env.executor, Watch(mds_->leases.Released(id), state_));
  }

  // False: not yet.
  Task<bool> Within(Duration time) {
    OneShot<bool> decided;
    {
      std::lock_guard lock(state_->mutex);
      if (state_->released) co_return true;
      state_->waiter = decided;
    }
    auto timer = mds_->env.clock.After(mds_->env.executor, time, [decided] { decided.Set(false); });
    co_return co_await decided.Wait();
  }

 private:
  struct State {
    std::mutex mutex;
    bool released = false;
    OneShot<bool> waiter;
  };

  // Ends with the grant: when it is released, or its session has ended.
  static Task<void> Watch(OneShot<Unit> released, std::shared_ptr<State> state) {
    co_await released.Wait();
    std::lock_guard lock(state->mutex);
    state->released = true;
    state->waiter.Set(true);
  }

  const MdsPtr mds_;
  const std::shared_ptr<State> state_;
};

bool AnyOstDown(const Mds& mds) {
  for (OstIndex ost : mds.osts.Known()) {
    if (!mds.osts.IsUp(ost)) return true;
  }
  return false;
}

// Waits for the changes of an ended session that are still being committed under its lease
// (LeaseTable::Pin).
Task<Status> AwaitPins(MdsPtr mds, LeaseGrant grant) {
  co_await mds->leases.Released(grant.id).Wait();
  co_return OkStatus();
}

Task<Status> AwaitRelease(MdsPtr mds, LeaseGrant grant) {
  SessionPtr holder = mds->sessions.Find(grant.session);
  if (holder == nullptr) co_return co_await AwaitPins(mds, grant);
  const Duration step = std::min(kStep, mds->options.revoke_timeout / 4);
  ReleaseWatch watch(mds, grant.id);
  RevocationDeadline deadline(mds->listening.Now(), mds->options.revoke_timeout);
  for (bool over = false; !over;) {
    const bool released = co_await watch.Within(step);
    if (released) co_return OkStatus();
    if (mds->closed) co_return absl::UnavailableError("the metadata server is stopping");
    mds->listening.Look();
    RevocationDeadline::View view;
    view.now = mds->listening.Now();
    view.leases_end = LeasesEnd(*mds, *holder);
    view.ost_down = AnyOstDown(*mds);
    view.waits_itself = holder->waits();
    view.only_ost = WaitsForOst(*mds, grant);
    over = deadline.Look(view);
  }
  std::string reason =
      absl::StrFormat("it did not give the lease of %s back in time", grant.resource.ToString());
  CO_RETURN_IF_ERROR(co_await Evict(mds, std::move(holder), std::move(reason)));
  co_return co_await AwaitPins(mds, grant);
}

// None: no data of a file is another than before.
Fid ChangedFile(const proto::MetadataRequest& request, const proto::MetadataReply& reply) {
  if (reply.status().error() != 0) return {};
  switch (request.op_case()) {
    case proto::MetadataRequest::kUpdateSize:
      return FromProto(request.update_size().fid());
    case proto::MetadataRequest::kWriteInline:
      return FromProto(request.write_inline().fid());
    case proto::MetadataRequest::kSetattr:
      return request.setattr().set_size() ? FromProto(request.setattr().fid()) : Fid{};
    case proto::MetadataRequest::kOpen:
      return (request.open().flags() & O_TRUNC) != 0 ? FromProto(request.open().fid()) : Fid{};
    case proto::MetadataRequest::kCreate:
      return (request.create().flags() & O_TRUNC) != 0 ? FromProto(reply.entry().attr().fid()) : Fid{};
    case proto::MetadataRequest::kAppend:  // else the size is told once the bytes are there
      return reply.append().stored() ? FromProto(request.append().fid()) : Fid{};
    default:
      return {};
  }
}

bool NobodyWaits(const proto::MetadataRequest& request) {
  return (request.has_update_size() && request.update_size().writeback()) ||
         (request.has_write_inline() && request.write_inline().writeback());
}

Task<Status> RecallFrom(MdsPtr mds, SessionId changer, Fid fid) {
  co_await mds->sessions.recovery().Wait();  // whoever is not back yet may hold one
  std::vector<Fid> fids(1, fid);
  co_return co_await RecallAll(std::move(mds), changer, std::move(fids), proto::LEASE_SHARED);
}

}  // namespace

Task<Status> RecallAll(MdsPtr mds, SessionId keeper, std::vector<Fid> resources, proto::LeaseMode mode) {
  std::vector<LeaseGrant> grants;
  for (const Fid& resource : resources) {
    std::vector<LeaseGrant> conflicts = mds->leases.Conflicts(resource, keeper, mode);
    grants.insert(grants.end(), conflicts.begin(), conflicts.end());
  }
  const proto::LeaseMode keep = mode == proto::LEASE_READ ? proto::LEASE_READ : proto::LEASE_NONE;
  co_return co_await RecallGrants(std::move(mds), keeper, std::move(grants), keep);
}

Task<Status> RecallGrants(MdsPtr mds, SessionId keeper, std::vector<LeaseGrant> grants,
                          proto::LeaseMode keep) {
  std::optional<Session::Wait> wait;
  if (SessionPtr session = mds->sessions.Find(keeper)) wait.emplace(std::move(session));
  if (grants.empty()) co_return OkStatus();
  mds->messages.CountConflict();
  RecallWaits::Known known{keeper, {}, keep != proto::LEASE_READ, mds->env.clock.Now()};
  for (const LeaseGrant& grant : grants) known.resources.push_back(grant.resource);
  const RecallWaits::Wait shown(mds->recall_waits, std::move(known));
  for (const LeaseGrant& grant : grants) {
    if (!grant.revoking) AskBack(*mds, grant, keep);
  }
  std::vector<Task<Status>> releases;  // one that is not released must not keep the others from their end
  for (const LeaseGrant& grant : grants) releases.push_back(AwaitRelease(mds, grant));
  Status all;
  for (const Status& released : co_await WhenAll(std::move(releases))) all.Update(released);
  co_return all;
}

void PushRevoke(Mds& mds, Session& holder, uint64_t id, const Fid& resource, proto::LeaseMode keep) {
  proto::Push push;
  push.mutable_revoke()->set_id(id);
  *push.mutable_revoke()->mutable_resource() = ToProto(resource);
  push.mutable_revoke()->set_keep(keep);
  mds.messages.CountRevocation();
  holder.Push(std::move(push));
}

void AskBack(Mds& mds, const LeaseGrant& grant, proto::LeaseMode keep) {
  if (!mds.leases.BeginRevoke(grant.id)) return;
  if (SessionPtr holder = mds.sessions.Find(grant.session))
    PushRevoke(mds, *holder, grant.id, grant.resource, keep);
}

Task<bool> TryRecall(MdsPtr mds, LeaseGrant grant, Duration patience) {
  AskBack(*mds, grant);
  ReleaseWatch watch(mds, grant.id);
  co_return co_await watch.Within(patience);
}

StatusOr<proto::Lease> GrantRead(Mds& mds, SessionId session, const Fid& fid) {
  ASSIGN_OR_RETURN(InodePtr inode, mds.tables->GetInode(fid));
  if (!S_ISREG(inode->mode)) {
    return ErrnoError(EINVAL, absl::StrFormat("%s is no regular file: mode %o", fid.ToString(), inode->mode));
  }
  if (mds.options.plant_overlooked) return mds.leases.Grant(session, fid, proto::LEASE_READ).ToProto();
  const std::optional<LeaseGrant> grant = mds.leases.TryGrantFileRead(session, fid);
  if (grant) return grant->ToProto();
  return absl::AbortedError(absl::StrCat("another session has WRITE of ", fid.ToString()));
}

void RestoreLease(Mds& mds, const SessionPtr& session, const proto::Lease& lease) {
  const Fid fid = FromProto(lease.resource());
  bool good = lease.mode() != proto::LEASE_NONE && mds.leases.Restore(session->id, lease);
  for (const LeaseGrant& grant : mds.leases.HoldersOf(fid)) {
    if (grant.id == lease.id() && grant.revoking) good = false;  // what said so may be lost with the stream
  }
  if (!good) PushRevoke(mds, *session, lease.id(), fid);
}

bool NeedsRecall(const Mds& mds, SessionId changer, const proto::MetadataRequest& request,
                 const proto::MetadataReply& reply) {
  const Fid fid = ChangedFile(request, reply);
  if (!fid || mds.options.plant_no_recall) return false;
  bool unknown = mds.Recovering() && mds.sessions.Count() > 1;
  return unknown || mds.leases.HasConflict(fid, changer, proto::LEASE_SHARED);
}

Task<Status> RecallRead(MdsPtr mds, SessionId changer, const proto::MetadataRequest& request,
                        const proto::MetadataReply& reply) {
  const Fid fid = ChangedFile(request, reply);
  if (!NobodyWaits(request)) co_return co_await RecallFrom(mds, changer, fid);
  Spawn(mds->env.executor, [](MdsPtr mds, SessionId changer, Fid fid) -> Task<void> {
    Status recalled = co_await RecallFrom(mds, changer, fid);
    if (!recalled.ok() && !mds->closed)
      LogError("pages of %s: %s", fid.ToString(), std::string(recalled.message()));
  }(mds, changer, fid));
  co_return OkStatus();
}

}  // namespace nacre::mds
