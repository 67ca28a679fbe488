#include "server/metadata/migration.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "server/metadata/directory_leases.h"
#include "server/metadata/left_objects.h"
#include "server/metadata/new_objects.h"
#include "server/metadata/ost_files.h"
#include "server/metadata/placement.h"
#include "server/metadata/recall.h"

namespace nacre::mds {
namespace {

constexpr Duration kLockedTime = std::chrono::seconds(10);  // for which writers wait at the most
constexpr Duration kLeasePatience = std::chrono::seconds(10);
constexpr Duration kLockPause = std::chrono::milliseconds(20);
constexpr Duration kAnyTime = std::chrono::hours(24 * 365);

// --- one attempt ---

// How much is held while the bytes are copied.
enum class Hold { kNothing, kLeases, kWriters };

class MigrationAttempt {
 public:
  enum class Result { kDone, kFileChanged };

  MigrationAttempt(MdsPtr mds, Fid fid, const MigrationWish& wish, std::shared_ptr<CopyProgress> progress,
                   Hold hold)
      : mds_(std::move(mds)),
        fid_(fid),
        wish_(wish),
        progress_(std::move(progress)),
        hold_(hold),
        guard_(mds_, 0, ChangeGuard::For::kServer) {}

  Task<StatusOr<Result>> Run() {
    Duration until = mds_->env.clock.Now() + kAnyTime;
    if (auto data = mds_->data_locks.TryLock(fid_)) CO_RETURN_IF_ERROR(co_await SettleTail(mds_, fid_));
    if (hold_ != Hold::kNothing) CO_RETURN_IF_ERROR(co_await TakeLeasesBack());
    if (hold_ == Hold::kWriters) {
      CO_RETURN_IF_ERROR(co_await LockWriters());
      until = mds_->env.clock.Now() + kLockedTime;
    }
    CO_ASSIGN_OR_RETURN(const bool moves, co_await Begin());
    if (!moves) co_return Result::kDone;
    std::optional<ObjectCopy> copy;
    if (!old_->inline_data) {
      copy.emplace(mds_, fid_, old_->layout, layout_, progress_);
      CO_RETURN_IF_ERROR(co_await copy->Run(until));
    }
    if (hold_ == Hold::kNothing) CO_RETURN_IF_ERROR(co_await TakeLeasesBack());
    if (hold_ != Hold::kWriters) CO_RETURN_IF_ERROR(co_await LockWriters());
    co_return co_await Commit(copy ? &*copy : nullptr);
  }

  // Withdraws what was intended and not committed, in the background.
  void End() {
    if (objects_) objects_->Withdraw();
  }

 private:
  // Nobody has a lease that covers the file, or is granted one, from here on; but for READ of the file alone,
  // under which nobody is answered before the MDS knows.
  Task<Status> TakeLeasesBack() {
    if (mds_->options.plant_unrecalled_migration) co_return OkStatus();
    auto inode = mds_->tables->GetInode(fid_);
    CO_RETURN_IF_ERROR(inode.status());
    std::vector<Touched> touched(1, {CoveringDirectory(**inode), fid_});
    CO_RETURN_IF_ERROR(co_await guard_.Cover(touched));
    // Data that comes late, since an OST is away.
    for (const LeaseGrant& grant : mds_->leases.Conflicts(fid_, 0, proto::LEASE_READ)) {
      const bool released = co_await TryRecall(mds_, grant, kLeasePatience);
      if (!released)
        co_return absl::UnavailableError("a client has data of the file that it cannot send yet");
    }
    co_return OkStatus();
  }

  // Truncations, appends and what tells of writes wait from here on. One that is under way and waits for an
  // OST is not waited for long: leases are held up meanwhile.
  Task<Status> LockWriters() {
    const Duration end = mds_->env.clock.Now() + kLeasePatience;
    for (;;) {
      auto lock = mds_->data_locks.TryLock(fid_);
      if (lock) writers_ = *std::move(lock);
      if (lock) co_return co_await SettleTail(mds_, fid_);
      if (mds_->env.clock.Now() >= end) co_return absl::UnavailableError("the file is being truncated");
      co_await mds_->env.clock.Sleep(kLockPause);
    }
  }

