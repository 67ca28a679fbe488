#include "server/metadata/writer_recovery.h"

#include <sys/stat.h>

#include <algorithm>

#include "common/log.h"
#include "rpc/convert.h"
#include "server/metadata/layout.h"
#include "server/metadata/mds.h"
#include "server/metadata/recall.h"

namespace nacre::mds {
namespace {

constexpr Duration kPause = std::chrono::seconds(5);
constexpr Duration kPatience = std::chrono::seconds(5);  // of whoever waits for a pass
constexpr uint32_t kNotesAtOnce = 1024;
constexpr Duration kLossPatience = std::chrono::seconds(10);  // of everybody, after a loss of power
constexpr Duration kLossPause = std::chrono::milliseconds(100);

enum class Verdict {
  kSettled,  // the MDT knows it, or there is nothing to know
  kExtend,   // nobody will tell it any more, and the file is shorter than this object says
  kWait,     // the session's client may still tell it
};

struct Judged {
  Verdict verdict = Verdict::kSettled;
  Fid fid;
};

// One look at the notes of an OST.
struct Pass {
  RecoveryPass how = RecoveryPass::kBackground;
  bool after_loss = false;  // clients may have told already what the MDT does not know
};

// `after_loss`: the client may have told it already.
StatusOr<Judged> Judge(Mds& mds, const proto::GrownObject& note, bool after_loss) {
  Judged judged;
  judged.fid = FromProto(note.parent());
  if (!note.exists()) return judged;
  SessionPtr session = mds.sessions.Find(note.session());
  const bool ended = session == nullptr || session->ended();
  const Verdict unless_ended = ended ? Verdict::kSettled : Verdict::kWait;
  auto inode = mds.tables->GetInode(judged.fid);
  if (absl::IsNotFound(inode.status())) {
    judged.verdict = unless_ended;
    return judged;
  }
  RETURN_IF_ERROR(inode.status());
  const ObjectId object = FromProto(note.object());
  const bool current = S_ISREG((*inode)->mode) && !(*inode)->inline_data &&
                       (*inode)->layout.object_sequence == object.sequence;
  if (!current) {  // truncated since: these are leftovers
    judged.verdict = unless_ended;
    return judged;
  }
  const uint64_t end = FileSizeFor((*inode)->layout, object.stripe, note.size());
  if (end > (*inode)->size) judged.verdict = ended || after_loss ? Verdict::kExtend : Verdict::kWait;
  return judged;
}

// Counts the blocks of the objects, if every OST of the file answers at once.
Task<StatusOr<uint64_t>> CountBlocks(MdsPtr mds, Layout layout) {
  uint64_t blocks = 0;
  uint32_t stripe = 0;
  for (uint32_t ost : StripeGroups(layout)) {
    if (!mds->osts.IsUp(ost)) co_return absl::UnavailableError("an OST of the file is down");
    proto::ObjectRequest request;
    request.set_ost(ost);
    *request.mutable_stat()->mutable_object() = ToProto(ObjectId{layout.object_sequence, stripe++});
    CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await mds->osts.CallShortly(std::move(request)));
    if (reply.stat().exists()) blocks += reply.stat().blocks();
  }
  co_return blocks;
}

// Where the file ends as this object says now, by which a truncation may have gone since its note was listed.
Task<StatusOr<uint64_t>> EndNow(MdsPtr mds, OstIndex ost, Layout layout, ObjectId object) {
  proto::ObjectRequest request;
  request.set_ost(ost);
  *request.mutable_stat()->mutable_object() = ToProto(object);
  CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await mds->osts.CallShortly(std::move(request)));
  co_return reply.stat().exists() ? FileSizeFor(layout, object.stripe, reply.stat().size()) : 0;
}

enum class Extended {
  kDone,
  kRaced,   // somebody is changing the file
  kLeased,  // and the holder was not to be asked
};

