#include "server/metadata/eviction.h"

#include <algorithm>
#include <iterator>

#include "common/lease_time.h"
#include "common/log.h"
#include "server/metadata/change_guard.h"
#include "server/metadata/recall.h"
#include "server/metadata/writer_recovery.h"

namespace nacre::mds {
namespace {

// A fence record: the OSTs that have not been told yet, in the form of a destroy record's groups. One of an
// OST that never comes back stays, some bytes for each eviction since, until that is removed (ForgetFences).
std::string EncodePending(const std::vector<OstIndex>& osts) {
  DestroyRecord record;
  record.groups = osts;
  return EncodeDestroy(record);
}

// A record that cannot be read does not say which OSTs it meant, so all of them are told, some once more,
// which does no harm. Giving up here would keep every OST from counting as up, for one record.
std::vector<OstIndex> ParsePending(Mds& mds, SessionId session, const std::string& value) {
  auto record = ParseDestroy(value);
  if (record.ok()) return std::move(record->groups);
  LogError("which OSTs have yet to be told that session %d has ended cannot be read; all are: %s", session,
           std::string(record.status().message()));
  return mds.osts.Known();
}

Task<Status> StorePending(MdsPtr mds, SessionId session, std::vector<OstIndex> osts) {
  KvBatch batch;
  std::string key = NumberKey(Table::kFence, session);
  if (osts.empty())
    batch.Erase(std::move(key));
  else
    batch.Put(std::move(key), EncodePending(osts));
  co_return co_await mds->tables->CommitBatch(std::move(batch));
}

// How long a store that refuses (a full disk) is left alone before it is asked again.
constexpr Duration kStorePause = std::chrono::seconds(1);

struct Fenced {
  OstIndex ost = 0;
  bool told = false;
};

Task<Fenced> FenceAt(MdsPtr mds, OstIndex ost, SessionId session) {
  Fenced fenced;
  fenced.ost = ost;
  fenced.told = co_await mds->osts.FenceOrOutlive(ost, session);
  co_return fenced;
}

// Returns the OSTs that have been told.
Task<StatusOr<std::vector<OstIndex>>> FenceEverywhere(MdsPtr mds, SessionId session) {
  std::vector<OstIndex> known = mds->osts.Known();
  CO_RETURN_IF_ERROR(co_await StorePending(mds, session, known));
  CO_RETURN_IF_ERROR(co_await mds->tables->Sync());
  mds->osts.NoteFences();
  std::vector<Task<Fenced>> tasks;
  for (OstIndex ost : known) tasks.push_back(FenceAt(mds, ost, session));
  std::vector<OstIndex> told, pending;
  for (const Fenced& fenced : co_await WhenAll(std::move(tasks))) {
    (fenced.told ? told : pending).push_back(fenced.ost);
  }
  if (mds->closed) co_return absl::UnavailableError("the metadata server is stopping");
  CO_RETURN_IF_ERROR(co_await StorePending(mds, session, std::move(pending)));
  co_return told;
}

// An ended session's messages are refused, so the time does not move away any more.
Task<void> OutliveLeases(MdsPtr mds, SessionPtr session) {
  const Duration left = LeasesEnd(*mds, *session) - mds->listening.Now();
  if (left > Duration{0}) co_await mds->env.clock.Sleep(left);
}

Task<Unit> RecoverSizesAt(MdsPtr mds, OstIndex ost, SessionId session) {
  Status status = co_await mds->writer_recovery.Recover(mds, ost, session, RecoveryPass::kWaitedFor);
  if (!status.ok() && !mds->closed) {
    LogWarning("sizes of the files that session %d wrote: OST %d is asked again later: %s", session, ost,
               std::string(status.message()));
  }
  co_return Unit{};
}

// READ leases of others under which they may have cached what the session wrote. After a restart of this MDS
// a session that has not reclaimed everything may have had any file open: then that is all of them.
std::vector<LeaseGrant> ReadersBeside(const Mds& mds, const Session& session) {
  if (!session.whole()) return mds.leases.ReadersBut(session.id);
  std::vector<LeaseGrant> readers;
  for (const Fid& fid : mds.opens.FilesOf(session.id)) {
    std::ranges::copy(mds.leases.Conflicts(fid, session.id, proto::LEASE_WRITE), std::back_inserter(readers));
    if (auto inode = mds.tables->GetInode(fid); inode.ok()) {
      const Fid directory = CoveringDirectory(**inode);
      std::ranges::copy(mds.leases.Conflicts(directory, session.id, proto::LEASE_WRITE),
                        std::back_inserter(readers));
    }
  }
  std::erase_if(readers, [](const LeaseGrant& grant) { return grant.mode != proto::LEASE_READ; });
  return readers;
}

// The session may have begun to write bytes that it will never announce, so others give up what they have
// cached of its files. Not waited for.
void AskCachesBack(Mds& mds, const Session& session) {
  for (const LeaseGrant& grant : ReadersBeside(mds, session))
    if (!grant.revoking) AskBack(mds, grant);
}

// Those who wait for a lease of the session go on when its files are as long as it has made them: an append
// would otherwise come to where the session has written already. (Not what lies on OSTs that are away.)
Task<Status> EvictFirst(MdsPtr mds, SessionPtr session, Client client) {
  CO_ASSIGN_OR_RETURN(std::vector<OstIndex> told, co_await FenceEverywhere(mds, session->id));
  if (client == Client::kMayLive) co_await OutliveLeases(mds, session);
  session->SetOutlived();
  std::vector<Task<Unit>> sizes;
  for (OstIndex ost : told) sizes.push_back(RecoverSizesAt(mds, ost, session->id));
  co_await WhenAll(std::move(sizes));
  if (mds->closed) co_return absl::UnavailableError("the metadata server is stopping");
  AskCachesBack(*mds, *session);
  co_return co_await EndSession(mds, session);
}

// Others wait for the session to be gone, so a store that refuses for a while must not leave it half evicted.
Task<Status> FinishEviction(MdsPtr mds, SessionPtr session, Client client) {
  Status status = co_await EvictFirst(mds, session, client);
  while (!status.ok() && !mds->closed) {
    LogError("evicting session %d failed, trying again: %s", session->id, std::string(status.message()));
    co_await mds->env.clock.Sleep(kStorePause);
    status = co_await EvictFirst(mds, session, client);
  }
  co_return status;
}

}  // namespace

Duration LeasesEnd(const Mds& mds, const Session& session) {
  return session.heard() + WithDrift(mds.options.lease);
}

Task<Status> Evict(MdsPtr mds, SessionPtr session, std::string reason, Client client) {
  if (!session->TryEnd()) {
    co_await mds->sessions.AwaitGone(session->id);
    co_return OkStatus();
  }
  LogWarning("session %d (%s) is evicted: %s", session->id, session->record.name, reason);
  proto::Push push;
  push.mutable_evicted()->set_reason(reason);
  session->Push(std::move(push));
  if (auto peer = session->peer()) peer->Close();
  co_return co_await FinishEviction(mds, session, client);
}

Status ResumeEvictions(const MdsPtr& mds) {
  return ForEachEntry(*mds->tables, TableKey(Table::kFence), [&](KvEntry& entry) -> Status {
    ByteReader key(std::string_view(entry.key).substr(1));
    SessionPtr session = mds->sessions.Find(key.Big<uint64_t>());
    if (session == nullptr || !session->TryEnd()) return OkStatus();
    LogWarning("session %d (%s): its eviction had begun before this start", session->id,
               session->record.name);
    Spawn(mds->env.executor, [](MdsPtr mds, SessionPtr session) -> Task<void> {
      Status status = co_await FinishEviction(mds, session, Client::kMayLive);
      if (!status.ok() && !mds->closed)
        LogError("evicting session %d failed: %s", session->id, std::string(status.message()));
    }(mds, session));
    return OkStatus();
  });
}

void DropHeld(Mds& mds, SessionId session) {
  mds.opens.DropSession(session);
  mds.file_locks.DropSession(session);
  mds.leases.DropSession(session);
}

Task<Status> EndSession(MdsPtr mds, SessionPtr session) {
  Status removed = co_await mds->sessions.Remove(session);
  while (!removed.ok() && !mds->closed) {
    LogError("removing session %d failed, trying again: %s", session->id, std::string(removed.message()));
    co_await mds->env.clock.Sleep(mds->options.heartbeat);
    removed = co_await mds->sessions.Remove(session);
  }
  CO_RETURN_IF_ERROR(removed);
  std::vector<Fid> files = mds->opens.FilesOf(session->id);
  DropHeld(*mds, session->id);
  for (const Fid& fid : files) CO_RETURN_IF_ERROR(co_await DestroyIfForgotten(mds, fid));
  co_return OkStatus();
}

StatusOr<std::vector<SessionId>> MissedFences(Mds& mds, OstIndex ost) {
  std::vector<SessionId> sessions;
  RETURN_IF_ERROR(ForEachEntry(*mds.tables, TableKey(Table::kFence), [&](KvEntry& entry) -> Status {
    ByteReader key(std::string_view(entry.key).substr(1));
    const SessionId session = key.Big<uint64_t>();
    const std::vector<OstIndex> pending = ParsePending(mds, session, entry.value);
    if (std::ranges::find(pending, ost) != pending.end()) sessions.push_back(session);
    return OkStatus();
  }));
  return sessions;
}

Task<Status> ForgetFences(MdsPtr mds, OstIndex ost) {
  for (KvPages<Tables> pages(*mds->tables, TableKey(Table::kFence)); pages.more();) {
    CO_ASSIGN_OR_RETURN(std::vector<KvEntry> entries, pages.Next());
    for (const KvEntry& entry : entries) {
      ByteReader key(std::string_view(entry.key).substr(1));
      const SessionId session = key.Big<uint64_t>();
      // That of a session which is being evicted just now is its eviction's to change. One whose eviction is
      // begun anew by a start (ResumeEvictions) is written anew by that, without this OST.
      const SessionPtr evicted = mds->sessions.Find(session);
      if (evicted != nullptr && !evicted->ended()) continue;
      if (evicted != nullptr) co_await mds->sessions.AwaitGone(session);
      auto now = mds->tables->Get(entry.key);
      if (absl::IsNotFound(now.status())) continue;
      CO_RETURN_IF_ERROR(now.status());
      std::vector<OstIndex> pending = ParsePending(*mds, session, *now);
      if (std::erase(pending, ost) == 0) continue;
      CO_RETURN_IF_ERROR(co_await StorePending(mds, session, std::move(pending)));
    }
  }
  co_return OkStatus();
}

Task<Status> CatchUpFences(MdsPtr mds, OstIndex ost) {
  for (KvPages<Tables> pages(*mds->tables, TableKey(Table::kFence)); pages.more();) {
    CO_ASSIGN_OR_RETURN(std::vector<KvEntry> entries, pages.Next());
    std::map<SessionId, std::vector<OstIndex>> missed;  // with the other OSTs that are to be told
    std::vector<SessionId> sessions;
    for (const KvEntry& entry : entries) {
      ByteReader key(std::string_view(entry.key).substr(1));
      const SessionId session = key.Big<uint64_t>();
      std::vector<OstIndex> pending = ParsePending(*mds, session, entry.value);
      if (std::erase(pending, ost) == 0) continue;
      sessions.push_back(session);
      missed[session] = std::move(pending);
    }
    CO_RETURN_IF_ERROR(co_await mds->osts.Fence(ost, std::move(sessions)));
    for (auto& [session, others] : missed) {
      // That of a session which is being evicted just now is its eviction's to change.
      if (mds->sessions.Find(session) != nullptr) continue;
      CO_RETURN_IF_ERROR(co_await StorePending(mds, session, std::move(others)));
    }
  }
  co_return OkStatus();
}

}  // namespace nacre::mds
