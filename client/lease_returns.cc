#include "client/lease_returns.h"

#include <optional>
#include <set>

#include "client/within.h"
#include "common/log.h"

namespace nacre::client {

LeaseReturns::LeaseReturns(const Environment& environment, const Options& options, const Entrance& entrance,
                           InodeTable& inodes, HeldLeases& leases, EarlyChanges& early, MdsCalls& mds,
                           MetadataQueue& queue, Handles& handles, KeptPages& pages, HeldData& data,
                           KernelCache& kernel, Background& background)
    : environment_(environment),
      options_(options),
      entrance_(entrance),
      inodes_(inodes),
      leases_(leases),
      early_(early),
      mds_(mds),
      queue_(queue),
      handles_(handles),
      pages_(pages),
      data_(data),
      kernel_(kernel),
      background_(background) {}

void LeaseReturns::Begin(uint64_t epoch, Fid fid, uint64_t lease_id, bool keeps_read) {
  background_.Start(GiveUp(epoch, fid, lease_id, keeps_read));
}

// A lease of a file or a directory. Reads that come from now on ask for a new lease; those before hold
// their pages locked, and the kernel waits for them before it forgets. Names and attributes it forgets by
// itself, after the time that it was promised (scope.h).
Task<void> LeaseReturns::GiveUp(uint64_t epoch, Fid fid, uint64_t lease_id, bool keeps_read) {
  Learning present = leases_.BeginLearning();
  InodePtr inode = inodes_.Get(fid);
  co_await data_.AwaitLateRequests(inode, lease_id);
  mds_.ReturnDroppedScopes();  // it may be among them; from here on it is not let go any more
  const std::optional<ScopePtr> revoked = leases_.EndRevoked(inode, lease_id);
  if (!revoked) co_return;           // asked again
  const ScopePtr& scope = *revoked;  // null: it is READ of a file
  if (scope == nullptr) co_await ForgetPages(inode, lease_id);
  co_await Return(epoch, inode, lease_id, scope, std::move(present), MetadataQueue::Hurry::kYes, keeps_read);
}

Task<void> LeaseReturns::ForgetPages(InodePtr inode, uint64_t lease_id) {
  do {
    std::vector<Fid> fids(1, inode->fid);
    co_await kernel_.ForgetAll(std::move(fids));
  } while (HeldLeases::EndReadAgain(*inode, lease_id));
}

void LeaseReturns::ReturnOfFile(const InodePtr& inode) {
  Learning present = leases_.BeginLearning();
  ScopePtr ended = leases_.EndOfFile(*inode);
  if (ended == nullptr) return;
  background_.Start(
      Return(entrance_.epoch(), inode, ended->lease(), ended, std::move(present), MetadataQueue::Hurry::kNo));
}

Task<void> LeaseReturns::Return(uint64_t epoch, InodePtr inode, uint64_t lease_id, ScopePtr scope,
                                Learning present, MetadataQueue::Hurry hurry, bool keeps_read) {
  if (scope != nullptr) {
    const std::set<Fid> late = co_await data_.GiveUpUnder(epoch, scope);
    co_await AwaitTold(*scope, hurry);
    std::vector<Fid> paged = scope->paged();
    std::erase_if(paged, [&late](const Fid& fid) { return late.contains(fid); });
    co_await pages_.ForgetUnderLease(epoch, std::move(paged));
  }
  if (scope != nullptr && lease_id == 0) lease_id = scope->lease();
  if (!options_.plant_untold) co_await handles_.TellUnder(epoch, lease_id, scope);
  if (scope != nullptr && scope->of_file()) data_.ForgetOwn(scope->of);
  const bool may_keep =
      keeps_read && lease_id != 0 && scope != nullptr && scope->writes() && !scope->of_file();
  const bool kept = may_keep && co_await KeepReading(epoch, inode, lease_id);
  co_await AwaitPromises(inode, scope);
  if (kept || lease_id == 0) co_return;
  co_await ReturnPages(epoch, std::move(inode), lease_id, std::move(present));
}

// Everything is told. Has the MDS give this client READ in place of WRITE, so that whoever wants to read need
// not wait for what the kernel was promised: that stays true, and goes over to the new lease
// (Scope::Inherit). False: the MDS waits for WRITE still.
//
// Until the answer has come a Reclaim names the lease, as READ: the kernel's promises are never without one.
Task<bool> LeaseReturns::KeepReading(uint64_t epoch, InodePtr directory, uint64_t lease_id) {
  Learning learning = leases_.BeginLearning();
  {
    std::lock_guard lock(directory->mutex);
    for (Inode::Leaving& one : directory->leaving)
      if (one.lease == lease_id) one.mode = proto::LEASE_READ;
  }
  proto::MetadataRequest release;
  release.mutable_release_lease()->set_id(lease_id);
  release.mutable_release_lease()->set_keep(proto::LEASE_READ);
  const auto kept = co_await mds_.AskIn(epoch, std::move(release));
  if (!kept.ok() || kept->directory_leases().empty()) co_return false;
  mds_.TakeScopes(&learning, *kept);
  std::lock_guard lock(directory->mutex);
  directory->ForgetLeaving(lease_id);
  co_return true;
}

// A lease that is not known here may be the one that was kept, and was asked back before the answer that
// names it has come: what the kernel was promised under the one before it stands under it then. (Who has kept
// it waits here, too, and so keeps the directory known for as long.)
Task<void> LeaseReturns::AwaitPromises(const InodePtr& inode, const ScopePtr& scope) {
  if (options_.plant_hasty) co_return;
  ScopePtr promised = scope;
  if (promised == nullptr) {
    std::lock_guard lock(inode->mutex);
    promised = inode->ended;
  }
  if (promised != nullptr) co_await SleepUntil(environment_.clock, promised->promised());
}

// Returns when the MDS has done what was answered early under the lease, which has ended. Ends with the MDS's
// answer or with the session, as everything in the queue does.
Task<void> LeaseReturns::AwaitTold(const Scope& scope, MetadataQueue::Hurry hurry) {
  if (!scope.writes() || options_.plant_early_release) co_return;
  early_.AwaitOrder();
  co_await queue_.Drain(hurry);
}

Task<void> LeaseReturns::ReturnPages(uint64_t epoch, InodePtr inode, uint64_t lease_id,
                                     [[maybe_unused]] Learning present) {
  if (inode != nullptr) {
    std::lock_guard lock(inode->mutex);
    for (Inode::Leaving& one : inode->leaving) one.returned = one.returned || one.lease == lease_id;
  }
  co_await Release(epoch, lease_id);
  if (inode == nullptr) co_return;
  std::lock_guard lock(inode->mutex);
  inode->ForgetLeaving(lease_id);
}

Task<void> LeaseReturns::Release(uint64_t epoch, uint64_t lease_id) {
  proto::MetadataRequest release;
  release.mutable_release_lease()->set_id(lease_id);
  auto released = co_await mds_.AskIn(epoch, std::move(release));
  if (!released.ok()) LogError("giving the lease up: %s", std::string(released.status().message()));
}

}  // namespace nacre::client