Task<StatusOr<Extended>> ExtendOnce(MdsPtr mds, OstIndex ost, Fid fid, ObjectId object, bool may_recall) {
  auto peek = mds->tables->GetInode(fid);
  if (absl::IsNotFound(peek.status())) co_return Extended::kDone;
  CO_RETURN_IF_ERROR(peek.status());
  const uint64_t change = (*peek)->change;
  Layout layout = (*peek)->layout;
  std::vector<Touched> touched(1, {CoveringDirectory(**peek), fid});
  CO_ASSIGN_OR_RETURN(const uint64_t end, co_await EndNow(mds, ost, layout, object));
  auto blocks = co_await CountBlocks(mds, std::move(layout));
  ChangeGuard guard(mds, 0, ChangeGuard::For::kSizeLeftBehind);
  if (mds->writer_recovery.sizes().closed()) {
    // A client that holds a lease has heard of the loss of power and trusts nothing. Its changes, which come
    // before the release, wait for the sizes.
    (void)guard.TryCover(touched);
  } else if (may_recall) {
    CO_RETURN_IF_ERROR(co_await guard.Cover(touched));
  } else if (!guard.TryCover(touched)) {
    co_return Extended::kLeased;
  }
  FidLocks::Guard lock = co_await LockOne(*mds, fid);
  if (mds->data_locks.IsHeld(fid)) co_return Extended::kRaced;  // it may be waiting for an OST
  Transaction transaction(*mds->tables);
  auto inode = transaction.Load(fid);
  if (absl::IsNotFound(inode.status())) co_return Extended::kDone;
  CO_RETURN_IF_ERROR(inode.status());
  const bool current = !(*inode)->inline_data && (*inode)->layout.object_sequence == object.sequence;
  if (!current || end <= (*inode)->size) co_return Extended::kDone;
  if ((*inode)->change != change) co_return Extended::kRaced;
  LogInfo("%s reaches to %d by its objects, not to %d", fid.ToString(), end, (*inode)->size);
  transaction.Dirty(*inode);
  (*inode)->size = end;
  if (blocks.ok()) (*inode)->blocks = *blocks;
  TouchChanged(*inode, mds->env.clock.Wall());
  if (!guard.CoversAll(transaction)) co_return Extended::kRaced;  // it was moved meanwhile
  CO_RETURN_IF_ERROR(co_await mds->tables->Commit(&transaction));
  for (const LeaseGrant& grant : mds->leases.Conflicts(fid, 0, proto::LEASE_WRITE)) AskBack(*mds, grant);
  co_return Extended::kDone;
}

// Extends a file when no client relies on its size. A holder of a lease of the file's directory does, and
// gives it up first. That is waited for in the background only (`may_recall`): the holder may need an
// eviction to be over that waits for this pass, for recovery ends with it and the holder's own changes wait
// for that; or it may need the OST that comes back. Several passes may come to the stripes of one file at
// once.
Task<StatusOr<bool>> Extend(MdsPtr mds, OstIndex ost, Fid fid, ObjectId object, bool may_recall) {
  constexpr int kRaces = 8;
  for (int attempt = 1;; ++attempt) {
    CO_ASSIGN_OR_RETURN(const Extended extended, co_await ExtendOnce(mds, ost, fid, object, may_recall));
    if (extended != Extended::kRaced || attempt == kRaces) co_return extended == Extended::kDone;
  }
}

enum class Outcome {
  kSettled,  // the note may go
  kStays,    // it is the client's to tell
  kLater,    // the file is too short still
};

Task<StatusOr<Outcome>> Handle(MdsPtr mds, OstIndex ost, proto::GrownObject note, Pass* pass) {
  CO_ASSIGN_OR_RETURN(Judged judged, Judge(*mds, note, pass->after_loss));
  if (judged.verdict == Verdict::kSettled) co_return Outcome::kSettled;
  if (judged.verdict == Verdict::kWait) co_return Outcome::kStays;
  const bool may_recall = pass->how == RecoveryPass::kBackground;
  auto extended = co_await Extend(mds, ost, judged.fid, FromProto(note.object()), may_recall);
  CO_RETURN_IF_ERROR(extended.status());
  co_return *extended ? Outcome::kSettled : Outcome::kLater;
}

// The sizes are on stable storage first: a loss of power must not take one back whose note is gone.
Task<Status> Settle(MdsPtr mds, proto::ObjectRequest settle) {
  if (settle.settle_grown().objects().empty()) co_return OkStatus();
  CO_RETURN_IF_ERROR(co_await mds->tables->Sync());
  auto reply = co_await mds->osts.CallShortly(std::move(settle));
  co_return reply.status();
}

}  // namespace

