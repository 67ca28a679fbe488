#include "server/object/filling.h"

#include <algorithm>
#include <cerrno>

#include "common/log.h"
#include "common/metrics.h"
#include "rpc/convert.h"
#include "server/object/change_proto.h"
#include "server/object/server_core.h"

namespace nacre::ost {
namespace {

constexpr uint64_t kCopyBlocks = 256;  // at a time: 1 MiB
constexpr size_t kListedAtOnce = 256;
constexpr size_t kTaughtAtOnce = 2000;

void SetVersion(const ObjectRecord& record, proto::ApplyChange* apply) {
  *apply->mutable_after() = ToProto(record.full_version());
  apply->set_size(record.size);
  *apply->mutable_parent() = ToProto(record.parent);
}

void AddHole(uint64_t first, uint64_t count, proto::ApplyChange* apply) {
  AddEdits(std::vector<ExtentEdit>(1, ExtentEdit{first, count}), apply);
}

}  // namespace

Task<void> Filling::Run(std::shared_ptr<ServerCore> core, std::shared_ptr<Filling> filling) {
  ServerCore::Running running(core);
  const OstIndex ost = filling->store_->superblock().index;
  LogInfo("OST %d: member %s at %s is being filled", ost, filling->member_.uuid(),
          filling->member_.address());
  filling->began_ = core->environment.clock.Now();
  for (;;) {
    Status status = co_await filling->Fill();
    if (status.ok()) status = co_await filling->Join();
    if (status.ok()) {
      LogInfo("OST %d: member %s is in sync; %d bytes were copied", ost, filling->member_.uuid(),
              filling->copied_bytes_);
      co_return;
    }
    if (!filling->chain_->Joins(*filling)) co_return;
    co_await filling->chain_->GiveUp(filling->link_->uuid(), filling->chain_->epoch(), status);
    // It joins still if it was only told of the next epoch before this head was.
    if (!filling->chain_->Joins(*filling)) co_return;
  }
}

// No change is under way while the chain gets its new member. One that began before would have to reach it
// from this head, which hands on to it directly in this epoch and by way of the members between in the next:
// those that have had the change would not hand it on again. So changes wait here for the MGS, for as long as
// this is the head and does not know which of the two epochs counts.
Task<Status> Filling::Join() {
  const std::vector<AsyncMutex::Guard> held = co_await store_->journal().HoldAllChanges();
  co_return co_await chain_->Joined(*this);
}

// The answers come first: from then on each that is given here is handed on. The member's store is synced
// before it counts.
Task<Status> Filling::Fill() {
  CO_RETURN_IF_ERROR(co_await Begin());
  CO_RETURN_IF_ERROR(co_await TeachSessions());
  CO_RETURN_IF_ERROR(co_await Walk());
  CO_RETURN_IF_ERROR(co_await TeachGrowth());
  proto::ObjectRequest losses;
  losses.mutable_learn()->set_losses(store_->losses());
  auto told = co_await Send(std::move(losses));
  CO_RETURN_IF_ERROR(told.status());
  proto::ObjectRequest sync;
  sync.mutable_sync();
  auto synced = co_await Send(std::move(sync));
  co_return synced.status();
}

// The member may have carried out what this store never has: it was handed on, and the one who did so was not
// the head any more when it wanted to go on. The walk takes such a change back, so its answer has to go as
// well, or the member would answer a repeat without doing it. No change is under way here meanwhile: one that
// began before was not handed on to this member, and one that begins behind this is, with its answer.
Task<Status> Filling::Begin() {
  proto::ObjectRequest first;
  first.mutable_learn();
  auto reached = co_await Send(std::move(first));  // else all changes might wait for it
  CO_RETURN_IF_ERROR(reached.status());
  const std::vector<AsyncMutex::Guard> held = co_await store_->journal().HoldAllChanges();
  proto::ObjectRequest request;
  request.mutable_learn()->set_begin(true);
  auto begun = co_await Send(std::move(request));
  CO_RETURN_IF_ERROR(begun.status());
  takes_changes_ = true;
  co_return OkStatus();
}

Task<StatusOr<proto::ObjectReply>> Filling::Send(proto::ObjectRequest request,
                                                 std::vector<MemorySpan> memory) {
  for (;;) {
    const uint32_t epoch = chain_->epoch();
    if (!chain_->Joins(*this)) co_return ErrnoError(ECANCELED, "the member does not join any more");
    request.set_chain_epoch(epoch);
    const Duration timeout = request.has_sync() ? ChainLink::kSyncTimeout : ChainLink::kChangeTimeout;
    std::function<bool()> goes_on = [this, epoch] {
      return chain_->epoch() == epoch && chain_->Joins(*this);
    };
    auto reply = co_await link_->Call(request, memory, timeout, std::move(goes_on));
    // The chain may have changed about another member.
    if (reply.ok() || chain_->epoch() == epoch || !chain_->Joins(*this)) co_return reply;
  }
}

Task<Status> Filling::TeachSessions() {
  CO_ASSIGN_OR_RETURN(std::vector<SessionId> fences, sessions_->Fences());
  for (size_t at = 0; at < fences.size(); at += kTaughtAtOnce) {
    proto::ObjectRequest request;
    const size_t end = std::min(fences.size(), at + kTaughtAtOnce);
    for (size_t i = at; i < end; ++i) request.mutable_learn()->add_fenced(fences[i]);
    auto taught = co_await Send(std::move(request));
    CO_RETURN_IF_ERROR(taught.status());
  }
  CO_RETURN_IF_ERROR(co_await store_->Sync());  // brings answers to where they are read
  CO_ASSIGN_OR_RETURN(std::vector<SlotAnswer> answers, sessions_->StoredAnswers());
  for (size_t at = 0; at < answers.size(); at += kTaughtAtOnce) {
    proto::ObjectRequest request;
    const size_t end = std::min(answers.size(), at + kTaughtAtOnce);
    for (size_t i = at; i < end; ++i) {
      proto::KeptAnswer* answer = request.mutable_learn()->add_answers();
      answer->set_session(answers[i].slot.session);
      answer->set_sequence(answers[i].record.sequence);
      answer->set_low_water(answers[i].record.low_water);
      answer->set_delta(answers[i].record.delta);
    }
    auto taught = co_await Send(std::move(request));
    CO_RETURN_IF_ERROR(taught.status());
  }
  co_return OkStatus();
}

Task<Status> Filling::TeachGrowth() {
  std::optional<Growth> after;
  for (;;) {
    CO_ASSIGN_OR_RETURN(std::vector<ObjectStore::Grown> grown,
                        store_->ListGrown(/*session=*/0, after, kTaughtAtOnce));
    if (grown.empty()) co_return OkStatus();
    proto::ObjectRequest request;
    for (const ObjectStore::Grown& one : grown) {
      proto::GrownObject* out = request.mutable_learn()->add_grown();
      out->set_session(one.growth.session);
      *out->mutable_object() = ToProto(one.growth.object);
    }
    after = grown.back().growth;
    auto taught = co_await Send(std::move(request));
    CO_RETURN_IF_ERROR(taught.status());
  }
}

// --- the walk ---

Task<StatusOr<Filling::Listed>> Filling::ListThere(std::optional<ObjectId> after, bool* end) {
  proto::ObjectRequest request;
  request.mutable_list()->set_limit(kListedAtOnce);
  if (after) *request.mutable_list()->mutable_after() = ToProto(*after);
  CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await Send(std::move(request)));
  *end = reply.list().end();
  Listed listed(reply.list().objects().begin(), reply.list().objects().end());
  co_return listed;
}

