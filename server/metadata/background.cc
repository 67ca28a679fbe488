#include "server/metadata/background.h"

#include "common/log.h"
#include "server/metadata/eviction.h"

namespace nacre::mds {
namespace {

constexpr Duration kOrphanGrace = std::chrono::seconds(5);
constexpr Duration kOrphanPeriod = std::chrono::seconds(60);

Task<Status> NotRunning() { co_return absl::UnavailableError("the metadata server is stopping"); }

Task<void> SyncLoop(MdsPtr mds) {
  while (!mds->closed) {
    co_await mds->env.clock.Sleep(mds->options.sync_interval);
    if (mds->closed) co_return;
    if (!mds->tables->HasUnsynced()) continue;
    Status status = co_await mds->tables->Sync();
    if (!status.ok() && !mds->closed) LogError("syncing the MDT failed: %s", std::string(status.message()));
  }
}

Task<void> HeartbeatLoop(MdsPtr mds) {
  while (!mds->closed) {
    co_await mds->env.clock.Sleep(mds->options.heartbeat);
    if (!mds->closed) mds->osts.CheckHeartbeats();
  }
}

Task<void> DestroyLoop(MdsPtr mds) {
  while (!mds->closed) {
    co_await mds->env.clock.Sleep(mds->options.sync_interval);
    if (mds->closed) co_return;
    Status started = mds->destroyer.StartPasses(mds);
    if (!started.ok() && !mds->closed)
      LogError("the destroy queue cannot be read: %s", std::string(started.message()));
  }
}

Task<void> EvictAndLog(MdsPtr mds, SessionPtr session, std::string reason) {
  Status status = co_await Evict(mds, session, std::move(reason));
  if (!status.ok() && !mds->closed) {
    LogError("evicting session %d failed: %s", session->id, std::string(status.message()));
  }
}

// Side by side: each takes its time.
Task<void> EvictMissing(MdsPtr mds) {
  std::vector<Task<Unit>> evictions;
  for (const SessionPtr& session : mds->sessions.All()) {
    if (session->whole()) continue;
    evictions.push_back([](MdsPtr mds, SessionPtr session) -> Task<Unit> {
      co_await EvictAndLog(mds, session, "it did not come back after a restart of the MDS");
      co_return Unit{};
    }(mds, session));
  }
  co_await WhenAll(std::move(evictions));
}

Task<void> SessionLoop(MdsPtr mds) {
  while (!mds->closed) {
    co_await mds->env.clock.Sleep(mds->options.heartbeat);
    mds->listening.Look();
    if (mds->closed || mds->Recovering()) continue;
    for (const SessionPtr& session : mds->sessions.All()) {
      if (session->ended() || mds->listening.Now() - session->heard() < mds->options.session_timeout)
        continue;
      Spawn(mds->env.executor, EvictAndLog(mds, session, "it was silent for too long"));
    }
  }
}

// Tells an OST what it must know before it serves clients (evictions that it has missed). Then asks it, for a
// few seconds at most, how far files reach whose writers were evicted while it was away.
Task<Status> Admit(MdsPtr mds, OstIndex ost) {
  CO_RETURN_IF_ERROR(co_await CatchUpFences(mds, ost));
  Status sizes = co_await mds->writer_recovery.Recover(mds, ost, 0, RecoveryPass::kWaitedFor);
  if (!sizes.ok()) LogWarning("sizes of files on OST %d: %s", ost, std::string(sizes.message()));
  co_return OkStatus();
}

Task<void> RecoveryLoop(MdsPtr mds) {
  constexpr Duration kStep = std::chrono::milliseconds(100);
  const Duration began = mds->listening.Now();
  while (!mds->closed && mds->Recovering()) {
    mds->listening.Look();
    const bool over = mds->listening.Now() - began >= mds->options.recovery_window;
    if (over) co_await EvictMissing(mds);
    if (over || mds->sessions.AllWhole())
      mds->sessions.recovery().Open();
    else
      co_await mds->env.clock.Sleep(kStep);
  }
  if (mds->closed) co_return;
  // Clients repeat what was unanswered once they are back: an unlink of a file that they keep open may be
  // among it.
  co_await mds->env.clock.Sleep(kOrphanGrace);
  if (!mds->closed) co_await SweepOrphans(mds);
}

// Opens end by Close, and with their session. Anything else that keeps an orphan (an open whose reply was
// lost, and which the client has not repeated) ends with the client's next Reclaim, and then the orphan is
// removed here.
Task<void> OrphanLoop(MdsPtr mds) {
  while (!mds->closed) {
    co_await mds->env.clock.Sleep(kOrphanPeriod);
    if (mds->closed) co_return;
    if (!mds->Recovering() && !mds->MayBeRepeating()) co_await SweepOrphans(mds);
  }
}

}  // namespace

void StartBackground(const MdsPtr& mds) {
  mds->osts.SetOnChange([weak = std::weak_ptr<Mds>(mds)](const proto::ClusterMap& map) {
    proto::Push push;
    *push.mutable_map() = map;
    if (MdsPtr mds = weak.lock()) mds->sessions.Broadcast(push);
  });
  mds->osts.SetAdmit([weak = std::weak_ptr<Mds>(mds)](OstIndex ost) -> Task<Status> {
    MdsPtr mds = weak.lock();
    if (mds == nullptr) return NotRunning();
    return Admit(std::move(mds), ost);
  });
  mds->osts.SetMissed([weak = std::weak_ptr<Mds>(mds)](OstIndex ost) -> StatusOr<std::vector<SessionId>> {
    MdsPtr mds = weak.lock();
    if (mds == nullptr || mds->closed) return absl::UnavailableError("the metadata server is stopping");
    return MissedFences(*mds, ost);
  });
  mds->osts.SetHold([weak = std::weak_ptr<Mds>(mds)] { return std::shared_ptr<void>(weak.lock()); });
  Spawn(mds->env.executor, SyncLoop(mds));
  Spawn(mds->env.executor, HeartbeatLoop(mds));
  Spawn(mds->env.executor, RecoveryLoop(mds));
  Spawn(mds->env.executor, OrphanLoop(mds));
  Spawn(mds->env.executor, DestroyLoop(mds));
  Spawn(mds->env.executor, SessionLoop(mds));
  Spawn(mds->env.executor, SettleTails(mds));
  Spawn(mds->env.executor, mds->writer_recovery.Run(mds));
  for (OstIndex ost : mds->osts.Known())
    if (mds->osts.UseOf(ost) == cluster::OstUse::kDraining) mds->drainer.Wake(mds);
  mds->rebalancer.Resume(mds);
  Spawn(mds->env.executor, mds->writer_recovery.RunAfterLoss(mds));
}

}  // namespace nacre::mds
