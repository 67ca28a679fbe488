#include "server/metadata/truncation.h"

#include <sys/stat.h>

#include <cerrno>

#include "common/log.h"
#include "rpc/convert.h"
#include "server/metadata/object_io.h"
#include "server/metadata/placement.h"
#include "server/metadata/recall.h"

namespace nacre::mds {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(100);
constexpr Duration kLongestPause = std::chrono::seconds(30);
constexpr Duration kAwayPause = std::chrono::milliseconds(500);  // between two looks at an OST that is away
constexpr Duration kTellingPause = std::chrono::seconds(3);      // comes after some seconds of attempts

TruncateRecord MakeRecord(const Op& op, const Inode& inode, uint64_t size) {
  TruncateRecord record;
  record.size = size;
  record.generation = inode.layout.generation;
  record.object_sequence = inode.layout.object_sequence;
  record.session = op.session->id;
  record.sequence = op.request.sequence();
  return record;
}

bool AppliesTo(const TruncateRecord& record, const Inode& inode) {
  return S_ISREG(inode.mode) && !inode.inline_data && inode.layout.generation == record.generation &&
         inode.layout.object_sequence == record.object_sequence;
}

// Takes over the mutation of the session that has come back, or has yet to: repeats wait for its end. Null if
// nobody can ask for the reply any more.
SessionPtr TakeOverMutation(Mds& mds, const TruncateRecord& record) {
  SessionPtr session = mds.sessions.Find(record.session);
  if (session == nullptr || record.sequence == 0) return nullptr;
  auto begun = session->BeginMutation(record.sequence, /*low_water=*/0);
  return begun.answer.has_value() || begun.wait.has_value() ? nullptr : session;
}

}  // namespace

Task<FidLocks::Guard> LockQuiet(Mds& mds, Fid fid) {
  {
    FidLocks::Guard guard = co_await LockOne(mds, fid);
    if (!mds.data_locks.IsHeld(fid)) co_return guard;
  }
  // The next holder of the data lock waits for the file's lock, which we have by then. (Several that wait
  // here must not look for each other's turn again and again.)
  std::vector<Fid> fids(1, fid);
  FidLocks::Guard over = co_await mds.data_locks.Lock(std::move(fids));
  FidLocks::Guard guard = co_await LockOne(mds, fid);
  co_return guard;
}

Task<StatusOr<LockedFile>> LockFile(Mds& mds, Fid fid, bool may_empty, Transaction* transaction) {
  LockedFile file;
  if (may_empty) {
    CO_ASSIGN_OR_RETURN(file.object_sequence, co_await mds.ids.NextObjectSequence());
  }
  file.guard = co_await LockOne(mds, fid);
  CO_ASSIGN_OR_RETURN(file.inode, transaction->Load(fid));
  co_return file;
}

Status TruncateToZero(const Op& op, Transaction* transaction, Inode* inode, uint64_t object_sequence) {
  Mds& mds = *op.mds;
  const bool becomes_inline = mds.options.inline_limit > 0;
  Layout layout = inode->layout;
  if (!becomes_inline) {
    const cluster::UsableOsts& osts = op.Usable();
    if (!IsPlaceable(mds, layout)) {
      ASSIGN_OR_RETURN(layout, PlaceAnew(mds, osts, layout, object_sequence));
    }
  }
  transaction->Dirty(inode);
  QueueDestroy(*inode, &transaction->batch());
  if (!inode->inline_data) {
    transaction->batch().Erase(FidKey(Table::kTruncate, inode->fid));
    RETURN_IF_ERROR(DropTail(mds, inode->fid, &transaction->batch()));
  }
  if (inode->inline_data && inode->size > 0) transaction->batch().Erase(FidKey(Table::kBody, inode->fid));
  inode->size = inode->blocks = 0;
  inode->inline_data = becomes_inline;
  inode->layout = std::move(layout);
  inode->layout.object_sequence = object_sequence;
  RaiseGeneration(mds, &inode->layout);
  return OkStatus();
}

bool NeedsCut(const Inode& inode, uint64_t size) {
  return !inode.inline_data && size > 0 && size < inode.size;
}

Truncation::Truncation(const Op& op, const Inode& inode, uint64_t size, FidLocks::Guard data)
    : mds_(op.mds),
      fid_(inode.fid),
      layout_(inode.layout),
      record_(MakeRecord(op, inode, size)),
      data_(std::move(data)),
      session_(op.session),
      resumed_(false) {}

