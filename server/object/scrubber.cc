#include "server/object/scrubber.h"

#include <algorithm>
#include <cerrno>

#include "common/bytes.h"
#include "common/log.h"
#include "common/metrics.h"
#include "server/object/chain.h"
#include "server/object/server_core.h"

namespace nacre::ost {
namespace {

constexpr uint64_t kReadBlocks = 256;  // at a time: 1 MiB
constexpr size_t kScrubbedAtOnce = 256;
constexpr Duration kLook = std::chrono::seconds(1);          // whether it is time to begin
constexpr Duration kNoteInterval = std::chrono::seconds(5);  // how far it is
constexpr int kMendAttempts = 3;
constexpr Duration kMendPause = std::chrono::milliseconds(100);
constexpr uint8_t kRecordVersion = 1;

// The scrub ends, whatever else there is to look through.
bool IsEnd(const Status& status) { return ToErrno(status) == ESHUTDOWN || ToErrno(status) == ECANCELED; }

}  // namespace

std::string Encode(const ScrubRecord& record) {
  std::string out;
  PutLittle(&out, kRecordVersion);
  PutLittle(&out, static_cast<uint8_t>(record.after.has_value()));
  PutObjectId(&out, record.after.value_or(ObjectId{}));
  out += record.state.SerializeAsString();
  return out;
}

StatusOr<ScrubRecord> ParseScrubRecord(std::string_view value) {
  ByteReader in(value);
  ScrubRecord record;
  const auto version = in.Little<uint8_t>();
  const bool has_after = in.Little<uint8_t>() != 0;
  const ObjectId after = in.ReadObjectId();
  if (has_after) record.after = after;
  if (!in.ok() || version != kRecordVersion ||
      !record.state.ParseFromArray(in.rest().data(), static_cast<int>(in.rest().size()))) {
    return absl::DataLossError(
        absl::StrCat("malformed scrub record: version ", version, ", ", value.size(), " bytes"));
  }
  return record;
}

// A record that cannot be read costs no more than a scrub from the beginning.
Status Scrubber::Load() {
  auto value = store_->kv().Get(kScrubKey);
  if (absl::IsNotFound(value.status())) return OkStatus();
  RETURN_IF_ERROR(value.status());
  auto record = ParseScrubRecord(*value);
  if (!record.ok()) {
    LogWarning("%s: %s", store_->directory(), std::string(record.status().message()));
    return OkStatus();
  }
  std::lock_guard lock(mutex_);
  record_ = *std::move(record);
  return OkStatus();
}

void Scrubber::Start() {
  if (core_->options.scrub_every > Duration{0} || State().running()) Wake();
}

void Scrubber::Wake() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(runs_, true)) return;
  }
  Spawn(core_->environment.executor, Run(core_->shared_from_this(), this));
}

void Scrubber::Take(const proto::ScrubOrder& order) {
  {
    std::lock_guard lock(mutex_);
    if (order.number() <= record_.state.order()) return;
    record_.state.set_order(order.number());
    ordered_ = !order.stop();
    stop_ordered_ = record_.state.running();  // a new one begins from the beginning
    rate_ = order.bytes_per_second();
  }
  Wake();
}

proto::ScrubState Scrubber::State() const {
  std::lock_guard lock(mutex_);
  proto::ScrubState state = record_.state;
  if (!ordered_) return state;
  state.Clear();  // it begins in a moment
  state.set_running(true);
  state.set_order(record_.state.order());
  state.set_finished(record_.state.finished());
  return state;
}

Task<void> Scrubber::Run(std::shared_ptr<ServerCore> core, Scrubber* scrubber) {
  ServerCore::Running running(core);
  while (!scrubber->MayEnd()) {
    if (scrubber->May() && scrubber->Begin()) co_await scrubber->Scrub();
    if (!core->stopping()) co_await core->Pause(kLook);
  }
}

bool Scrubber::MayEnd() {
  std::lock_guard lock(mutex_);
  const bool waits = ordered_ || record_.state.running() || core_->options.scrub_every > Duration{0};
  runs_ = waits && !core_->stopping();
  return !runs_;
}

// A member that lacks something is filled first.
bool Scrubber::May() const { return chain_ == nullptr || chain_->IsInSync(); }