Task<Status> Filling::Walk() {
  Listed there;
  bool there_ends = false, here_ends = false;
  std::optional<ObjectId> after_there, after_here;
  std::deque<ObjectId> here;
  for (;;) {
    if (there.empty() && !there_ends) {
      CO_ASSIGN_OR_RETURN(there, co_await ListThere(after_there, &there_ends));
      if (!there.empty()) after_there = FromProto(there.back().object());
      continue;
    }
    if (here.empty() && !here_ends) {
      CO_ASSIGN_OR_RETURN(std::vector<ObjectStore::Listed> page, store_->List(after_here, kListedAtOnce));
      for (const ObjectStore::Listed& one : page) here.push_back(one.id);
      here_ends = page.size() < kListedAtOnce;
      if (!here.empty()) after_here = here.back();
      continue;
    }
    if (here.empty() && there.empty()) break;
    const bool mine = !here.empty() && (there.empty() || here.front() <= FromProto(there.front().object()));
    const ObjectId id = mine ? here.front() : FromProto(there.front().object());
    std::optional<ObjectVersion> version;
    if (!there.empty() && FromProto(there.front().object()) == id) {
      version = FromProto(there.front().version());
      there.pop_front();
    }
    if (mine) here.pop_front();
    CO_RETURN_IF_ERROR(co_await Visit(id, version));
  }
  std::lock_guard lock(mutex_);
  passed_all_ = true;
  ahead_.clear();
  co_return OkStatus();
}

