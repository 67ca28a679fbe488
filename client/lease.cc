// Leases of inodes: giving them back when the MDS asks for them, and naming them to an MDS that has lost
// them.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "client/core.h"
#include "client/within.h"
#include "common/log.h"

namespace nacre::client {
namespace {

constexpr int kEntriesOfReclaim = 4000;  // some hundred KiB

void AddLease(const Inode& inode, uint64_t id, bool writes, proto::Reclaim* held, bool late = false) {
  proto::Lease* lease = held->add_leases();
  *lease->mutable_resource() = ToProto(inode.fid);
  lease->set_mode(writes ? proto::LEASE_WRITE : proto::LEASE_READ);
  lease->set_id(id);
  lease->set_late(late);
}

}  // namespace

void Core::OnPush(proto::Push push) {
  if (push.has_map()) return TakeMap(push.map());
  if (!push.has_revoke()) return;
  background_.Start(GiveInodeUp(session_->epoch(), FromProto(push.revoke().resource()), push.revoke().id()));
}

Task<void> Core::ReleaseLease(uint64_t epoch, uint64_t lease_id) {
  proto::MetadataRequest release;
  release.mutable_release_lease()->set_id(lease_id);
  auto released = co_await mds_->AskIn(epoch, std::move(release));
  if (!released.ok()) LogError("giving the lease up: %s", std::string(released.status().message()));
}

// A lease of a file or a directory. Reads that come from now on ask for a new lease; those before hold
// their pages locked, and the kernel waits for them before it forgets. Names and attributes it forgets by
// itself, after the time that it was promised (scope.h).
Task<void> Core::GiveInodeUp(uint64_t epoch, Fid fid, uint64_t lease_id) {
  Learning present = leases_->BeginLearning();
  InodePtr inode = inodes_->Get(fid);
  co_await AwaitLateRequests(inode, lease_id);
  mds_->ReturnDroppedScopes();  // it may be among them; from here on it is not let go any more
  const std::optional<ScopePtr> revoked = leases_->EndRevoked(inode, lease_id);
  if (!revoked) co_return;           // asked again
  const ScopePtr& scope = *revoked;  // null: it is READ of a file
  if (scope == nullptr) {
    std::vector<Fid> fids(1, fid);
    co_await kernel_.ForgetAll(std::move(fids));
  }
  co_await ReturnLease(epoch, inode, lease_id, scope, std::move(present), MetadataQueue::Hurry::kYes);
}

// Returns when the MDS has done what was answered early under the lease, which has ended. Ends with the MDS's
// answer or with the session, as everything in the queue does.
Task<void> Core::AwaitTold(const Scope& scope, MetadataQueue::Hurry hurry) {
  if (!scope.writes() || options_.plant_early_release) co_return;
  early_->AwaitOrder();
  co_await queue_->Drain(hurry);
}

// A lease of a directory, or WRITE of a file (`scope`, which has ended), or one of what is not known any
// more: changes, data and handles may depend on it, and what the kernel keeps. `lease_id` 0: the MDS names it
// with the answer to the directory's making, which is awaited. `present`: from before it was noted as given
// up; until the release is answered the lease may come once more. `hurry`: kNo where the client returns it by
// itself, as of each directory that rm -r removes; nobody waits for that.
Task<void> Core::ReturnLease(uint64_t epoch, InodePtr inode, uint64_t lease_id, ScopePtr scope,
                             Learning present, MetadataQueue::Hurry hurry) {
  if (scope != nullptr) {
    const std::set<Fid> late = co_await GiveDataUpUnder(epoch, scope);
    co_await AwaitTold(*scope, hurry);
    std::vector<Fid> paged = scope->paged();
    std::erase_if(paged, [&late](const Fid& fid) { return late.contains(fid); });
    co_await pages_->ForgetUnderLease(epoch, std::move(paged));
  }
  if (scope != nullptr && !options_.plant_hasty) co_await SleepUntil(environment_.clock, scope->promised());
  if (scope != nullptr && lease_id == 0) lease_id = scope->lease();
  if (!options_.plant_untold) co_await handles_->TellUnder(epoch, lease_id, scope);
  if (scope != nullptr && scope->of_file()) ForgetOwnData(scope->of);
  if (lease_id == 0) co_return;
  co_await ReturnPages(epoch, std::move(inode), lease_id, std::move(present));
}

// A lease under which nothing is open that the MDS does not know.
Task<void> Core::ReturnPages(uint64_t epoch, InodePtr inode, uint64_t lease_id,
                             [[maybe_unused]] Learning present) {
  if (inode != nullptr) {
    std::lock_guard lock(inode->mutex);
    for (Inode::Leaving& one : inode->leaving) one.returned = one.returned || one.lease == lease_id;
  }
  co_await ReleaseLease(epoch, lease_id);
  if (inode == nullptr) co_return;
  std::lock_guard lock(inode->mutex);
  std::erase_if(inode->leaving, [lease_id](const Inode::Leaving& one) { return one.lease == lease_id; });
}

// Lists what this client holds, for the MDS after a lost stream. In messages of a bounded size.
std::vector<proto::Reclaim> Core::Held() {
  mds_->ReturnDroppedScopes();  // or the MDS would end them before the kernel has forgotten what they cover
  leases_->BeginReclaim();      // before anything is counted: a close that comes later is not in it
  std::vector<proto::Reclaim> parts(1);
  proto::Reclaim leases;  // all in the last message: the MDS ends those that it does not name
  int entries = 0;
  auto part = [&]() -> proto::Reclaim* {
    if (entries++ == kEntriesOfReclaim) {
      parts.emplace_back();
      entries = 1;
    }
    return &parts.back();
  };
  std::vector<InodePtr> inodes;  // none: what is still here has gone with an earlier session
  if (entrance_.epoch() == session_->epoch()) inodes = inodes_->All();
  for (const InodePtr& inode : inodes) {
    std::lock_guard lock(inode->mutex);
    if (Handles::IsUntold(*inode)) {
      // Nobody else tells it. Under WRITE the MDS may have yet to make the file: ReturnLease tells it then.
      const Scope& under = *inode->opened_under;
      if (!under.good() && !under.writes()) inode->told = inode->opens;
    }
    uint32_t count = inode->told + inode->closing;
    if (inode->kept_open) count = std::max(count, 1u);
    if (count > 0) {
      ++inode->named;
      proto::OpenFile* open = part()->add_opens();
      *open->mutable_fid() = ToProto(inode->fid);
      open->set_count(count);
      open->set_write(inode->write_opens > 0);
    }
    for (const proto::LockRange& lock_range : inode->locks) *part()->add_locks() = lock_range;
    if (inode->pages.lease != 0) AddLease(*inode, inode->pages.lease, false, &leases);
    const ScopePtr& scope = inode->scope;
    if (scope != nullptr) AddLease(*inode, scope->lease(), scope->writes(), &leases);
    // One that the MDS has not named keeps others out until what was answered under it is told.
    const ScopePtr& ended = inode->ended;
    if (scope == nullptr && ended != nullptr && ended->lease() == 0) AddLease(*inode, 0, true, &leases);
    for (const Inode::Leaving& one : inode->leaving) {
      if (!one.returned) AddLease(*inode, one.lease, one.writes, &leases, one.late);
    }
  }
  if (leases.leases_size() > 0) parts.push_back(std::move(leases));
  return parts;
}

}  // namespace nacre::client
