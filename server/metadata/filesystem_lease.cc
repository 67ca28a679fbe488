#include "server/metadata/filesystem_lease.h"

#include <algorithm>

#include "common/log.h"
#include "rpc/convert.h"
#include "server/metadata/mds.h"
#include "server/metadata/recall.h"

namespace nacre::mds {

Task<Status> FilesystemLease::MakeWay(MdsPtr mds) {
  for (const LeaseGrant& grant : mds->leases.HoldersOf(kFilesystemFid)) {
    CO_RETURN_IF_ERROR(co_await Recall(mds, grant));
  }
  co_return OkStatus();
}

Task<bool> FilesystemLease::TryMakeWay(MdsPtr mds, Duration patience) {
  for (const LeaseGrant& grant : mds->leases.HoldersOf(kFilesystemFid)) {
    const bool released = co_await TryRecall(mds, grant, patience);
    if (!released) co_return false;
  }
  co_return true;
}

proto::Lease FilesystemLease::GrantIfAlone(Mds& mds, const SessionPtr& session) {
  bool alone = mds.options.leases && !mds.Recovering() && mds.sessions.Count() == 1 &&
               mds.leases.HoldersOf(kFilesystemFid).empty() && !OthersChange(session->id);
  if (!alone || session->ended()) {
    proto::Lease none;
    *none.mutable_resource() = ToProto(kFilesystemFid);
    return none;
  }
  proto::Lease lease = mds.leases.Grant(session->id, kFilesystemFid, proto::LEASE_WRITE).ToProto();
  lease.set_promised_bytes(mds.PromisedBytes());
  return lease;
}

bool FilesystemLease::OthersChange(SessionId than) const {
  std::lock_guard lock(mutex_);
  return std::any_of(changing_.begin(), changing_.end(), [than](SessionId of) { return of != than; });
}

FilesystemLease::LastingChange::LastingChange(MdsPtr mds, SessionId of) : mds_(std::move(mds)), of_(of) {
  std::lock_guard lock(mds_->filesystem_lease.mutex_);
  mds_->filesystem_lease.changing_.insert(of_);
}

FilesystemLease::LastingChange::~LastingChange() {
  {
    std::lock_guard lock(mds_->filesystem_lease.mutex_);
    std::multiset<SessionId>& changing = mds_->filesystem_lease.changing_;
    changing.erase(changing.find(of_));
  }
  if (mds_->closed || mds_->sessions.Count() != 1) return;
  Spawn(mds_->env.executor, [](MdsPtr mds) -> Task<void> {
    if (!mds->closed) co_await mds->filesystem_lease.OfferToLast(mds);
  }(mds_));
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

bool FilesystemLease::HeldBy(const Mds& mds, SessionId session) const {
  for (const LeaseGrant& grant : mds.leases.HoldersOf(kFilesystemFid)) {
    if (grant.session == session) return true;
  }
  return false;
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
    AskBack(mds, {lease.id(), kFilesystemFid, session->id, lease.mode(), true});
    if (!restored) PushRevoke(mds, *session, lease.id(), kFilesystemFid);
  }
}

void FilesystemLease::AskUnnamedBack(Mds& mds, const SessionPtr& session, const std::set<uint64_t>& named) {
  for (const LeaseGrant& grant : mds.leases.HoldersOf(kFilesystemFid)) {
    if (grant.session == session->id && grant.revoking && !named.contains(grant.id))
      PushRevoke(mds, *session, grant.id, kFilesystemFid);
  }
}

}  // namespace nacre::mds