// False: it is not time to.
bool Scrubber::Begin() {
  const int64_t now = core_->environment.clock.Wall().seconds;
  std::lock_guard lock(mutex_);
  proto::ScrubState& state = record_.state;
  stop_ordered_ = false;
  paced_since_ = core_->environment.clock.Now();
  paced_bytes_ = 0;
  if (state.running() && !ordered_) return true;  // it was interrupted
  const auto every = std::chrono::duration_cast<std::chrono::seconds>(core_->options.scrub_every).count();
  const int64_t last = std::max(state.began(), state.finished());
  // A clock that was set back does not put it off for longer than the interval.
  const bool due = every > 0 && (now >= last + every || now < last - every);
  if (!ordered_ && !due) return false;
  if (!ordered_) rate_ = 0;
  ordered_ = false;
  const uint64_t order = state.order();
  const int64_t finished = state.finished();
  state.Clear();
  state.set_order(order);
  state.set_finished(finished);
  state.set_running(true);
  state.set_began(now);
  const StoreSpace space = store_->GetSpace();
  state.set_total_bytes(space.total_bytes - std::min(space.free_bytes, space.total_bytes));
  record_.after.reset();
  return true;
}

bool Scrubber::GoesOn() const {
  std::lock_guard lock(mutex_);
  return !stop_ordered_ && !core_->stopping();
}

Task<void> Scrubber::Scrub() {
  store_->problems().BeginLook();
  buffer_ = MakeAligned(kReadBlocks * kBlockSize);
  Status status = co_await LookThroughAll();
  buffer_.reset();
  if (status.ok()) status = co_await store_->FlushRewritten();
  if (core_->stopping()) co_return;  // the next process goes on from what was noted last
  if (!status.ok() && !IsEnd(status)) {
    // It goes on from where it is, in a moment.
    LogError("%s: the scrub cannot go on: %s", store_->directory(), std::string(status.message()));
    co_await Note();
    co_return;
  }
  if (status.ok()) store_->problems().EndLook();
  End(/*whole=*/status.ok());
  co_await Note();
}

void Scrubber::End(bool whole) {
  std::lock_guard lock(mutex_);
  proto::ScrubState& state = record_.state;
  state.set_running(false);
  state.set_stopped(!whole);
  if (whole) state.set_finished(core_->environment.clock.Wall().seconds);
  record_.after.reset();
  LogInfo("%s: the scrub %s: %d bytes read, %d bad blocks, %d of them repaired, %d objects differed",
          store_->directory(), whole ? "is through" : "was stopped", state.read_bytes(), state.bad_blocks(),
          state.repaired_blocks(), state.differing_objects());
}

// Makes mended blocks durable before it notes that the scrub is past them.
Task<void> Scrubber::Note() {
  Status noted = co_await store_->FlushRewritten();
  if (noted.ok()) {
    KvBatch batch;
    {
      std::lock_guard lock(mutex_);
      batch.Put(std::string(kScrubKey), Encode(record_));
    }
    noted = co_await store_->kv().Commit(std::move(batch));
  }
  if (!noted.ok() && !core_->stopping())
    LogWarning("%s: how far the scrub is cannot be noted: %s", store_->directory(),
               std::string(noted.message()));
}

Task<Status> Scrubber::LookThroughAll() {
  std::optional<ObjectId> after;
  {
    std::lock_guard lock(mutex_);
    after = record_.after;
  }
  Duration noted = core_->environment.clock.Now();
  for (;;) {
    CO_ASSIGN_OR_RETURN(const std::vector<ObjectStore::Listed> page, store_->List(after, kScrubbedAtOnce));
    for (const ObjectStore::Listed& object : page) {
      if (core_->environment.clock.Now() - noted >= kNoteInterval) {
        noted = core_->environment.clock.Now();
        co_await Note();
      }
      const Status looked = co_await LookThrough(object.id);
      if (IsEnd(looked)) co_return looked;
      if (!looked.ok()) {
        const std::string text =
            absl::StrCat("OST ", store_->superblock().index, ": object ", object.id.ToString(),
                         " cannot be scrubbed: ", looked.message());
        if (store_->problems().Add(text, object.record.parent)) LogError("%s", text);
      }
      after = object.id;
      std::lock_guard lock(mutex_);
      record_.after = after;
    }
    if (page.size() < kScrubbedAtOnce) co_return OkStatus();
  }
}