  StatusOr<Layout> ChooseLayout(uint64_t sequence) {
    const Layout& old = old_->layout;
    if (!wish_.stripes.empty()) return PlaceEach(sequence);
    std::optional<cluster::UsableOsts> listed;
    if (!wish_.osts.empty()) {
      std::vector<cluster::OstSpace> some;
      for (const OstIndex ost : wish_.osts) {
        ASSIGN_OR_RETURN(cluster::OstSpace space, SpaceOf(ost));
        some.push_back(space);
      }
      listed.emplace(std::move(some));
    }
    const cluster::UsableOsts& osts = listed ? *listed : *usable_;
    if (wish_.layout.empty()) return PlaceAnew(*mds_, osts, old, sequence);
    ASSIGN_OR_RETURN(Layout layout, Instantiate(wish_.layout, osts, &mds_->chooser, sequence));
    layout.generation = old.generation;
    return layout;
  }

  // Puts each stripe where the wish has it.
  StatusOr<Layout> PlaceEach(uint64_t sequence) const {
    Layout layout = old_->layout;
    layout.object_sequence = sequence;
    size_t stripe = 0;
    for (LayoutComponent& component : layout.components) {
      for (OstIndex& ost : component.groups) {
        if (stripe == wish_.stripes.size()) return WrongStripes();
        const uint32_t copies = mds_->osts.CopiesOf(std::exchange(ost, wish_.stripes[stripe++]));
        RETURN_IF_ERROR(SpaceOf(ost).status());
        if (mds_->osts.CopiesOf(ost) == copies) continue;
        return ErrnoError(EINVAL, absl::StrFormat("OST %d has not %d copies, which %s is to keep", ost,
                                                  copies, fid_.ToString()));
      }
    }
    if (stripe != wish_.stripes.size()) return WrongStripes();
    return layout;
  }

  Status WrongStripes() const {
    return ErrnoError(
        EINVAL, absl::StrFormat("%d OSTs were chosen for %s, which has %d stripes", wish_.stripes.size(),
                                fid_.ToString(), StripeGroups(old_->layout).size()));
  }

  StatusOr<cluster::OstSpace> SpaceOf(OstIndex ost) const {
    for (const uint32_t copies : usable_->Copies()) {
      const cluster::UsableOsts& some = *usable_->WithCopies(copies);
      for (size_t i = 0; i < some.size(); ++i)
        if (some[i].index == ost) return some[i];
    }
    return ErrnoError(EINVAL,
                      absl::StrFormat("OST %d takes no new files: nacre status shows those that do", ost));
  }

  // Reads the file and records which objects are about to be written. False: there is nothing to be moved.
  Task<StatusOr<bool>> Begin() {
    CO_ASSIGN_OR_RETURN(const uint64_t sequence, co_await mds_->ids.NextObjectSequence());
    CO_ASSIGN_OR_RETURN(old_, mds_->tables->GetInode(fid_));
    if (!S_ISREG(old_->mode)) {
      co_return ErrnoError(EINVAL,
                           absl::StrFormat("%s is no regular file: mode %o", fid_.ToString(), old_->mode));
    }
    // Inline data gets other OSTs when it is moved out (move_out.h), unless it is to have another form.
    if (old_->inline_data && wish_.layout.empty()) co_return false;
    if (wish_.off && !HasObjectsOn(*old_, *wish_.off)) co_return false;
    if (wish_.from && old_->layout.object_sequence != *wish_.from) co_return false;
    for (const Stripe& stripe : StripesOf(old_->layout)) {
      if (old_->inline_data || !cluster::IsGone(mds_->osts.UseOf(stripe.ost))) continue;
      co_return ErrnoError(
          EIO, absl::StrFormat("%s had data on OST %d, which was lost", fid_.ToString(), stripe.ost));
    }
    usable_ = mds_->osts.Usable();
    CO_ASSIGN_OR_RETURN(layout_, ChooseLayout(sequence));
    if (old_->inline_data) co_return true;
    objects_.emplace(mds_, sequence, StripeGroups(layout_));
    CO_RETURN_IF_ERROR(co_await objects_->Intend());
    co_return true;
  }

  // Bytes behind the file's end are cut off, so the MDT must not have forgotten where that is.
  Status CheckSizeKnown() {
    for (const Stripe& stripe : StripesOf(old_->layout)) {
      if (!mds_->writer_recovery.MayKnowMore(stripe.ost)) continue;
      return absl::UnavailableError(absl::StrFormat(
          "the MDT has lost power, and OST %d has not said yet where its files end", stripe.ost));
    }
    return OkStatus();
  }

