#include "server/metadata/eviction.h"

#include <sys/stat.h>

#include "common/log.h"
#include "server/metadata/object_io.h"
#include "server/metadata/size_recovery.h"
#include "server/metadata/truncate.h"

namespace nacre::mds {
namespace {

// A fence record: the OSTs that have not been told yet, in the form of a destroy record's groups.
std::string EncodePending(const std::vector<OstIndex>& osts) {
  DestroyRecord record;
  record.groups = osts;
  return EncodeDestroy(record);
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

struct Fenced {
  OstIndex ost = 0;
  bool done = false;
};

// Until it is done, or the OST is down.
Task<Fenced> FenceAt(MdsPtr mds, OstIndex ost, SessionId session) {
  Fenced fenced;
  fenced.ost = ost;
  while (!mds->closed && mds->osts.IsUp(ost)) {
    Status status = co_await mds->osts.Fence(ost, session);
    fenced.done = status.ok();
    if (fenced.done) break;
    LogWarning("fencing session %d at OST %d failed, trying again: %s", session, ost,
               std::string(status.message()));
    co_await mds->env.clock.Sleep(mds->options.heartbeat);
  }
  co_return fenced;
}

Task<Status> FenceEverywhere(MdsPtr mds, SessionId session) {
  std::vector<OstIndex> known = mds->osts.Known();
  CO_RETURN_IF_ERROR(co_await StorePending(mds, session, known));
  std::vector<Task<Fenced>> tasks;
  for (OstIndex ost : known) tasks.push_back(FenceAt(mds, ost, session));
  std::vector<OstIndex> pending;
  for (const Fenced& fenced : co_await WhenAll(std::move(tasks))) {
    if (!fenced.done) pending.push_back(fenced.ost);
  }
  if (mds->closed) co_return absl::UnavailableError("the metadata server is stopping");
  co_return co_await StorePending(mds, session, std::move(pending));
}

Task<Status> EvictFirst(MdsPtr mds, SessionPtr session, std::string reason) {
  LogWarning("session %d (%s) is evicted: %s", session->id, session->record.name, reason);
  proto::Push push;
  push.mutable_evicted()->set_reason(reason);
  session->Push(std::move(push));
  if (auto peer = session->peer()) peer->Close();
  CO_RETURN_IF_ERROR(co_await FenceEverywhere(mds, session->id));
  // What it had open is known only of a session that came back and held no lease on everything.
  bool unknown = !session->whole() || !mds->leases.HoldersOf(kFilesystemFid).empty();
  if (unknown) CO_RETURN_IF_ERROR(co_await RequestSizeScan(mds));
  for (const Fid& fid : mds->opens.WrittenBy(session->id)) {
    Status status = co_await RecoverSize(mds, fid);
    if (!status.ok())
      LogWarning("the size of %s could not be recovered: %s", fid.ToString(), std::string(status.message()));
  }
  co_return co_await EndSession(mds, session);
}

}  // namespace

Task<Status> Evict(MdsPtr mds, SessionPtr session, std::string reason) {
  if (!session->TryEnd()) {
    co_await mds->sessions.AwaitGone(session->id);
    co_return OkStatus();
  }
  // Others wait for it to be gone, so a store that refuses for a while (a full disk) must not leave it half
  // evicted.
  Status status = co_await EvictFirst(mds, session, reason);
  while (!status.ok() && !mds->closed) {
    LogError("evicting session %d failed, trying again: %s", session->id, std::string(status.message()));
    co_await mds->env.clock.Sleep(mds->options.heartbeat);
    status = co_await EvictFirst(mds, session, reason);
  }
  co_return status;
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
  mds->opens.DropSession(session->id);
  mds->file_locks.DropSession(session->id);
  mds->leases.DropSession(session->id);
  for (const Fid& fid : files) CO_RETURN_IF_ERROR(co_await DestroyIfForgotten(mds, fid));
  Spawn(mds->env.executor, [](MdsPtr mds) -> Task<void> {
    if (!mds->closed) co_await mds->filesystem_lease.OfferToLast(mds);
  }(mds));
  co_return OkStatus();
}

Task<Status> CatchUpFences(MdsPtr mds, OstIndex ost) {
  constexpr size_t kMaxFences = 65536;
  std::string from = TableKey(Table::kFence);
  CO_ASSIGN_OR_RETURN(auto entries, mds->tables->Scan(from, PrefixEnd(from), kMaxFences));
  for (const KvEntry& entry : entries) {
    ByteReader key(std::string_view(entry.key).substr(1));
    SessionId session = key.Big<uint64_t>();
    CO_ASSIGN_OR_RETURN(DestroyRecord record, ParseDestroy(entry.value));
    if (std::erase(record.groups, ost) == 0) continue;
    CO_RETURN_IF_ERROR(co_await mds->osts.Fence(ost, session));
    SessionPtr still_here = mds->sessions.Find(session);
    if (still_here == nullptr) CO_RETURN_IF_ERROR(co_await StorePending(mds, session, record.groups));
  }
  co_return OkStatus();
}

Task<Status> RecoverSize(MdsPtr mds, Fid fid) {
  auto peek = mds->tables->GetInode(fid);
  if (absl::IsNotFound(peek.status())) co_return OkStatus();
  CO_RETURN_IF_ERROR(peek.status());
  if (!S_ISREG((*peek)->mode) || (*peek)->inline_data) co_return OkStatus();
  Layout layout = (*peek)->layout;
  CO_ASSIGN_OR_RETURN(ObjectSizes sizes, co_await MeasureObjects(mds, layout));
  FidLocks::Guard guard = co_await LockQuiet(*mds, fid);
  Transaction transaction(*mds->tables);
  auto inode = transaction.Load(fid);
  if (absl::IsNotFound(inode.status())) co_return OkStatus();
  CO_RETURN_IF_ERROR(inode.status());
  bool same = (*inode)->layout == layout &&
              !(*inode)->inline_data;  // else it was truncated meanwhile, which settles it
  if (!same || sizes.end <= (*inode)->size) co_return OkStatus();
  LogInfo("%s reaches to %d by its objects, not to %d", fid.ToString(), sizes.end, (*inode)->size);
  transaction.Dirty(*inode);
  (*inode)->size = sizes.end;
  (*inode)->blocks = sizes.blocks;
  TouchModified(*inode, mds->env.clock.Wall());
  co_return co_await mds->tables->Commit(&transaction);
}

}  // namespace nacre::mds