Task<Status> Filling::Visit(ObjectId id, std::optional<ObjectVersion> there) {
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectState> object, co_await BeginCopy(id, there));
  if (object == nullptr) co_return OkStatus();
  for (uint64_t at = 0;;) {
    CO_ASSIGN_OR_RETURN(std::optional<uint64_t> chunk, store_->NextChunk(id, at));
    if (!chunk) {
      CO_ASSIGN_OR_RETURN(const bool finished, co_await FinishCopy(object.get(), at));
      if (finished) co_return OkStatus();
      continue;
    }
    const uint64_t first = std::max(at, *chunk * kChunkBlocks);
    const uint64_t to = std::min(first + kCopyBlocks, kMaxObjectBlocks);
    Status copied = co_await CopyBlocks(object.get(), at, first, to, ObjectStore::BadBlocks::kRefused);
    if (ToErrno(copied) == EIO) {
      // A block is bad here, and the member itself may be the one that has it.
      const StatusOr<bool> mended = co_await store_->MendRange(id, first, to - first);
      if (mended.ok() && *mended) continue;
      if (!mended.ok() && ToErrno(mended.status()) != EIO) co_return mended.status();
      // Nobody has it. One block that is lost must not keep all others from having their copies.
      if (!mended.ok())
        copied = co_await CopyBlocks(object.get(), at, first, to, ObjectStore::BadBlocks::kTaken);
    }
    CO_RETURN_IF_ERROR(copied);
    at = to;
  }
}

Task<StatusOr<std::shared_ptr<ObjectState>>> Filling::BeginCopy(ObjectId id,
                                                                std::optional<ObjectVersion> there) {
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectState> object, store_->Acquire(id));
  AsyncMutex::Guard held = co_await store_->journal().HoldChanges(id);
  const std::optional<ObjectRecord> record = object->Record();
  if (record && there && core_->options.plant_epochless) there->epoch = record->group_generation;
  const bool same = record && there && record->full_version() == *there;
  const bool done = Follows(id) || (same && !chain_->Distrusts(member_.uuid(), id));
  if (!done && !record && there) CO_RETURN_IF_ERROR(co_await Remove(id));
  if (done || !record) {
    Pass(id);
    co_return nullptr;
  }
  std::lock_guard lock(mutex_);
  copying_ = id;
  copied_ = 0;
  co_return object;
}

