#include "server/object/sessions.h"

#include <algorithm>
#include <cerrno>

#include "common/log.h"
#include "server/kv/kv_pages.h"
#include "server/object/format.h"

namespace nacre::ost {
namespace {}  // namespace

Sessions::Ticket& Sessions::Ticket::operator=(Ticket&& other) noexcept {
  Release();
  sessions_ = std::exchange(other.sessions_, nullptr);
  session_ = other.session_;
  answering_ = other.answering_;
  recorded_ = other.recorded_;
  return *this;
}

void Sessions::Ticket::Release() {
  if (sessions_ != nullptr) std::exchange(sessions_, nullptr)->End(session_, answering_.record.sequence);
}

void Sessions::Ticket::Finish(std::string reply) {
  if (answering_.record.sequence == 0) return;
  std::lock_guard lock(sessions_->mutex_);
  Session& session = *sessions_->sessions_.at(session_);
  auto it = session.requests.find(answering_.record.sequence);
  if (it != session.requests.end()) it->second.answer = std::move(reply);
}

Status Sessions::Ticket::BeginCommit() { return sessions_->BeginCommit(session_); }

void Sessions::Ticket::EndCommit() { sessions_->EndCommit(session_); }

Status Sessions::Load() {
  RETURN_IF_ERROR(ForEachEntry(*store_, "F", [this](const KvEntry& entry) -> Status {
    ASSIGN_OR_RETURN(SessionId session, ParseFenceKey(entry.key));
    fenced_.insert(session);
    return OkStatus();
  }));
  return LoadAnswers();
}

Status Sessions::LoadAnswer(const KvEntry& entry) {
  ASSIGN_OR_RETURN(AnswerSlot place, ParseAnswerKey(entry.key));
  ASSIGN_OR_RETURN(AnswerRecord record, ParseAnswerRecord(entry.value));
  std::unique_ptr<Session>& known = sessions_[place.session];
  if (known == nullptr) known = std::make_unique<Session>();
  Session& session = *known;
  session.last_seen = clock_->Now();
  session.low_water = std::max(session.low_water, record.low_water);
  while (session.slots < place.slot) session.free_slots.push_back(session.slots++);
  session.slots = place.slot + 1;  // they come in order
  auto [request, fresh] = session.requests.try_emplace(record.sequence);
  if (!fresh) {
    session.free_slots.push_back(place.slot);
    return OkStatus();
  }
  request->second.slot = place.slot;
  request->second.recorded = record.delta;
  return OkStatus();
}

Status Sessions::LoadAnswers() {
  RETURN_IF_ERROR(ForEachEntry(*store_, "A", [this](const KvEntry& entry) { return LoadAnswer(entry); }));
  for (auto& [id, session] : sessions_) {
    while (!session->requests.empty() && session->requests.begin()->first < session->low_water)
      Forget(session.get(), session->requests.begin());
  }
  return OkStatus();
}

// A slot is free again when the session has acknowledged the answer in it, which a crash does not need any
// more then.
std::map<uint64_t, Sessions::Request>::iterator Sessions::Forget(
    Session* session, std::map<uint64_t, Request>::iterator request) {
  session->free_slots.push_back(request->second.slot);
  return session->requests.erase(request);
}

Sessions::Request Sessions::MakeRequest(Session* session) {
  Request request;
  if (session->free_slots.empty()) {
    request.slot = session->slots++;
  } else {
    request.slot = session->free_slots.back();
    session->free_slots.pop_back();
  }
  return request;
}

Task<Sessions::Admission> Sessions::Admit(SessionId id, uint64_t sequence, uint64_t low_water) {
  Admission admission;
  if (sequence != 0 && low_water > sequence) {
    admission.status =
        ErrnoError(EPROTO, absl::StrCat("request ", sequence, " of session ", id, " has the low water ",
                                        low_water, ", which lies above itself"));
    co_return admission;
  }
  while (true) {
    OneShot<Unit> other_done;
    {
      std::lock_guard lock(mutex_);
      admission.status = CheckServed(id);
      if (!admission.status.ok()) co_return admission;
      std::unique_ptr<Session>& slot = sessions_[id];
      if (slot == nullptr) slot = std::make_unique<Session>();
      Session& session = *slot;
      session.last_seen = clock_->Now();
      if (sequence != 0) session.low_water = std::max(session.low_water, low_water);
      while (!session.requests.empty() && session.requests.begin()->first < session.low_water &&
             session.requests.begin()->second.done()) {
        Forget(&session, session.requests.begin());
      }
      if (sequence != 0 && sequence < session.low_water) {
        admission.status = ErrnoError(ESTALE, absl::StrCat("request ", sequence, " of session ", id,
                                                           " was answered long ago; this is a late copy"));
        co_return admission;
      }
      auto it = sequence == 0 ? session.requests.end() : session.requests.find(sequence);
      if (it == session.requests.end()) {
        Answering answering;
        if (sequence != 0) {
          if (session.free_slots.empty() && session.slots >= kMaxAnswerSlots) {
            admission.status =
                ErrnoError(ENOTCONN, absl::StrCat("session ", id, " has ", session.requests.size(),
                                                  " answers here that it has not acknowledged"));
            co_return admission;
          }
          it = session.requests.emplace(sequence, MakeRequest(&session)).first;
          answering.slot = {id, it->second.slot};
          answering.record = {sequence, session.low_water, 0};
        }
        ++session.in_progress;
        admission.ticket = Ticket(this, id, answering);
        co_return admission;
      }
      if (it->second.done()) {
        admission.answer = it->second.answer;
        admission.recorded = it->second.recorded;
        co_return admission;
      }
      it->second.waiting.push_back(other_done);
    }
    co_await other_done.Wait();
  }
}

// The MDS is always served: it is what fences others, and its fences are what a registration waits for.
Status Sessions::CheckServed(SessionId id) const {
  if (id == 0) return OkStatus();
  if (fenced_.contains(id))
    return ErrnoError(ESTALE, absl::StrCat("session ", id, " was evicted; its requests are refused"));
  if (lease_ != nullptr) return lease_->Check(clock_->Now());
  return OkStatus();
}

Status Sessions::BeginCommit(SessionId id) {
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(CheckServed(id));
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
    if (auto it = session.requests.find(sequence); sequence != 0 && it != session.requests.end()) {
      wake = std::move(it->second.waiting);
      it->second.waiting.clear();
      if (!it->second.done()) Forget(&session, it);
    }
    const bool only_reads = session.slots == 0 && session.low_water == 0 && session.grant_blocks == 0;
    if (--session.in_progress == 0 && (only_reads || fenced_.contains(id))) sessions_.erase(id);
  }
  for (const OneShot<Unit>& waiter : wake) waiter.Set({});
}