Truncation::Truncation(MdsPtr mds, const Inode& inode, const TruncateRecord& record, FidLocks::Guard data)
    : mds_(std::move(mds)),
      fid_(inode.fid),
      layout_(inode.layout),
      record_(record),
      data_(std::move(data)),
      session_(TakeOverMutation(*mds_, record)),
      resumed_(true) {}

void Truncation::AddIntent(KvBatch* batch) const {
  batch->Put(FidKey(Table::kTruncate, fid_), EncodeTruncate(record_));
}

Task<Reply> Truncation::Complete() {
  const std::shared_ptr<Truncation> self = shared_from_this();
  Spawn(mds_->env.executor, Work(self));
  co_return co_await self->outcome_.Wait();
}

void Truncation::CompleteAfterRestart() { Spawn(mds_->env.executor, Work(shared_from_this())); }

Task<void> Truncation::Work(std::shared_ptr<Truncation> self) {
  co_await self->MakeDurable();
  const uint64_t blocks = co_await self->CutAll();
  co_await self->Finish(blocks);
}

bool Truncation::IsOver() const {
  if (mds_->closed) return true;
  auto inode = mds_->tables->GetInode(fid_);
  return absl::IsNotFound(inode.status()) || (inode.ok() && !AppliesTo(record_, **inode));
}

// The next attempt comes after a pause, which grows. An OST that goes on answering with an error is told to
// whoever waits for the reply: not at its first error, for who has an error believes that nothing is done any
// more. One that does not answer is waited for.
Task<void> Truncation::WaitAfter(Status failure, Duration* pause) {
  if (mds_->closed) co_return;
  const bool first = *pause == kFirstPause;
  Log(first ? LogLevel::kWarning : LogLevel::kDebug, "truncating %s to %d: %s; trying again", fid_.ToString(),
      record_.size, std::string(failure.message()));
  if (!IsRetryable(failure) && *pause >= kTellingPause && outcome_.Set(failure)) {
    mds_->NoteProblem(
        absl::StrFormat("%s is being truncated to %d bytes, which takes until this is mended: %s",
                        fid_.ToString(), record_.size, failure.message()));
  }
  co_await mds_->env.clock.Sleep(*pause);
  *pause = std::min(2 * *pause, kLongestPause);
}

// The same, but no longer than until an OST that is away has come back: who wants the file by then waits for
// its client, and that for us.
Task<void> Truncation::WaitAfter(Status failure, OstIndex ost, Duration* pause) {
  if (!mds_->osts.IsDown(ost)) co_return co_await WaitAfter(std::move(failure), pause);
  while (!IsOver() && mds_->osts.IsDown(ost)) co_await mds_->env.clock.Sleep(kAwayPause);
}

Task<void> Truncation::MakeDurable() {
  Duration pause = kFirstPause;
  while (!mds_->closed) {
    Status synced = co_await mds_->tables->Sync();
    if (synced.ok()) co_return;
    co_await WaitAfter(std::move(synced), &pause);
  }
}

Task<uint64_t> Truncation::CutUntilDone(std::shared_ptr<Truncation> self, Stripe stripe) {
  const uint64_t size = ObjectSizeFor(self->layout_, stripe.object.stripe, self->record_.size);
  for (Duration pause = kFirstPause; !self->IsOver();) {
    if (cluster::IsGone(self->mds_->osts.UseOf(stripe.ost))) co_return 0;  // with the OST
    auto blocks = co_await CutObject(self->mds_, stripe, size);
    if (blocks.ok()) co_return *blocks;
    co_await self->WaitAfter(blocks.status(), stripe.ost, &pause);
  }
  co_return 0;
}

// The blocks that are left.
Task<uint64_t> Truncation::CutAll() {
  std::vector<Task<uint64_t>> tasks;
  for (const Stripe& stripe : StripesOf(layout_)) tasks.push_back(CutUntilDone(shared_from_this(), stripe));
  uint64_t left = 0;
  for (uint64_t blocks : co_await WhenAll(std::move(tasks))) left += blocks;
  co_return left;
}

