// The filesystem lease: taking it and giving it up.
//
// Both changes happen with the gate closed, so that each operation sees one way of working from its beginning
// to its end.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "client/core.h"
#include "client/within.h"
#include "common/log.h"

namespace nacre::client {
namespace {

// Of what is still to be sent when the gate has been closed.
constexpr Duration kFlushPatience = 5s;

constexpr int kEntriesOfReclaim = 4000;  // some hundred KiB

void AddLease(const Inode& inode, uint64_t id, bool writes, proto::Reclaim* held) {
  proto::Lease* lease = held->add_leases();
  *lease->mutable_resource() = ToProto(inode.fid);
  lease->set_mode(writes ? proto::LEASE_WRITE : proto::LEASE_READ);
  lease->set_id(id);
}

}  // namespace

void Core::OnPush(proto::Push push) {
  if (push.has_map()) return TakeMap(push.map());
  const uint64_t epoch = session_->epoch();
  if (push.has_granted()) return BeginLease(push.granted(), epoch);
  if (!push.has_revoke()) return;
  const Fid resource = FromProto(push.revoke().resource());
  if (resource == kFilesystemFid) {
    std::lock_guard lock(mutex_);
    revoked_lease_ = push.revoke().id();
  }
  Background(resource == kFilesystemFid ? GiveLeaseUp(push.revoke().id())
                                        : GiveInodeUp(epoch, resource, push.revoke().id()));
}

// Noted at once, so that a revocation that comes right behind finds it. One that has overtaken the grant has
// been answered already.
void Core::BeginLease(const proto::Lease& lease, uint64_t epoch) {
  if (FromProto(lease.resource()) != kFilesystemFid || lease.mode() != proto::LEASE_WRITE) return;
  {
    std::lock_guard lock(mutex_);
    if (lease.id() == revoked_lease_) return;
    lease_id_ = lease.id();
    lease_epoch_ = epoch;
  }
  promised_ = lease.promised_bytes();
  Background(options_.caching ? TakeLease(lease.id()) : GiveLeaseUp(lease.id()));
}

// Nothing is done if the lease was lost or revoked before its turn came; nor if what is here is still of an
// earlier session: StartAnew takes it then.
Task<void> Core::TakeLease(uint64_t lease_id) {
  co_await gate_.CloseBetween(environment_.clock);
  bool mine;
  {
    std::lock_guard lock(mutex_);
    mine = lease_id_ == lease_id && lease_epoch_ == epoch_ && !cached();
  }
  if (mine) {
    EndScopes();
    for (const InodePtr& inode : inodes_->All())  // what readers have left there when their leases had ended
      if (!HasScopedData(*inode)) DropData(*inode, 0, UINT64_MAX);
    inodes_->Forget();  // what was true without the lease need not be true now
    ++leases_taken_;
    cached_.store(true, std::memory_order_release);
  }
  gate_.Open();
}

// Most of what is held back is sent while operations go on, so that one whose server is away keeps nobody but
// the MDS waiting; the rest with the gate closed, which is soon over, or tried again. Then every open file is
// reported before anything else is let in; only then the kernel is made to forget, with operations going on
// (its pages may be waiting for them), and the lease released. Pages that come meanwhile have leases of their
// own (HoldPages).
Task<void> Core::GiveLeaseUp(uint64_t lease_id) {
  Duration promised{0};
  for (;;) {
    if (cached()) (void)co_await SendEverything();
    co_await gate_.CloseBetween(environment_.clock);
    promised = environment_.clock.Now();
    if (!cached()) break;
    auto sent = std::make_shared<Status>();
    const OneShot<Unit> ended = InBackground(KeepStatus(sent, SendEverything()));
    const bool all = co_await ComesWithin(environment_.clock, kFlushPatience, ended);
    if (all && !sent->ok())
      LogError("giving the lease up: not everything could be written back: %s", std::string(sent->message()));
    if (all) break;
    gate_.Open();
    co_await ended.Wait();
  }
  const uint64_t epoch = session_->epoch();
  bool mine;
  {
    std::lock_guard lock(mutex_);
    mine = lease_id_ == lease_id && lease_epoch_ == epoch_;
    if (lease_id_ == lease_id && !mine) lease_id_ = 0;
  }
  if (!mine) {  // lost with an earlier session, given up before, or not taken yet
    gate_.Open();
    co_return co_await ReleaseLease(epoch, lease_id);
  }
  const bool was_cached = cached_.load();
  for (const InodePtr& inode : inodes_->All()) {
    std::lock_guard lock(inode->mutex);
    inode->told = inode->opens;
  }
  for (proto::Reclaim& part : Held()) {
    proto::MetadataRequest reclaim;
    *reclaim.mutable_reclaim() = std::move(part);
    reclaim.mutable_reclaim()->clear_leases();
    auto reclaimed = co_await AskAsSystem(std::move(reclaim));
    if (!reclaimed.ok()) LogError("giving the lease up: %s", std::string(reclaimed.status().message()));
  }
  if (was_cached) {
    for (const InodePtr& inode : inodes_->All()) cache_->Drop(inode->data, 0, UINT64_MAX, nullptr);
    inodes_->Forget();
  }
  cached_.store(false, std::memory_order_release);
  std::vector<Fid> paged = WithPages();
  gate_.Open();
  WakeEntering();

  if (was_cached) {
    co_await InvalidateKernel(std::move(paged));
    Duration left = promised + options_.kernel_cache - environment_.clock.Now();
    if (left > 0ns) co_await environment_.clock.Sleep(left);
  }
  {
    std::lock_guard lock(mutex_);
    if (lease_id_ == lease_id) lease_id_ = 0;
  }
  co_await ReleaseLease(epoch, lease_id);
  if (was_cached) co_await targets_->ReturnGrants(epoch);
}

// Behind what was answered early: the MDS ends the lease when it has done that, and whoever waits for the
// lease need not wait for the answer to the one and then for the other. Many that are given back at a time,
// and what stands before them, are few messages.
Task<void> Core::ReleaseLease(uint64_t epoch, uint64_t lease_id, uint64_t answered) {
  proto::MetadataRequest release;
  release.mutable_release_lease()->set_id(lease_id);
  release.mutable_release_lease()->set_answered(answered);
  if (options_.plant_early_release) {
    (void)co_await session_->Call(epoch, std::move(release));
    co_return;
  }
  if (session_->many_leases()) {
    auto refused = std::make_shared<bool>(false);  // by an older MDS that has taken the place of ours
    queue_->Push(epoch, release, [refused](const Reply& released) { *refused = !released.ok(); });
    co_await queue_->Drain();
    if (!*refused) co_return;
  }
  auto released = co_await AskIn(epoch, std::move(release));
  if (!released.ok()) LogError("giving the lease up: %s", std::string(released.status().message()));
}

// A lease of a file or a directory. Reads that come from now on ask for a new lease; those before hold
// their pages locked, and the kernel waits for them before it forgets. Names and attributes it forgets by
// itself, after the time that it was promised (scope.h).
Task<void> Core::GiveInodeUp(uint64_t epoch, Fid fid, uint64_t lease_id) {
  ReturnDroppedScopes();  // it may be among them
  Learning present = BeginLearning();
  InodePtr inode = inodes_->Get(fid);
  ScopePtr scope;  // null: the lease is of a file
  {
    std::lock_guard lock(mutex_);
    std::lock_guard inode_lock(inode->mutex);
    if (std::any_of(inode->leaving.begin(), inode->leaving.end(),
                    [lease_id](const Inode::Leaving& one) { return one.lease == lease_id; }))
      co_return;  // asked again
    given_up_.insert(lease_id);
    // The answer that names it may be on its way still.
    if (inode->scope != nullptr && inode->scope->lease() == 0) inode->scope->Name(lease_id);
    if (inode->scope != nullptr && inode->scope->lease() == lease_id) scope = inode->EndScope();
    ++inode->pages.recalls;
    if (inode->pages.lease == lease_id) inode->pages.lease = inode->pages.content = 0;
    if (scope == nullptr) inode->pages.recalled = environment_.clock.Now();
    inode->leaving.push_back({lease_id, scope != nullptr && scope->writes()});
  }
  if (scope == nullptr) {
    std::vector<Fid> fids(1, fid);
    co_await InvalidateKernel(std::move(fids));
  }
  co_await ReturnLease(epoch, inode, lease_id, scope, std::move(present));
}

// Until the kernel has forgotten what it was promised for so long.
Task<void> Core::AwaitForgotten(Duration promised) {
  const Duration left = promised - environment_.clock.Now();
  if (left > 0ns) co_await environment_.clock.Sleep(left);
}

// A lease of a directory (`scope`, which has ended), or of what is not known any more: changes, data and
// handles may depend on it, and what the kernel keeps. `lease_id` 0: the MDS names it with the answer to the
// directory's making, which is awaited. `present`: from before it was noted as given up; until the release is
// answered the lease may come once more.
Task<void> Core::ReturnLease(uint64_t epoch, InodePtr inode, uint64_t lease_id, ScopePtr scope,
                             [[maybe_unused]] Learning present) {
  if (scope != nullptr) {
    const std::set<Fid> late = co_await GiveDataUpUnder(epoch, scope);
    // Whoever has found the lease good before has its change in the queue when he lets this go.
    { std::lock_guard order(behind_mutex_); }
    std::vector<Fid> paged = scope->paged();
    const bool told = !scope->writes() || options_.plant_early_release;  // nothing was answered early
    const bool kept = !paged.empty() || scope->promised() > environment_.clock.Now();
    // Where nothing has to be done between what was answered early and the release, both are one message.
    const bool at_once = !kept && lease_id != 0 && UntoldUnder(lease_id, scope).empty();
    if (!told && !at_once) co_await queue_->Drain();
    std::erase_if(paged, [&late](const Fid& fid) { return late.contains(fid); });
    std::vector<Fid> forgotten = paged;
    co_await ForgetPagesUnderLease(epoch, std::move(paged));
    scope->ForgotPages(forgotten);  // the next lease of the directory need not have them forgotten once more
  }
  if (scope != nullptr && !options_.plant_hasty) co_await AwaitForgotten(scope->promised());
  if (scope != nullptr && lease_id == 0) lease_id = scope->lease();
  std::vector<InodePtr> untold = UntoldUnder(lease_id, scope);
  if (!untold.empty()) co_await TellOpens(epoch, std::move(untold));
  if (lease_id == 0) co_return;
  co_await ReleaseLease(epoch, lease_id, scope != nullptr ? scope->answered() : 0);
  NoteReturned(inode, lease_id);
}

void Core::NoteReturned(const InodePtr& inode, uint64_t lease_id) {
  if (inode == nullptr) return;
  std::lock_guard lock(inode->mutex);
  std::erase_if(inode->leaving, [lease_id](const Inode::Leaving& one) { return one.lease == lease_id; });
}

// A lease under which nothing is open that the MDS does not know.
Task<void> Core::ReturnPages(uint64_t epoch, InodePtr inode, uint64_t lease_id,
                             [[maybe_unused]] Learning present) {
  co_await ReleaseLease(epoch, lease_id);
  NoteReturned(inode, lease_id);
}

// Lists what this client holds: for the MDS after a lost stream, and when the lease goes. In messages of a
// bounded size.
std::vector<proto::Reclaim> Core::Held() {
  ReturnDroppedScopes();  // or the MDS would end them before the kernel has forgotten what they cover
  ++times_held_;          // before anything is counted: a close that comes later is not in it
  std::vector<proto::Reclaim> parts(1);
  int entries = 0;
  auto part = [&]() -> proto::Reclaim* {
    if (entries++ == kEntriesOfReclaim) {
      parts.emplace_back();
      entries = 1;
    }
    return &parts.back();
  };
  std::vector<InodePtr> inodes;  // none: what is still here has gone with an earlier session
  if (epoch_ == session_->epoch()) inodes = inodes_->All();
  for (const InodePtr& inode : inodes) {
    std::lock_guard lock(inode->mutex);
    if (IsUntold(*inode)) {
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
    if (inode->pages.lease != 0) AddLease(*inode, inode->pages.lease, false, part());
    const ScopePtr& scope = inode->scope;
    if (scope != nullptr) AddLease(*inode, scope->lease(), scope->writes(), part());
    // One that the MDS has not named keeps others out until what was answered under it is told.
    const ScopePtr& ended = inode->ended;
    if (scope == nullptr && ended != nullptr && ended->lease() == 0) AddLease(*inode, 0, true, part());
    for (const Inode::Leaving& one : inode->leaving) AddLease(*inode, one.lease, one.writes, part());
  }
  std::lock_guard lock(mutex_);
  if (lease_id_ != 0) {
    proto::Lease* lease = parts.back().add_leases();
    *lease->mutable_resource() = ToProto(kFilesystemFid);
    lease->set_mode(proto::LEASE_WRITE);
    lease->set_id(lease_id_);
  }
  return parts;
}

}  // namespace nacre::client