Task<Status> Sessions::EraseAnswers(SessionId id, uint32_t slots) {
  if (slots == 0) co_return OkStatus();
  KvBatch batch;
  batch.UseReserve();
  for (uint32_t slot = 0; slot < slots; ++slot) batch.Erase(AnswerKey(id, slot));
  co_return co_await store_->Commit(std::move(batch));
}

Task<Status> Sessions::ForgetSilent(Duration silence) {
  std::map<SessionId, uint32_t> silent;  // and their slots
  {
    std::lock_guard lock(mutex_);
    const Duration now = clock_->Now();
    for (const auto& [id, session] : sessions_) {
      const bool busy = id == 0 || session->grant_blocks > 0 || session->in_progress > 0;
      if (busy || now - session->last_seen < silence) continue;
      silent[id] = session->slots;
      session->requests.clear();
      session->free_slots.clear();  // should the session come back meanwhile, it uses others
    }
  }
  for (const auto& [id, slots] : silent) {
    CO_RETURN_IF_ERROR(co_await EraseAnswers(id, slots));
    std::lock_guard lock(mutex_);
    auto it = sessions_.find(id);
    if (it == sessions_.end()) continue;
    Session& session = *it->second;
    const bool idle = session.in_progress == 0 && session.requests.empty() && session.grant_blocks == 0;
    if (idle && session.slots == slots) {
      sessions_.erase(it);
    } else {
      for (uint32_t slot = 0; slot < slots; ++slot) session.free_slots.push_back(slot);
    }
  }
  co_return OkStatus();
}

Task<Status> Sessions::Fence(std::vector<SessionId> sessions) {
  KvBatch batch;
  batch.UseReserve();
  for (SessionId id : sessions) {
    if (id == 0) co_return ErrnoError(EINVAL, "session 0 is the MDS and cannot be fenced");
    batch.Put(FenceKey(id), "");
  }
  std::map<SessionId, uint32_t> slots;
  {
    std::lock_guard lock(mutex_);
    for (SessionId id : sessions) {
      fenced_.insert(id);
      auto it = sessions_.find(id);
      if (it == sessions_.end()) continue;
      slots[id] = it->second->slots;
      ReleaseGrant(it->second.get());
      if (it->second->in_progress == 0) sessions_.erase(it);
    }
  }
  CO_RETURN_IF_ERROR(co_await store_->Commit(std::move(batch)));
  CO_RETURN_IF_ERROR(co_await store_->Sync());
  for (SessionId id : sessions) co_await AwaitCommits(id);
  // Should the erasure fail, a later start finds the answers, and ForgetSilent erases them.
  for (const auto& [id, count] : slots) (co_await EraseAnswers(id, count)).IgnoreError();
  co_return OkStatus();
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
  if (fenced_.contains(id)) {
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