Task<Status> Scrubber::LookThrough(const ObjectId& id) {
  std::optional<uint64_t> compared;  // in units of kMostDigestBlocks
  for (uint64_t at = 0;;) {
    if (!GoesOn()) co_return ErrnoError(ECANCELED, "the scrub is to end");
    CO_ASSIGN_OR_RETURN(const std::optional<uint64_t> chunk, store_->NextChunk(id, at));
    if (!chunk) co_return OkStatus();
    const uint64_t first = std::max(at, *chunk * kChunkBlocks);
    const uint64_t part = first / kMostDigestBlocks;
    if (compared != part) {
      CO_RETURN_IF_ERROR(co_await CompareCopies(id, part * kMostDigestBlocks, kMostDigestBlocks));
      compared = part;
    }
    const uint64_t count = std::min(kReadBlocks, (part + 1) * kMostDigestBlocks - first);
    CO_RETURN_IF_ERROR(co_await VerifyBlocks(id, first, count));
    at = first + count;
  }
}

Task<Status> Scrubber::VerifyBlocks(const ObjectId& id, uint64_t first, uint64_t count) {
  CO_ASSIGN_OR_RETURN(const ObjectStore::Verified verified,
                      co_await store_->Verify(id, first, count, buffer_.get()));
  {
    std::lock_guard lock(mutex_);
    record_.state.set_read_bytes(record_.state.read_bytes() + verified.blocks * kBlockSize);
  }
  for (const ObjectStore::Damaged& damaged : verified.damaged) CO_RETURN_IF_ERROR(co_await Mend(id, damaged));
  co_await KeepToRate(verified.blocks * kBlockSize);
  co_return OkStatus();
}

// Another member may be ahead of this one, whose block is about to change then, so it is asked again.
Task<Status> Scrubber::Mend(const ObjectId& id, const ObjectStore::Damaged& damaged) {
  for (int attempt = 1;; ++attempt) {
    CO_ASSIGN_OR_RETURN(const ObjectStore::Mended mended,
                        co_await store_->Mend(id, damaged, std::span(buffer_.get(), kBlockSize)));
    if (mended == ObjectStore::Mended::kGone) co_return OkStatus();
    const bool repaired = mended == ObjectStore::Mended::kRepaired;
    if (!repaired && attempt < kMendAttempts) {
      co_await core_->Pause(kMendPause);
      if (!GoesOn()) co_return ErrnoError(ECANCELED, "the scrub is to end");
      continue;
    }
    if (!repaired) store_->Report(id, damaged);
    std::lock_guard lock(mutex_);
    record_.state.set_bad_blocks(record_.state.bad_blocks() + 1);
    record_.state.set_repaired_blocks(record_.state.repaired_blocks() + (repaired ? 1 : 0));
    co_return OkStatus();
  }
}

// Nothing of the range changes while the others are asked, which takes as long as handing on a change. If one
// of them does not answer, the copies are compared next time: whether it is to leave the chain is decided by
// those that have changes for it.
Task<Status> Scrubber::CompareCopies(const ObjectId& id, uint64_t first, uint64_t count) {
  if (chain_ == nullptr || !chain_->CheckHead().ok()) co_return OkStatus();
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectState> object, store_->Acquire(id));
  RangeLock::Guard locked = co_await object->locks.Lock(first, first + count, /*exclusive=*/false);
  CO_ASSIGN_OR_RETURN(const uint32_t mine, store_->Digest(id, first, count));
  const auto others = co_await chain_->AskDigests(id, first, count);
  locked.Release();
  if (!others.ok()) co_return OkStatus();
  for (const proto::MemberDigest& other : others->members) {
    if (other.digest() == mine) continue;
    static Counter& differing = GetCounter("ost.differing_objects");
    differing.Add();
    {
      std::lock_guard lock(mutex_);
      record_.state.set_differing_objects(record_.state.differing_objects() + 1);
    }
    co_await chain_->FillAnew(other.uuid(), others->epoch, id);
    break;  // the chain is another one now
  }
  co_return OkStatus();
}

Task<void> Scrubber::KeepToRate(uint64_t bytes) {
  Duration due{0};
  {
    std::lock_guard lock(mutex_);
    const uint64_t rate = rate_ != 0 ? rate_ : core_->options.scrub_bytes_per_second;
    paced_bytes_ += bytes;
    if (rate == 0) co_return;
    due = paced_since_ + TimeFor(paced_bytes_, rate);
  }
  while (GoesOn()) {
    const Duration now = core_->environment.clock.Now();
    if (due <= now) break;
    co_await core_->Pause(std::min(due - now, kLook));
  }
}

}  // namespace nacre::ost
