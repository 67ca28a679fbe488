#include "server/metadata/move_out.h"

#include <cerrno>
#include <optional>

#include "common/log.h"
#include "server/metadata/new_objects.h"
#include "server/metadata/object_io.h"
#include "server/metadata/placement.h"

namespace nacre::mds {
namespace {

constexpr Duration kMoveOutPause = std::chrono::seconds(1);

// One attempt: Run, then End.
class MoveOutAttempt {
 public:
  enum class Result { kDone, kFileChanged };

  MoveOutAttempt(const Op& op, Fid fid)
      : mds_(op.mds), session_(op.session), change_guard_(op.guard), fid_(fid) {}

  Task<StatusOr<Result>> Run() {
    CO_ASSIGN_OR_RETURN(uint64_t sequence, co_await mds_->ids.NextObjectSequence());
    CO_ASSIGN_OR_RETURN(bool inline_data, co_await Intend(sequence));
    if (!inline_data) co_return Result::kDone;
    uint64_t blocks = 0;
    if (!data_.empty()) {
      CO_ASSIGN_OR_RETURN(blocks, co_await Write());
    }
    co_return co_await Commit(blocks);
  }

  // Withdraws what was intended and not committed, in the background.
  void End() {
    if (objects_) objects_->Withdraw();
  }

 private:
  // Another session may rely on the file as it is when this one has been evicted.
  Status CheckSession() const {
    if (!session_->ended()) return OkStatus();
    return ErrnoError(ESTALE, absl::StrFormat("session %d has ended", session_->id));
  }

  // Reads the file and records which object its data goes to. False: it has objects already. The objects are
  // new ones, also of an empty file: those that its layout names may hold what was written before a loss of
  // power took its last move-out back. An empty file needs no record, since nothing is written.
  Task<StatusOr<bool>> Intend(uint64_t sequence) {
    FidLocks::Guard guard = co_await LockOne(*mds_, fid_);
    CO_ASSIGN_OR_RETURN(InodePtr inode, mds_->tables->GetInode(fid_));
    if (!inode->inline_data) co_return false;
    layout_ = inode->layout;
    change_ = inode->change;
    proto::Layout unused;
    CO_RETURN_IF_ERROR(FillLayout(*mds_, inode, &unused, &data_));
    usable_ = mds_->osts.Usable();
    if (!IsPlaceable(*mds_, layout_)) {
      CO_ASSIGN_OR_RETURN(layout_, PlaceAnew(*mds_, *usable_, layout_, sequence));
    }
    layout_.object_sequence = sequence;
    if (data_.empty()) co_return true;
    const std::vector<Stripe> stripes = StripesOf(layout_);
    if (stripes.empty()) co_return ErrnoError(EIO, absl::StrCat(fid_.ToString(), " has an empty layout"));
    std::vector<uint32_t> first(1, stripes[0].ost);
    objects_.emplace(mds_, sequence, std::move(first));
    CO_RETURN_IF_ERROR(co_await objects_->Intend());
    co_return true;
  }

  // Until the OST has the bytes, or they are not wanted any more.
  Task<StatusOr<uint64_t>> Write() {
    while (true) {
      auto blocks = co_await WriteFirstBytes(mds_, fid_, layout_, data_);
      if (blocks.ok() || !IsRetryable(blocks.status()) || mds_->closed) co_return blocks;
      CO_RETURN_IF_ERROR(CheckSession());
      auto inode = mds_->tables->GetInode(fid_);
      CO_RETURN_IF_ERROR(inode.status());
      if ((*inode)->change != change_) co_return 0;  // Commit sees it, too
      co_await mds_->env.clock.Sleep(kMoveOutPause);
    }
  }

  Task<StatusOr<Result>> Commit(uint64_t blocks) {
    FidLocks::Guard guard = co_await LockOne(*mds_, fid_);
    CO_RETURN_IF_ERROR(CheckSession());
    Transaction transaction(*mds_->tables);
    CO_ASSIGN_OR_RETURN(Inode * inode, transaction.Load(fid_));
    if (inode->change != change_) co_return Result::kFileChanged;
    transaction.Dirty(inode);
    if (!change_guard_->CoversAll(transaction))
      co_return absl::AbortedError("the file lies in a directory that is not covered");
    inode->inline_data = false;
    inode->blocks = blocks;
    inode->layout = layout_;
    RaiseGeneration(*mds_, &inode->layout);
    transaction.batch().Erase(FidKey(Table::kBody, fid_));
    // A client holds bytes back already of a file that it has made (KeepPromise): it asks for their place
    // now.
    if (data_.empty()) transaction.batch().UseReserve();
    if (objects_) objects_->AddTaking(&transaction.batch());
    CO_RETURN_IF_ERROR(co_await mds_->tables->Commit(&transaction));
    change_guard_->Unpin();
    if (objects_) objects_->Taken();
    co_return Result::kDone;
  }

  const MdsPtr mds_;
  const SessionPtr session_;
  ChangeGuard* const change_guard_;
  const Fid fid_;
  std::shared_ptr<const cluster::UsableOsts> usable_;  // from which its OSTs were chosen
  Layout layout_;                                      // that the file gets
  std::string data_;
  uint64_t change_ = 0;                // of the inode that was read
  std::optional<NewObjects> objects_;  // none of an empty file
};

}  // namespace

Task<Status> MoveOutLocked(const Op& op, Fid fid) {
  while (true) {
    MoveOutAttempt attempt(op, fid);
    auto result = co_await attempt.Run();
    attempt.End();
    CO_RETURN_IF_ERROR(result.status());
    if (*result == MoveOutAttempt::Result::kDone) co_return OkStatus();
  }
}

}  // namespace nacre::mds
