#include "server/metadata/session_table.h"

#include "common/log.h"

namespace nacre::mds {
Task<Status> SessionTable::Load(Duration now) {
  CO_RETURN_IF_ERROR(ForEachEntry(tables_, TableKey(Table::kSession), [&](KvEntry& entry) -> Status {
    ByteReader key(std::string_view(entry.key).substr(1));
    SessionId id = key.Big<uint64_t>();
    ASSIGN_OR_RETURN(SessionRecord record, ParseSession(entry.value));
    auto session = std::make_shared<Session>(id, std::move(record), now);
    session->set_whole(false);
    sessions_[id] = std::move(session);
    return OkStatus();
  }));
  CO_RETURN_IF_ERROR(co_await LoadReplies());
  if (!sessions_.empty()) recovery_.Close();
  co_return OkStatus();
}

// Those of a mutation that was committed while its session ended go, and those that an earlier version has
// stored by their sequences get slots.
Task<Status> SessionTable::LoadReplies() {
  KvBatch changes;
  changes.UseReserve();
  CO_RETURN_IF_ERROR(ForEachEntry(tables_, TableKey(Table::kReply), [&](KvEntry& entry) -> Status {
    ByteReader key(std::string_view(entry.key).substr(1));
    const SessionId id = key.Big<uint64_t>();
    const uint32_t slot = key.Big<uint32_t>();
    auto it = sessions_.find(id);
    if (it == sessions_.end()) {
      changes.Erase(std::move(entry.key));
      return OkStatus();
    }
    StatusOr<ReplyRecord> record = ParseReply(entry.value);
    if (record.ok()) {
      it->second->Restore(slot, *std::move(record));
    } else {  // whoever uses the slot next overwrites it
      LogError("session %d: %s; if the client repeats that request, it is carried out again", id,
               std::string(record.status().message()));
    }
    return OkStatus();
  }));
  CO_RETURN_IF_ERROR(ForEachEntry(tables_, TableKey(Table::kReplyBySequence), [&](KvEntry& entry) -> Status {
    ByteReader key(std::string_view(entry.key).substr(1));
    const SessionId id = key.Big<uint64_t>();
    const uint64_t sequence = key.Big<uint64_t>();
    if (auto it = sessions_.find(id); it != sessions_.end()) {
      const uint32_t slot = it->second->Adopt(sequence, entry.value);
      changes.Put(ReplyKey(id, slot), EncodeReply({sequence, std::move(entry.value)}));
    }
    changes.Erase(std::move(entry.key));
    return OkStatus();
  }));
  if (changes.empty()) co_return OkStatus();
  co_return co_await tables_.CommitBatch(std::move(changes));
}

SessionPtr SessionTable::Find(SessionId id) const {
  std::lock_guard lock(mutex_);
  auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : it->second;
}

std::vector<SessionPtr> SessionTable::All() const {
  std::lock_guard lock(mutex_);
  std::vector<SessionPtr> all;
  for (const auto& [id, session] : sessions_) all.push_back(session);
  return all;
}

size_t SessionTable::Count() const {
  std::lock_guard lock(mutex_);
  return sessions_.size();
}

Task<StatusOr<SessionPtr>> SessionTable::Add(SessionId id, SessionRecord record, Duration now) {
  KvBatch batch;
  batch.Put(NumberKey(Table::kSession, id), EncodeSession(record));
  CO_RETURN_IF_ERROR(co_await tables_.CommitBatch(std::move(batch)));
  auto session = std::make_shared<Session>(id, std::move(record), now);
  std::lock_guard lock(mutex_);
  sessions_[id] = session;
  co_return session;
}

SessionPtr SessionTable::FindByNonce(uint64_t nonce) const {
  for (const SessionPtr& session : All()) {
    if (session->record.nonce == nonce && !session->ended()) return session;
  }
  return nullptr;
}

Task<Status> SessionTable::Remove(SessionPtr session) {
  KvBatch batch;
  batch.Erase(NumberKey(Table::kSession, session->id));
  CO_RETURN_IF_ERROR(
      ForEachEntry(tables_, NumberKey(Table::kReply, session->id), [&](KvEntry& entry) -> Status {
        batch.Erase(std::move(entry.key));
        return OkStatus();
      }));
  CO_RETURN_IF_ERROR(co_await tables_.CommitBatch(std::move(batch)));
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    sessions_.erase(session->id);
    auto [first, last] = gone_waiters_.equal_range(session->id);
    for (auto it = first; it != last; ++it) waiters.push_back(it->second);
    gone_waiters_.erase(first, last);
  }
  for (const auto& waiter : waiters) waiter.Set({});
  co_return OkStatus();
}

Task<void> SessionTable::AwaitGone(SessionId id) {
  OneShot<Unit> gone;
  {
    std::lock_guard lock(mutex_);
    if (!sessions_.contains(id)) co_return;
    gone_waiters_.emplace(id, gone);
  }
  co_await gone.Wait();
}

bool SessionTable::AllWhole() const {
  for (const SessionPtr& session : All()) {
    if (!session->whole()) return false;
  }
  return true;
}

void SessionTable::Broadcast(const proto::Push& push) const {
  for (const SessionPtr& session : All()) session->Push(push);
}

}  // namespace nacre::mds
