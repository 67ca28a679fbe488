#include "server/object/sessions.h"

#include <algorithm>
#include <cerrno>

#include "common/log.h"
#include "rpc/fence.h"
#include "server/kv/kv_pages.h"
#include "server/object/format.h"

namespace nacre::ost {

Sessions::Ticket& Sessions::Ticket::operator=(Ticket&& other) noexcept {
  Release();
  sessions_ = std::exchange(other.sessions_, nullptr);
  session_ = other.session_;
  mdt_epoch_ = other.mdt_epoch_;
  answering_ = other.answering_;
  recorded_ = other.recorded_;
  handed_on_ = other.handed_on_;
  return *this;
}

void Sessions::Ticket::Release() {
  if (sessions_ != nullptr)
    std::exchange(sessions_, nullptr)->End(session_, answering_.answer.record.sequence);
}

void Sessions::Ticket::Finish(std::string reply) {
  if (answering_.answer.record.sequence == 0) return;
  std::lock_guard lock(sessions_->mutex_);
  Session& session = *sessions_->sessions_.at(session_);
  Kept* kept = session.requests.Find(answering_.answer.record.sequence);
  if (kept != nullptr && !kept->forgotten) kept->answer = std::move(reply);
}

void Sessions::Ticket::FinishRecorded() {
  if (answering_.answer.record.sequence == 0) return;
  std::lock_guard lock(sessions_->mutex_);
  Session& session = *sessions_->sessions_.at(session_);
  Kept* kept = session.requests.Find(answering_.answer.record.sequence);
  if (kept != nullptr && !kept->forgotten) kept->recorded = answering_.answer.record.delta;
}

Status Sessions::Ticket::BeginCommit() { return sessions_->BeginCommit(session_, mdt_epoch_); }

void Sessions::Ticket::EndCommit() { sessions_->EndCommit(session_); }

Status Sessions::Load() {
  RETURN_IF_ERROR(ForEachEntry(*store_, "F", [this](const KvEntry& entry) -> Status {
    ASSIGN_OR_RETURN(SessionId fenced, ParseFenceKey(entry.key));
    NoteFence(fenced);
    return OkStatus();
  }));
  StatusOr<std::string> epoch = store_->Get(kMdtEpochKey);
  if (epoch.ok()) {
    ASSIGN_OR_RETURN(heard_, ParseMdtEpoch(*epoch));
    obeyed_ = heard_;
  } else if (!absl::IsNotFound(epoch.status())) {
    return epoch.status();
  }
  return LoadAnswers();
}

Status Sessions::LoadAnswers() {
  std::map<SessionId, uint64_t> low_waters;
  RETURN_IF_ERROR(ForEachEntry(*store_, "A", [&](const KvEntry& entry) -> Status {
    ASSIGN_OR_RETURN(AnswerSlot place, ParseAnswerKey(entry.key));
    ASSIGN_OR_RETURN(AnswerRecord record, ParseAnswerRecord(entry.value));
    std::unique_ptr<Session>& known = sessions_[place.session];
    if (known == nullptr) known = std::make_unique<Session>();
    Session& session = *known;
    session.last_seen = clock_->Now();
    session.slots.Restore(place.slot);
    if (!session.requests.Restore(record.sequence, {place.slot, std::nullopt, record.delta}))
      session.slots.Free(place.slot);
    uint64_t& low_water = low_waters[place.session];
    low_water = std::max(low_water, record.low_water);
    return OkStatus();
  }));
  for (const auto& [id, low_water] : low_waters) sessions_.at(id)->requests.RaiseLowWater(low_water);
  return OkStatus();
}

Task<Sessions::Admission> Sessions::Admit(SessionId id, uint64_t sequence, uint64_t low_water,
                                          uint64_t mdt_epoch, bool handed_on) {
  Admission admission;
  if (sequence != 0 && !ReplyCache<Kept>::WellFormed(sequence, low_water)) {
    admission.status =
        ErrnoError(EPROTO, absl::StrCat("request ", sequence, " of session ", id, " has the low water ",
                                        low_water, ", which lies above itself"));
    co_return admission;
  }
  while (true) {
    std::optional<OneShot<Unit>> other_done;
    {
      std::lock_guard lock(mutex_);
      admission.status = CheckServed(id, mdt_epoch);
      if (!admission.status.ok()) co_return admission;
      std::unique_ptr<Session>& known = sessions_[id];
      if (known == nullptr) known = std::make_unique<Session>();
      known->last_seen = clock_->Now();
      Answering answering;
      if (sequence != 0)
        other_done = Begin(id, known.get(), sequence, low_water, handed_on, &admission, &answering);
      const bool begins = admission.status.ok() && !admission.answer && !admission.recorded && !other_done;
      if (begins) {
        ++known->in_progress;
        admission.ticket = Ticket(this, id, mdt_epoch, answering);
      }
      if (!other_done) co_return admission;
    }
    co_await other_done->Wait();
  }
}

// A mutation: why it is refused, its answer, what to wait for, or none of these and where its answer goes.
std::optional<OneShot<Unit>> Sessions::Begin(SessionId id, Session* session, uint64_t sequence,
                                             uint64_t low_water, bool handed_on, Admission* admission,
                                             Answering* answering) {
  using Turn = ReplyCache<Kept>::Turn;
  auto begun = session->requests.Begin(sequence, low_water);
  if (begun.turn == Turn::kCarryOut && !session->HasSlot()) {
    (void)session->requests.End(sequence, /*done=*/false);
    begun.turn = Turn::kFull;
  }
  switch (begun.turn) {
    case Turn::kCarryOut:
      begun.kept->slot = session->slots.Take();
      answering->answer = {{id, *begun.kept->slot}, {sequence, session->requests.low_water(), 0}};
      return std::nullopt;
    case Turn::kUnderWay:
      return begun.over;
    case Turn::kAnswered:
      if (handed_on && begun.kept->recorded && begun.kept->slot) {
        answering->answer = {{id, *begun.kept->slot},
                             {sequence, session->requests.low_water(), *begun.kept->recorded}};
        return std::nullopt;
      }
      admission->answer = begun.kept->answer;
      admission->recorded = begun.kept->recorded;
      return std::nullopt;
    case Turn::kStale:
      if (handed_on) return std::nullopt;
      [[fallthrough]];
    case Turn::kMalformed:  // looked at before
      admission->status = ErrnoError(ESTALE, absl::StrCat("request ", sequence, " of session ", id,
                                                          " was answered long ago; this is a late copy"));
      return std::nullopt;
    case Turn::kFull:
      admission->status = ErrnoError(ENOTCONN, absl::StrCat("session ", id, " has ", session->requests.size(),
                                                            " answers here that it has not acknowledged"));
      return std::nullopt;
  }
  return std::nullopt;
}

StatusOr<std::vector<SlotAnswer>> Sessions::StoredAnswers() const {
  std::vector<SlotAnswer> answers;
  RETURN_IF_ERROR(ForEachEntry(*store_, "A", [&](const KvEntry& entry) -> Status {
    SlotAnswer& answer = answers.emplace_back();
    ASSIGN_OR_RETURN(answer.slot, ParseAnswerKey(entry.key));
    ASSIGN_OR_RETURN(answer.record, ParseAnswerRecord(entry.value));
    return OkStatus();
  }));
  return answers;
}

StatusOr<std::vector<SessionId>> Sessions::Fences() const {
  std::vector<SessionId> fences;
  RETURN_IF_ERROR(ForEachEntry(*store_, "F", [&](const KvEntry& entry) -> Status {
    ASSIGN_OR_RETURN(SessionId fenced, ParseFenceKey(entry.key));
    fences.push_back(fenced);
    return OkStatus();
  }));
  return fences;
}

Task<Status> Sessions::ForgetAnswers() {
  co_await journal_->AwaitCommits();
  {
    std::lock_guard lock(mutex_);
    absl::flat_hash_map<SessionId, uint32_t> slots;
    for (const auto& [id, session] : sessions_) {
      slots[id] = session->slots.count();
      session->requests.ForgetAnswers([](Kept* kept) { kept->forgotten = true; });
    }
    journal_->ForgetAnswers(slots);
  }
  co_return co_await journal_->Sync();  // for it would erase those that are learned now
}

Task<Status> Sessions::Learn(std::vector<SlotAnswer> answers) {
  KvBatch batch;
  batch.UseReserve();
  {
    std::lock_guard lock(mutex_);
    for (SlotAnswer& answer : answers) {
      if (IsFenced(answer.slot.session)) continue;
      std::unique_ptr<Session>& known = sessions_[answer.slot.session];
      if (known == nullptr) known = std::make_unique<Session>();
      known->last_seen = clock_->Now();
      known->requests.RaiseLowWater(answer.record.low_water);
      if (answer.record.sequence < known->requests.low_water() || !known->HasSlot()) continue;
      const uint32_t slot = known->slots.Take();
      if (!known->requests.Restore(answer.record.sequence, {slot, std::nullopt, answer.record.delta})) {
        known->slots.Free(slot);
        continue;
      }
      batch.Put(AnswerKey(answer.slot.session, slot), Encode(answer.record));
    }
  }
  CO_RETURN_IF_ERROR(co_await store_->Commit(std::move(batch)));
  // The journal does not know of it: its sync would leave it out.
  co_return co_await store_->Sync();
}

// The MDS is always served, unless another one has taken its place: it is what fences others, and its fences
// are what a registration waits for.
Status Sessions::CheckServed(SessionId id, uint64_t mdt_epoch) const {
  if (id == 0) return CheckPrimary(mdt_epoch);
  if (id < first_served_) {
    return ErrnoError(ESTALE, absl::StrCat("session ", id,
                                           " is from before the MDT was restored from a backup; its "
                                           "requests are refused"));
  }
  if (fenced_.contains(id))
    return ErrnoError(ESTALE, absl::StrCat("session ", id, " was evicted; its requests are refused"));
  if (lease_ != nullptr) return lease_->Check(clock_->Now());
  return OkStatus();
}

bool Sessions::IsFenced(SessionId id) const {
  return id != 0 && (id < first_served_ || fenced_.contains(id));
}

Status Sessions::CheckFence(SessionId fenced) const {
  if (fenced == 0) return ErrnoError(EINVAL, "session 0 is the MDS and cannot be fenced");
  if (!IsAllBelow(fenced)) return OkStatus();
  std::lock_guard lock(mutex_);
  if (FirstServed(fenced) >= first_served_) return OkStatus();
  return ErrnoError(
      EINVAL,
      absl::StrCat("sessions below ", first_served_,
                   " are refused here since an earlier restore of the MDT, "
                   "whose sessions now begin at ",
                   FirstServed(fenced),
                   ": the clock of the machine that restored it is behind. Set it right, and restore again"));
}

std::vector<SessionId> Sessions::NamedBy(const std::vector<SessionId>& fences) const {
  std::vector<SessionId> named;
  for (SessionId fence : fences) {
    if (!IsAllBelow(fence)) {
      if (sessions_.contains(fence)) named.push_back(fence);
      continue;
    }
    for (const auto& [id, session] : sessions_) {
      if (id != 0 && id < FirstServed(fence)) named.push_back(id);
    }
  }
  return named;
}

void Sessions::NoteFence(SessionId fenced) {
  if (IsAllBelow(fenced)) {
    first_served_ = std::max(first_served_, FirstServed(fenced));
  } else {
    fenced_.insert(fenced);
  }
}

Status Sessions::BeginCommit(SessionId id, uint64_t mdt_epoch) {
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(CheckServed(id, mdt_epoch));
  ++sessions_.at(id)->committing;
  return OkStatus();
}

void Sessions::EndCommit(SessionId id) {
  std::vector<OneShot<Unit>> wake;
  {
    std::lock_guard lock(mutex_);
    Session& session = *sessions_.at(id);
    if (--session.committing == 0) wake.swap(session.committed);
  }
  for (const OneShot<Unit>& waiter : wake) waiter.Set({});
}

void Sessions::End(SessionId id, uint64_t sequence) {
  std::vector<OneShot<Unit>> wake;
  {
    std::lock_guard lock(mutex_);
    Session& session = *sessions_.at(id);
    if (const Kept* kept = session.requests.Find(sequence); kept != nullptr)
      wake = session.requests.End(sequence, kept->done());
    const bool only_reads =
        session.slots.count() == 0 && session.requests.low_water() == 0 && session.grant_blocks == 0;
    if (--session.in_progress == 0 && (only_reads || IsFenced(id))) sessions_.erase(id);
  }
  for (const OneShot<Unit>& waiter : wake) waiter.Set({});
}

void Sessions::ForgetSilent(Duration silence) {
  std::lock_guard lock(mutex_);
  absl::flat_hash_map<SessionId, uint32_t> slots;
  const Duration now = clock_->Now();
  for (const auto& [id, session] : sessions_) {
    const bool busy = id == 0 || session->grant_blocks > 0 || session->in_progress > 0;
    if (!busy && now - session->last_seen >= silence) slots[id] = session->slots.count();
  }
  if (slots.empty()) return;
  for (const auto& [id, count] : slots) sessions_.erase(id);
  journal_->ForgetAnswers(slots);
}

Task<Status> Sessions::Fence(std::vector<SessionId> fences) {
  KvBatch batch;
  batch.UseReserve();
  for (SessionId fence : fences) {
    CO_RETURN_IF_ERROR(CheckFence(fence));
    batch.Put(FenceKey(fence), "");
  }
  std::vector<SessionId> sessions;
  absl::flat_hash_map<SessionId, uint32_t> slots;
  {
    std::lock_guard lock(mutex_);
    for (SessionId fence : fences) NoteFence(fence);
    sessions = NamedBy(fences);
    for (SessionId id : sessions) {
      auto it = sessions_.find(id);
      slots[id] = it->second->slots.count();
      ReleaseGrant(it->second.get());
      if (it->second->in_progress == 0) sessions_.erase(it);
    }
  }
  CO_RETURN_IF_ERROR(co_await store_->Commit(std::move(batch)));
  CO_RETURN_IF_ERROR(co_await store_->Sync());
  for (SessionId id : sessions) co_await AwaitCommits(id);
  // Should the process end before the next sync, a later start finds the answers, and ForgetSilent forgets
  // them.
  journal_->ForgetAnswers(slots);
  co_return OkStatus();
}

Status Sessions::CheckPrimary(uint64_t mdt_epoch) const {
  if (mdt_epoch == 0 || mdt_epoch >= heard_) return OkStatus();
  return ErrnoError(ESTALE, absl::StrCat("the MDS of epoch ", mdt_epoch,
                                         " is the primary no more: that of epoch ", heard_, " is"));
}

Status Sessions::HearOf(uint64_t mdt_epoch) {
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(CheckPrimary(mdt_epoch));
  heard_ = std::max(heard_, mdt_epoch);
  return OkStatus();
}

bool Sessions::Obeys(uint64_t mdt_epoch) const {
  std::lock_guard lock(mutex_);
  return mdt_epoch == 0 || (mdt_epoch == heard_ && mdt_epoch == obeyed_);
}

uint64_t Sessions::mdt_epoch() const {
  std::lock_guard lock(mutex_);
  return heard_;
}

Task<Status> Sessions::Obey(uint64_t mdt_epoch) {
  CO_RETURN_IF_ERROR(HearOf(mdt_epoch));
  if (Obeys(mdt_epoch)) co_return OkStatus();
  auto guard = co_await obeying_.Lock();
  CO_RETURN_IF_ERROR(HearOf(mdt_epoch));
  if (Obeys(mdt_epoch)) co_return OkStatus();
  KvBatch batch;
  batch.UseReserve();
  batch.Put(std::string(kMdtEpochKey), EncodeMdtEpoch(mdt_epoch));
  CO_RETURN_IF_ERROR(co_await store_->Commit(std::move(batch)));
  CO_RETURN_IF_ERROR(co_await store_->Sync());
  co_await AwaitCommits(0);
  std::lock_guard lock(mutex_);
  obeyed_ = mdt_epoch;
  co_return CheckPrimary(mdt_epoch);
}

Task<void> Sessions::AwaitCommits(SessionId id) {
  OneShot<Unit> committed;
  {
    std::lock_guard lock(mutex_);
    auto it = sessions_.find(id);
    if (it == sessions_.end() || it->second->committing == 0) co_return;
    it->second->committed.push_back(committed);
  }
  co_await committed.Wait();  // none begins any more
}

Task<uint64_t> Sessions::Reserve(SessionId id, uint64_t want) {
  uint64_t want_blocks = want / kBlockSize + (want % kBlockSize != 0 ? 1 : 0);
  uint64_t held, missing = 0;
  {
    std::lock_guard lock(mutex_);
    Session& session = *sessions_.at(id);
    uint64_t holders = 1;
    for (const auto& [other, state] : sessions_) holders += other != id && state->grant_blocks > 0 ? 1 : 0;
    // Nobody gets more than an equal share of a half of what there is: the rest stays for whoever comes.
    uint64_t fair = (space_->free_blocks() / 2) / holders;
    want_blocks = std::min(want_blocks, std::max(fair, session.grant_blocks));
    held = session.grant_blocks;
    if (want_blocks > held) {
      missing = want_blocks - held;
    } else {
      session.grant_blocks = want_blocks;
    }
  }
  if (missing == 0) {
    space_->Release(held - want_blocks);
    co_return want_blocks* kBlockSize;
  }
  uint64_t promised = co_await space_->Promise(missing);
  std::lock_guard lock(mutex_);
  if (IsFenced(id)) {
    space_->Release(promised);
    co_return 0;
  }
  Session& session = *sessions_.at(id);
  session.grant_blocks += promised;
  co_return session.grant_blocks* kBlockSize;
}

uint64_t Sessions::TakeGrant(SessionId id, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  Session& session = *sessions_.at(id);
  uint64_t blocks = std::min(session.grant_blocks, bytes / kBlockSize + (bytes % kBlockSize != 0 ? 1 : 0));
  session.grant_blocks -= blocks;
  return blocks;
}

uint64_t Sessions::GrantOf(SessionId id) const {
  std::lock_guard lock(mutex_);
  auto it = sessions_.find(id);
  return it == sessions_.end() ? 0 : it->second->grant_blocks * kBlockSize;
}

void Sessions::ReleaseGrant(Session* session) {
  space_->Release(session->grant_blocks);
  session->grant_blocks = 0;
}

void Sessions::DropSilentGrants(Duration silence) {
  std::lock_guard lock(mutex_);
  Duration now = clock_->Now();
  for (auto& [id, session] : sessions_) {
    if (session->grant_blocks == 0 || session->in_progress > 0 || now - session->last_seen < silence)
      continue;
    LogInfo("session %d has been silent: its grant of %d bytes is taken back", id,
            session->grant_blocks * kBlockSize);
    ReleaseGrant(session.get());
  }
}

size_t Sessions::size() const {
  std::lock_guard lock(mutex_);
  return sessions_.size();
}

}  // namespace nacre::ost
