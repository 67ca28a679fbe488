#include "server/metadata/filesystem_lease.h"

#include "common/log.h"
#include "rpc/convert.h"
#include "server/metadata/eviction.h"
#include "server/metadata/mds.h"

namespace nacre::mds {
namespace {

// Who has lost its stream is given the time to come back, not the time to write back.
constexpr Duration kDisconnectedPatience = std::chrono::seconds(5);

Duration Patience(const Mds& mds, SessionId session) {
  SessionPtr holder = mds.sessions.Find(session);
  bool connected = holder != nullptr && holder->peer() != nullptr;
  return connected ? mds.options.revoke_timeout : std::min(mds.options.revoke_timeout, kDisconnectedPatience);
}

}  // namespace

void FilesystemLease::AskBack(Mds& mds, SessionId session, uint64_t id) {
  if (!mds.leases.BeginRevoke(id)) return;
  proto::Push push;
  push.mutable_revoke()->set_id(id);
  *push.mutable_revoke()->mutable_resource() = ToProto(kFilesystemFid);
  push.mutable_revoke()->set_keep(proto::LEASE_NONE);
  if (SessionPtr holder = mds.sessions.Find(session)) holder->Push(std::move(push));
}

Task<Status> FilesystemLease::MakeWay(MdsPtr mds) {
  for (const LeaseGrant& grant : mds->leases.HoldersOf(kFilesystemFid)) {
    OneShot<Unit> released = mds->leases.Released(grant.id);
    AskBack(*mds, grant.session, grant.id);
    OneShot<bool> decided;  // true: released in time
    auto timer = mds->env.clock.After(mds->env.executor, Patience(*mds, grant.session),
                                      [decided] { decided.Set(false); });
    Spawn(mds->env.executor, [](OneShot<Unit> released, OneShot<bool> decided) -> Task<void> {
      co_await released.Wait();
      decided.Set(true);
    }(released, decided));
    bool in_time = co_await decided.Wait();
    timer.reset();
    if (in_time) continue;
    if (SessionPtr holder = mds->sessions.Find(grant.session)) {
      CO_RETURN_IF_ERROR(co_await Evict(mds, holder, "it did not give the filesystem lease back in time"));
    }
  }
  co_return OkStatus();
}

proto::Lease FilesystemLease::GrantIfAlone(Mds& mds, const SessionPtr& session) {
  bool alone = mds.options.leases && !mds.Recovering() && mds.sessions.Count() == 1 &&
               mds.leases.HoldersOf(kFilesystemFid).empty();
  if (!alone || session->ended()) {
    proto::Lease none;
    *none.mutable_resource() = ToProto(kFilesystemFid);
    return none;
  }
  return mds.leases.Grant(session->id, kFilesystemFid, proto::LEASE_WRITE).ToProto();
}

Task<void> FilesystemLease::OfferToLast(MdsPtr mds) {
  AsyncMutex::Guard guard = co_await admission_.Lock();
  std::vector<SessionPtr> all = mds->sessions.All();
  if (all.size() != 1 || all[0]->peer() == nullptr || !all[0]->whole()) co_return;
  proto::Lease lease = GrantIfAlone(*mds, all[0]);
  if (lease.mode() == proto::LEASE_NONE) co_return;
  proto::Push push;
  *push.mutable_granted() = std::move(lease);
  all[0]->Push(std::move(push));
}

void FilesystemLease::Restore(Mds& mds, const SessionPtr& session, const proto::Lease& lease) {
  if (FromProto(lease.resource()) != kFilesystemFid || lease.mode() != proto::LEASE_WRITE) return;
  bool restored = mds.leases.Restore(session->id, lease);
  bool revoking = false;
  for (const LeaseGrant& grant : mds.leases.HoldersOf(kFilesystemFid)) {
    revoking = revoking || (grant.session == session->id && grant.revoking);
  }
  bool alone = mds.sessions.Count() == 1 || mds.Recovering();
  // The revocation may have been lost with the stream; and whoever is not alone must not go on as if it were.
  if (!restored || revoking || !alone) {
    LogInfo("session %d is asked for the filesystem lease again", session->id);
    AskBack(mds, session->id, lease.id());
    if (!restored) {
      proto::Push push;
      push.mutable_revoke()->set_id(lease.id());
      *push.mutable_revoke()->mutable_resource() = lease.resource();
      session->Push(std::move(push));
    }
  }
}

}  // namespace nacre::mds