// Copies the blocks [first, to) and the hole [from, first) before them. Nobody changes them meanwhile; who
// wants to waits for the member.
Task<Status> Filling::CopyBlocks(ObjectState* object, uint64_t from, uint64_t first, uint64_t to,
                                 ObjectStore::BadBlocks bad) {
  RangeLock::Guard locked = co_await object->locks.Lock(from, to, /*exclusive=*/false);
  const std::optional<ObjectRecord> record = object->Record();
  if (!record || Ahead(object->id)) co_return OkStatus();  // it has been destroyed, and perhaps made anew
  CO_ASSIGN_OR_RETURN(ObjectStore::Mapping map, store_->MapOf(object->id, first, to - first));
  proto::ObjectRequest request;
  proto::ApplyChange* apply = request.mutable_apply();
  *apply->mutable_object() = ToProto(object->id);
  *apply->mutable_parent() = ToProto(record->parent);
  apply->set_size(record->size);
  if (first > from) AddHole(from, first - from, apply);
  AddEdits(map.edits, apply);
  CO_ASSIGN_OR_RETURN(std::shared_ptr<BufferPool> buffers,
                      core_->chain_buffers.At(ChainStep::kOutOfHead, &core_->environment.transport));
  CO_ASSIGN_OR_RETURN(ObjectStore::Gathered gathered, co_await store_->Gather(map.edits, buffers, bad));
  apply->mutable_bad()->Assign(gathered.bad.begin(), gathered.bad.end());
  const uint64_t bytes = uint64_t(apply->crc_size()) * kBlockSize;
  auto sent = co_await Send(std::move(request), gathered.memory);
  CO_RETURN_IF_ERROR(sent.status());
  gathered = {};
  {
    AsyncMutex::Guard held = co_await store_->journal().HoldChanges(object->id);
    std::lock_guard lock(mutex_);
    copied_ = to;
    copied_bytes_ += bytes;
  }
  locked.Release();
  co_return co_await KeepToRate(bytes);
}

// False: there are blocks behind those that have been copied.
Task<StatusOr<bool>> Filling::FinishCopy(ObjectState* object, uint64_t copied) {
  AsyncMutex::Guard held = co_await store_->journal().HoldChanges(object->id);
  const std::optional<ObjectRecord> record = object->Record();
  if (record && !Ahead(object->id)) {
    CO_ASSIGN_OR_RETURN(std::optional<uint64_t> more, store_->NextChunk(object->id, copied));
    if (more) co_return false;
    proto::ObjectRequest request;
    proto::ApplyChange* apply = request.mutable_apply();
    *apply->mutable_object() = ToProto(object->id);
    SetVersion(*record, apply);
    AddHole(copied, kMaxObjectBlocks - copied, apply);
    auto sent = co_await Send(std::move(request));
    CO_RETURN_IF_ERROR(sent.status());
    chain_->Trust(member_.uuid(), object->id);
    static Counter& objects = GetCounter("ost.filled_objects");
    objects.Add();
  }
  Pass(object->id);
  co_return true;
}

Task<Status> Filling::Remove(ObjectId id) {
  proto::ObjectRequest request;
  *request.mutable_apply()->mutable_object() = ToProto(id);
  request.mutable_apply()->set_destroy(true);
  auto sent = co_await Send(std::move(request));
  co_return sent.status();
}

// --- what is covered ---

Filling::Covered Filling::CoverageOf(const ObjectId& id, bool made) {
  std::lock_guard lock(mutex_);
  Covered covered;
  covered.all = Covers(id);
  if (covered.all) return covered;
  if (made) {
    ahead_.insert(id);
    covered.all = true;
    return covered;
  }
  covered.partly = copying_ == id;
  covered.blocks = copied_;
  return covered;
}

void Filling::Pass(const ObjectId& id) {
  std::lock_guard lock(mutex_);
  if (!passed_ || *passed_ < id) passed_ = id;
  copying_.reset();
  absl::erase_if(ahead_, [&id](const ObjectId& one) { return one <= id; });
}

bool Filling::Covers(const ObjectId& id) const {
  return passed_all_ || (passed_ && id <= *passed_) || ahead_.contains(id);
}

bool Filling::Follows(const ObjectId& id) const {
  std::lock_guard lock(mutex_);
  return Covers(id);
}

bool Filling::Ahead(const ObjectId& id) const {
  std::lock_guard lock(mutex_);
  return ahead_.contains(id);
}

Task<Status> Filling::KeepToRate(uint64_t bytes) {
  const uint64_t rate = core_->options.fill_bytes_per_second;
  if (rate == 0 || bytes == 0) co_return OkStatus();
  const Duration due = began_ + TimeFor(copied_bytes_, rate);
  const Duration now = core_->environment.clock.Now();
  if (due > now) co_await core_->Pause(due - now);
  co_return OkStatus();
}

}  // namespace nacre::ost