  // `copy`: none of a file without objects.
  Task<StatusOr<Result>> Commit(ObjectCopy* copy) {
    uint64_t blocks = 0, size = 0;
    if (copy != nullptr) {
      CO_ASSIGN_OR_RETURN(const bool unchanged, co_await copy->Unchanged());
      if (!unchanged && !mds_->options.plant_blind_migration) co_return Result::kFileChanged;
      CO_ASSIGN_OR_RETURN(InodePtr now, mds_->tables->GetInode(fid_));
      size = now->size;
      CO_RETURN_IF_ERROR(CheckSizeKnown());
      CO_ASSIGN_OR_RETURN(blocks, co_await copy->CutTo(size));
    }
    FidLocks::Guard lock = co_await LockOne(*mds_, fid_);
    Transaction transaction(*mds_->tables);
    CO_ASSIGN_OR_RETURN(Inode * inode, transaction.Load(fid_));
    bool same = inode->layout == old_->layout && inode->inline_data == old_->inline_data;
    if (copy != nullptr)
      same = same && inode->size == size;  // who held the file's lock while writers stopped
    transaction.Dirty(inode);
    const bool leased = HasWriter(*mds_, 0, fid_) || !guard_.CoversAll(transaction);
    if (!same || (leased && !mds_->options.plant_unrecalled_migration)) co_return Result::kFileChanged;
    if (copy != nullptr) inode->blocks = blocks;
    inode->layout = layout_;
    RaiseGeneration(*mds_, &inode->layout);
    if (copy != nullptr) {
      objects_->AddTaking(&transaction.batch());
      AddLeft(fid_, old_->layout, &transaction.batch());
    }
    CO_RETURN_IF_ERROR(co_await mds_->tables->Commit(&transaction));
    if (copy == nullptr) co_return Result::kDone;
    objects_->Taken();
    Spawn(mds_->env.executor, DestroyLeft(mds_, fid_, old_->layout));
    // Before anybody writes by the new layout: else a loss of power could bring the old one back without
    // that.
    CO_RETURN_IF_ERROR(co_await mds_->tables->Sync());
    co_return Result::kDone;
  }

  const MdsPtr mds_;
  const Fid fid_;
  const MigrationWish& wish_;
  const std::shared_ptr<CopyProgress> progress_;
  const Hold hold_;
  ChangeGuard guard_;
  FidLocks::Guard writers_;
  InodePtr old_;
  std::shared_ptr<const cluster::UsableOsts> usable_;  // from which the OSTs were chosen
  Layout layout_;                                      // that the file gets
  std::optional<NewObjects> objects_;                  // none if it has no objects
};

Status WrittenAllTheTime(const Fid& fid) {
  return ErrnoError(EBUSY,
                    absl::StrFormat("%s is written all the time, and could not be copied in between: it "
                                    "stays where it is; try again later",
                                    fid.ToString()));
}

}  // namespace

Task<Status> Migrate(MdsPtr mds, Fid fid, MigrationWish wish, std::shared_ptr<CopyProgress> progress) {
  co_await mds->sessions.recovery().Wait();
  co_await mds->writer_recovery.sizes().Wait();
  std::vector<Fid> fids(1, fid);
  FidLocks::Guard alone = co_await mds->migration_locks.Lock(std::move(fids));
  for (const Hold hold : {Hold::kNothing, Hold::kLeases, Hold::kWriters, Hold::kWriters}) {
    if (mds->closed) co_return absl::UnavailableError("the metadata server is stopping");
    if (hold == Hold::kWriters && !wish.holds_writers) break;
    ++progress->attempts;
    MigrationAttempt attempt(mds, fid, wish, progress, hold);
    auto result = co_await attempt.Run();
    attempt.End();
    if (ToErrno(result.status()) == ENOENT) co_return OkStatus();  // it is gone
    if (absl::IsDeadlineExceeded(result.status())) co_return WrittenAllTheTime(fid);
    CO_RETURN_IF_ERROR(result.status());
    if (*result == MigrationAttempt::Result::kDone) co_return OkStatus();
  }
  co_return WrittenAllTheTime(fid);
}

}  // namespace nacre::mds