// NOT_FOUND if the file is gone. A file that has another layout by now has been emptied after this truncation
// was decided: then nothing but the reply is committed.
Task<Status> Truncation::Commit(uint64_t blocks, proto::MetadataReply* reply) {
  ChangeGuard change(mds_, session_ == nullptr ? 0 : session_->id, ChangeGuard::For::kServer);
  if (auto now = mds_->tables->GetInode(fid_); now.ok()) {
    std::vector<Touched> touched(1, {CoveringDirectory(**now), fid_});
    CO_RETURN_IF_ERROR(co_await change.Cover(touched));
  }
  FidLocks::Guard guard = co_await LockOne(*mds_, fid_);
  Transaction transaction(*mds_->tables);
  CO_ASSIGN_OR_RETURN(Inode * inode, transaction.Load(fid_));
  if (AppliesTo(record_, *inode)) {
    transaction.Dirty(inode);
    inode->size = record_.size;
    inode->blocks = blocks;
    RaiseGeneration(*mds_, &inode->layout);
    transaction.batch().Erase(FidKey(Table::kTruncate, fid_));
  }
  if (!change.CoversAll(transaction)) co_return absl::AbortedError("the file was moved meanwhile");
  *reply->mutable_attr()->mutable_attr() = ToProto(*inode);
  *reply->mutable_attr()->mutable_layout() = ToProto(inode->layout);
  const bool answered = outcome_.IsSet();  // with an error, which stays the answer
  if (session_ != nullptr && record_.sequence != 0 && !answered && !session_->ended())
    session_->Record(record_.sequence, *reply, &transaction.batch());
  co_return co_await mds_->tables->Commit(&transaction);
}

Task<void> Truncation::Finish(uint64_t blocks) {
  proto::MetadataReply reply;
  Status done = absl::UnavailableError("the metadata server is stopping");
  for (Duration pause = kFirstPause; !mds_->closed;) {
    reply.Clear();
    done = co_await Commit(blocks, &reply);
    if (done.ok()) done = co_await mds_->tables->Sync();
    if (done.ok() || absl::IsNotFound(done)) break;
    co_await WaitAfter(done, &pause);
  }
  data_.Release();
  if (mds_->closed && !done.ok()) {
    outcome_.Set(done);
    co_return;
  }
  if (!done.ok()) *reply.mutable_status() = nacre::ToProto(done);
  Reply result = reply;
  if (!done.ok()) result = done;
  const bool somebody_waits = outcome_.Set(std::move(result)) && !resumed_;
  if (resumed_ && session_ != nullptr) session_->EndMutation(record_.sequence, reply);
  if (!somebody_waits) co_await RecallPages(std::move(reply));
}

// Other clients' kernels forget what was cut off. Where a request waits, its handler does this before it
// answers.
Task<void> Truncation::RecallPages(proto::MetadataReply reply) {
  proto::MetadataRequest request;
  *request.mutable_setattr()->mutable_fid() = nacre::ToProto(fid_);
  request.mutable_setattr()->set_set_size(true);
  if (!NeedsRecall(*mds_, record_.session, request, reply)) co_return;
  Status recalled = co_await RecallRead(mds_, record_.session, request, reply);
  if (!recalled.ok() && !mds_->closed)
    LogError("pages of %s: %s", fid_.ToString(), std::string(recalled.message()));
}

namespace {

// Goes on with it in the background; the record of one that is void goes.
Task<Status> Resume(MdsPtr mds, const KvEntry& entry, KvBatch* batch) {
  ByteReader key(std::string_view(entry.key).substr(1));
  const Fid fid = key.ReadFid();
  CO_ASSIGN_OR_RETURN(TruncateRecord record, ParseTruncate(entry.value));
  auto inode = mds->tables->GetInode(fid);
  if (!inode.ok() && !absl::IsNotFound(inode.status())) co_return inode.status();
  if (!inode.ok() || !AppliesTo(record, **inode)) {
    batch->Erase(entry.key);
    co_return OkStatus();
  }
  std::vector<Fid> fids(1, fid);
  FidLocks::Guard data = co_await mds->data_locks.Lock(std::move(fids));
  std::make_shared<Truncation>(mds, **inode, record, std::move(data))->CompleteAfterRestart();
  co_return OkStatus();
}

}  // namespace

Task<Status> ResumeTruncations(MdsPtr mds) {
  std::string what = "the interrupted truncation of";
  SettleRecord resume = [mds](const KvEntry& entry, KvBatch* batch) { return Resume(mds, entry, batch); };
  co_return co_await SettleRecords(*mds->tables, Table::kTruncate, std::move(what), std::move(resume));
}

}  // namespace nacre::mds
