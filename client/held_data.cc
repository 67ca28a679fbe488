#include "client/held_data.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "client/within.h"
#include "common/log.h"
#include "rpc/convert.h"

namespace nacre::client {
namespace {

// Of who wants the directory, for the data of one file.
constexpr Duration kPatience = 1s;

}  // namespace

HeldData::HeldData(const Environment& environment, const Options& options, InodeTable& inodes,
                   HeldLeases& leases, OwnData& own_data, EarlyChanges& early, MdsCalls& mds, FileData& data,
                   MovingOut& moving_out, WriteBehind& write_behind, KernelCache& kernel,
                   Background& background, GiveBack give_back)
    : environment_(environment),
      options_(options),
      inodes_(inodes),
      leases_(leases),
      own_data_(own_data),
      early_(early),
      mds_(mds),
      data_(data),
      moving_out_(moving_out),
      write_behind_(write_behind),
      kernel_(kernel),
      background_(background),
      give_back_(std::move(give_back)) {}

// --- taking ---

// With the order (EarlyChanges) and the inode's mutex held: nobody else may change the file, nor has pages of
// it, nor a handle from before by which it could be written to without asking the MDS.
bool HeldData::IsAloneWith(const Inode& inode) const {
  if (!early_.MayAnswer() || !early_.MayChange(inode) || inode.alone_under != inode.covered) return false;
  return S_ISREG(inode.attr.mode()) && inode.attr.nlink() == 1;
}

// The same held: and its content is known.
bool HeldData::MayTake(const Inode& inode) const {
  if (!IsAloneWith(inode)) return false;
  const auto content = inode.CurrentContent();
  return content && (inode.Inline() || inode.layout->generation() == inode.attr.layout_generation());
}

// Whether it may be taken: `known`, or once its content has been asked for.
bool HeldData::Wants(Inode& inode, bool* known) {
  const EarlyChanges::Order order = early_.TakeOrder();
  std::lock_guard lock(inode.mutex);
  *known = MayTake(inode);
  return *known || IsAloneWith(inode);
}

Task<bool> HeldData::Take(InodePtr inode) {
  if (HoldsData(*inode)) co_return true;
  bool known = false;
  if (!Wants(*inode, &known)) co_return false;
  if (!known) {
    Status loaded = co_await mds_.LoadFile(inode);
    if (!loaded.ok() || !Wants(*inode, &known) || !known) co_return false;
  }
  RangeLock::Guard range = co_await inode->range.LockUnlessCancelled(0, RangeLock::kEnd, true);
  if (!range) co_return false;
  co_return TakeLocked(inode);
}

bool HeldData::TryTake(const InodePtr& inode) {
  if (HoldsData(*inode)) return true;
  RangeLock::Guard range = inode->range.TryLock(0, RangeLock::kEnd, true);
  return range && TakeLocked(inode);
}

// All of the file is locked.
bool HeldData::TakeLocked(const InodePtr& inode) {
  if (HoldsData(*inode)) return true;
  data_.Drop(*inode, 0, UINT64_MAX);  // of readers, whose leases may have ended
  const EarlyChanges::Order order = early_.TakeOrder();
  std::lock_guard lock(inode->mutex);
  // The file is noted before the lease is looked at: an end that is not seen here finds it.
  if (!MayTake(*inode) || !inode->covered->NoteData(inode->fid)) return false;
  inode->data_scope = inode->covered;
  if (inode->data_scope->of_file()) own_data_.Note(inode->fid);
  if (inode->made_under != inode->covered) inode->unsynced_whole = false;  // others may have written
  return true;
}

// --- giving up ---

Task<void> HeldData::GiveUp(InodePtr inode) {
  if (!HoldsData(*inode)) co_return;
  RangeLock::Guard range = co_await moving_out_.LockWhole(inode, MayGiveUp::kNo);
  (void)co_await write_behind_.SendAll(inode);
  data_.Drop(*inode, 0, UINT64_MAX);
  {
    std::lock_guard lock(inode->mutex);
    inode->EndData();
  }
  ForgetOwn(inode->fid);
}

void HeldData::ForgetOwn(const Fid& fid) {
  InodePtr inode = inodes_.Find(fid);
  if (inode == nullptr) return own_data_.Forget(fid);
  std::lock_guard lock(inode->mutex);
  if (inode->data_scope == nullptr) own_data_.Forget(fid);
}

Task<std::set<Fid>> HeldData::GiveUpUnder(uint64_t epoch, ScopePtr scope) {
  std::set<Fid> late;
  if (options_.plant_kept_data) co_return late;
  if (scope->shares()) {
    if (!options_.plant_shared_untold) co_await TellShared(scope->of);
    co_return late;
  }
  early_.AwaitOrder();  // renames that found it good are done
  std::vector<InodePtr> files;
  for (const Fid& fid : scope->with_data()) {
    InodePtr inode = inodes_.Find(fid);
    if (inode == nullptr) continue;
    std::lock_guard lock(inode->mutex);
    if (inode->data_scope == nullptr || inode->data_scope->good()) continue;
    if (inode->HasLateData())
      late.insert(fid);
    else
      files.push_back(inode);
  }
  std::vector<OneShot<Unit>> ends;
  for (const InodePtr& inode : files) ends.push_back(background_.Start(GiveUp(inode)));
  const Duration until = environment_.clock.Now() + kPatience;
  for (size_t i = 0; i < files.size(); ++i) {
    const Duration left = std::max<Duration>(until - environment_.clock.Now(), 0ns);
    (void)co_await ComesWithin(environment_.clock, left, ends[i]);
    if (!HoldsData(*files[i])) continue;
    const bool leased = co_await LeaseLate(epoch, files[i], ends[i]);
    if (leased) late.insert(files[i]->fid);
  }
  co_return late;
}

// The bytes are in the objects, but for those of writes under way, which ask the MDS when they find that the
// lease has ended (Telling::TryTellLater).
Task<void> HeldData::TellShared(Fid file) {
  if (InodePtr inode = inodes_.Find(file)) (void)co_await write_behind_.SendAll(inode);
}

// Whether the file has a lease of its own now. False: the data has been given up after all, or the session is
// over. The MDS refuses the lease if the file lies in another directory by now than the one that goes back;
// then that one's lease is what the file becomes late under, or it is on its way back, too, and this finds
// the file's own lease later.
Task<bool> HeldData::LeaseLate(uint64_t epoch, InodePtr inode, OneShot<Unit> end) {
  for (;;) {
    Learning present = leases_.BeginLearning();
    StatusOr<uint64_t> lease = co_await AskForLateLease(epoch, inode, present.reclaims);
    if (lease.ok() && *lease == 0) continue;
    if (lease.ok()) {
      background_.Start(ReturnLate(epoch, std::move(inode), *lease, end, std::move(present)));
      co_return true;
    }
    LogWarning("file %s: its directory's lease waits for its data: %s", inode->fid.ToString(),
               std::string(lease.status().message()));
    const bool given_up = co_await ComesWithin(environment_.clock, kPatience, end);
    if (given_up) co_return false;
    std::lock_guard lock(inode->mutex);
    if (inode->HasLateData()) co_return true;
  }
}

// The lease is among those that go back (Inode::leaving) from when it is known here. 0: a Reclaim that could
// not name it has ended it, or will; `reclaims`: how many had been begun before the request.
Task<StatusOr<uint64_t>> HeldData::AskForLateLease(uint64_t epoch, InodePtr inode, uint64_t reclaims) {
  proto::MetadataRequest request;
  *request.mutable_acquire_lease()->mutable_resource() = ToProto(inode->fid);
  request.mutable_acquire_lease()->set_mode(proto::LEASE_WRITE);
  {
    std::lock_guard lock(inode->mutex);
    ++inode->late_requests;
  }
  Reply reply = co_await mds_.AskIn(epoch, std::move(request));
  if (reply.ok() && reply->lease().lease().mode() != proto::LEASE_WRITE)
    reply = ErrnoError(EPROTO, "the MDS has granted something else");
  uint64_t lease = 0;
  std::vector<OneShot<Unit>> waiters;  // of the inode, for the end of the request
  if (reply.ok() && leases_.TakeLate(*inode, reply->lease().lease().id(), reclaims))
    lease = reply->lease().lease().id();
  {
    std::lock_guard lock(inode->mutex);
    if (--inode->late_requests == 0) waiters.swap(inode->late_request_waiters);
  }
  for (OneShot<Unit>& waiter : waiters) waiter.Set({});
  CO_RETURN_IF_ERROR(reply.status());
  co_return lease;
}

Task<void> HeldData::AwaitLateRequests(InodePtr inode, uint64_t lease) {
  OneShot<Unit> ended;
  {
    std::lock_guard lock(inode->mutex);
    if (inode->late_requests == 0 || inode->pages.lease == lease) co_return;
    inode->late_request_waiters.push_back(ended);
  }
  co_await ended.Wait();
}

Task<void> HeldData::ReturnLate(uint64_t epoch, InodePtr inode, uint64_t lease, OneShot<Unit> end,
                                Learning present) {
  co_await end.Wait();
  std::vector<Fid> fids(1, inode->fid);
  co_await kernel_.ForgetAll(std::move(fids));
  co_await give_back_(epoch, std::move(inode), lease, std::move(present));
}

}  // namespace nacre::client
