#include "server/metadata/recall.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "common/log.h"
#include "rpc/convert.h"
#include "server/metadata/eviction.h"

namespace nacre::mds {
namespace {

// Who has lost its stream is given the time to come back, not the time to write back.
constexpr Duration kDisconnectedPatience = std::chrono::seconds(5);

// How long, in times of revoke_timeout, a holder is spared because a request of its own waits for others'
// leases: a page may be locked until that is answered. Bounded, for two may wait for each other.
constexpr int kMostSpared = 6;

// How a holder that was asked for a lease uses its time.
class Patience {
 public:
  explicit Patience(const Mds& mds) : mds_(mds), limit_(mds.options.revoke_timeout) {}

  Duration step() const { return std::min(limit_, kDisconnectedPatience) / 4; }

  // One step has passed.
  void Pass(const Session& holder) {
    const bool connected = holder.peer() != nullptr;
    away_ = connected ? 0ns : away_ + step();
    if (connected && OstAway()) return;
    const uint64_t map = mds_.osts.version();
    if (std::exchange(map_, map) != map) used_ = 0ns;
    if (connected && holder.waits() && spared_ < kMostSpared * limit_) {
      spared_ += step();
      return;
    }
    used_ += step();
  }

  bool over() const { return used_ >= limit_ || away_ >= kDisconnectedPatience; }

 private:
  // What it must write back, or reads for a page that is locked as long, may be waiting for this OST; and
  // begins anew when it is back (map_).
  bool OstAway() const {
    for (OstIndex ost : mds_.osts.Known()) {
      if (!mds_.osts.IsUp(ost)) return true;
    }
    return false;
  }

  const Mds& mds_;
  const Duration limit_;
  uint64_t map_ = mds_.osts.version();
  Duration used_{0}, spared_{0}, away_{0};
};

void PushRevoke(Session& holder, uint64_t id, const Fid& resource) {
  proto::Push push;
  push.mutable_revoke()->set_id(id);
  *push.mutable_revoke()->mutable_resource() = ToProto(resource);
  push.mutable_revoke()->set_keep(proto::LEASE_NONE);
  holder.Push(std::move(push));
}

// False: not yet.
Task<bool> ReleasedWithin(MdsPtr mds, uint64_t id, Duration time) {
  OneShot<Unit> released = mds->leases.Released(id);
  OneShot<bool> decided;
  auto timer = mds->env.clock.After(mds->env.executor, time, [decided] { decided.Set(false); });
  Spawn(mds->env.executor, [](OneShot<Unit> released, OneShot<bool> decided) -> Task<void> {
    co_await released.Wait();
    decided.Set(true);
  }(released, decided));
  co_return co_await decided.Wait();
}

Task<Status> AwaitRelease(MdsPtr mds, LeaseGrant grant) {
  SessionPtr holder = mds->sessions.Find(grant.session);
  if (holder == nullptr) co_return OkStatus();
  for (Patience patience(*mds); !patience.over(); patience.Pass(*holder)) {
    const bool released = co_await ReleasedWithin(mds, grant.id, patience.step());
    if (released) co_return OkStatus();
  }
  std::string what = grant.resource == kFilesystemFid ? "the filesystem" : grant.resource.ToString();
  std::string reason = absl::StrFormat("it did not give the lease of %s back in time", what);
  co_return co_await Evict(mds, std::move(holder), std::move(reason));
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
    default:
      return {};
  }
}

bool NobodyWaits(const proto::MetadataRequest& request) {
  return (request.has_update_size() && request.update_size().writeback()) ||
         (request.has_write_inline() && request.write_inline().writeback());
}

Task<Status> RecallFrom(MdsPtr mds, SessionId changer, Fid fid) {
  std::optional<Session::Wait> wait;
  if (SessionPtr session = mds->sessions.Find(changer)) wait.emplace(std::move(session));
  co_await mds->sessions.AwaitRecovery();  // whoever is not back yet may hold one
  std::vector<LeaseGrant> grants = mds->leases.Conflicts(fid, changer, proto::LEASE_WRITE);
  for (const LeaseGrant& grant : grants) {
    if (!grant.revoking) AskBack(*mds, grant);
  }
  for (const LeaseGrant& grant : grants) CO_RETURN_IF_ERROR(co_await AwaitRelease(mds, grant));
  co_return OkStatus();
}

}  // namespace

void AskBack(Mds& mds, const LeaseGrant& grant) {
  if (!mds.leases.BeginRevoke(grant.id)) return;
  if (SessionPtr holder = mds.sessions.Find(grant.session)) PushRevoke(*holder, grant.id, grant.resource);
}

Task<Status> Recall(MdsPtr mds, LeaseGrant grant) {
  AskBack(*mds, grant);
  co_return co_await AwaitRelease(mds, grant);
}

StatusOr<proto::Lease> GrantRead(Mds& mds, SessionId session, const Fid& fid) {
  ASSIGN_OR_RETURN(InodePtr inode, mds.tables->GetInode(fid));
  if (!S_ISREG(inode->mode)) {
    return ErrnoError(EINVAL, absl::StrFormat("%s is no regular file: mode %o", fid.ToString(), inode->mode));
  }
  return mds.leases.Grant(session, fid, proto::LEASE_READ).ToProto();
}

void RestoreRead(Mds& mds, const SessionPtr& session, const proto::Lease& lease) {
  const Fid fid = FromProto(lease.resource());
  bool good = lease.mode() == proto::LEASE_READ && mds.leases.Restore(session->id, lease);
  for (const LeaseGrant& grant : mds.leases.HoldersOf(fid)) {
    if (grant.id == lease.id() && grant.revoking) good = false;  // what said so may be lost with the stream
  }
  if (!good) PushRevoke(*session, lease.id(), fid);
}

bool NeedsRecall(const Mds& mds, SessionId changer, const proto::MetadataRequest& request,
                 const proto::MetadataReply& reply) {
  const Fid fid = ChangedFile(request, reply);
  if (!fid || mds.options.plant_no_recall) return false;
  bool unknown = mds.Recovering() && mds.sessions.Count() > 1;
  return unknown || !mds.leases.Conflicts(fid, changer, proto::LEASE_WRITE).empty();
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