Task<Status> WriterRecovery::Recover(std::shared_ptr<Mds> mds, OstIndex ost, SessionId session,
                                     RecoveryPass how) {
  const Duration begin = mds->env.clock.Now();
  proto::ObjectRequest request;
  request.set_ost(ost);
  request.mutable_list_grown()->set_session(session);
  request.mutable_list_grown()->set_limit(kNotesAtOnce);
  // Only of an OST that is up: else the blocks of its files could not be counted.
  Pass pass{how};
  pass.after_loss = session == 0 && mds->osts.IsUp(ost) && mds->writer_recovery.Unasked().contains(ost);
  bool whole = true;
  for (bool end = false; !end && !mds->closed;) {
    CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await mds->osts.CallShortly(request));
    const proto::ListGrownReply& notes = reply.list_grown();
    end = notes.end() || notes.objects().empty();
    proto::ObjectRequest settle;
    settle.set_ost(ost);
    for (const proto::GrownObject& note : notes.objects()) {
      if (mds->closed || mds->env.clock.Now() - begin > kPatience) {
        end = true;  // the next pass begins with what is left
        whole = false;
        break;
      }
      *request.mutable_list_grown()->mutable_after() = note;
      auto handled = co_await Handle(mds, ost, note, &pass);
      if (!handled.ok()) {  // must not keep the others waiting
        LogWarning("the size of %s could not be looked at: %s", FromProto(note.parent()).ToString(),
                   std::string(handled.status().message()));
        whole = whole && absl::IsDataLoss(handled.status());  // which no later pass can mend
        continue;
      }
      if (*handled == Outcome::kSettled) *settle.mutable_settle_grown()->add_objects() = note;
      whole = whole && *handled != Outcome::kLater;
    }
    CO_RETURN_IF_ERROR(co_await Settle(mds, std::move(settle)));
  }
  if (pass.after_loss && whole && !mds->closed)
    CO_RETURN_IF_ERROR(co_await mds->writer_recovery.NoteAsked(mds, ost));
  co_return OkStatus();
}

// --- after a loss of power ---

Status WriterRecovery::Load(Mds& mds) {
  std::lock_guard lock(mutex_);
  for (OstIndex ost : mds.osts.Known()) {
    uint64_t asked = 0;
    auto stored = mds.tables->Get(SizesKnownKey(ost));
    if (!stored.ok() && !absl::IsNotFound(stored.status())) return stored.status();
    if (stored.ok()) asked = ParseNumber(*stored).value_or(0);
    if (asked != mds.losses) unasked_.insert(ost);
  }
  if (!unasked_.empty()) sizes_.Close();
  return OkStatus();
}

void WriterRecovery::Forget(OstIndex ost) {
  std::lock_guard lock(mutex_);
  unasked_.erase(ost);
}

bool WriterRecovery::MayKnowMore(OstIndex ost) { return Unasked().contains(ost); }

std::set<OstIndex> WriterRecovery::Unasked() {
  std::lock_guard lock(mutex_);
  return unasked_;
}

// In the store this is behind the sizes, so that no loss of power leaves it without them.
Task<Status> WriterRecovery::NoteAsked(MdsPtr mds, OstIndex ost) {
  KvBatch batch;
  batch.Put(SizesKnownKey(ost), EncodeNumber(mds->losses));
  CO_RETURN_IF_ERROR(co_await mds->tables->CommitBatch(std::move(batch)));
  std::lock_guard lock(mutex_);
  unasked_.erase(ost);
  co_return OkStatus();
}

Task<void> WriterRecovery::RunAfterLoss(MdsPtr mds) {
  for (Duration pause = kLossPause; !mds->closed;) {
    const std::set<OstIndex> unasked = Unasked();
    if (unasked.empty()) break;
    const Duration waited = mds->env.clock.Now() - mds->started;
    const bool all_up =
        std::all_of(unasked.begin(), unasked.end(), [&](OstIndex ost) { return mds->osts.IsUp(ost); });
    // Together if possible: a file's blocks are counted at all of its OSTs.
    if (all_up || waited >= kLossPatience / 2) {
      for (OstIndex ost : unasked) StartPass(mds, ost);
    }
    if (waited >= kLossPatience) {
      sizes_.Open();
      pause = kPause;
    }
    co_await mds->env.clock.Sleep(pause);
  }
  sizes_.Open();
}

// --- in the background ---

bool WriterRecovery::Begin(OstIndex ost) {
  std::lock_guard lock(mutex_);
  return busy_.insert(ost).second;
}

void WriterRecovery::End(OstIndex ost) {
  std::lock_guard lock(mutex_);
  busy_.erase(ost);
}

Task<void> WriterRecovery::Run(std::shared_ptr<Mds> mds) {
  while (!mds->closed) {
    co_await mds->env.clock.Sleep(kPause);
    if (mds->closed) co_return;
    for (OstIndex ost : mds->osts.Known()) StartPass(mds, ost);
  }
}

// Unless the OST is not up, or has one.
void WriterRecovery::StartPass(const MdsPtr& mds, OstIndex ost) {
  if (!mds->osts.IsUp(ost) || !Begin(ost)) return;
  Spawn(mds->env.executor, [](MdsPtr mds, OstIndex ost) -> Task<void> {
    Status status = co_await mds->writer_recovery.Recover(mds, ost, 0, RecoveryPass::kBackground);
    if (!status.ok() && !mds->closed)
      LogWarning("sizes of files on OST %d: %s", ost, std::string(status.message()));
    mds->writer_recovery.End(ost);
  }(mds, ost));
}

}  // namespace nacre::mds
