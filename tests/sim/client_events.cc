// Faults of clients: they end, stand still, are cut off and evicted. The others go on, and lose nothing.

#include "tests/sim/scenario.h"

namespace nacre::sim {

// Its applications stop, and what its write-behind held is gone.
void Scenario::CrashClient() { EndClient(PickClient(), cluster_.HeldUpSince() - kClientLoss); }

// A client is cut off from the MDS and from some of the OSSes.
void Scenario::CutOff(int index) {
  const int node = cluster_.client(index);
  workload_.CutOff(index);
  for (int server = 0; server < cluster_.client(0); ++server) {
    if (!cluster_.is_mds(server) && world_.random().OneIn(2)) continue;  // it still reaches this OSS
    network_.Cut(node, server);
    network_.Cut(server, node);
  }
}

// A client is cut off until it is evicted, and ends only then, or when it has gone on in another session. One
// that was alone until then, and answered from what it knew, must know nothing any more when the others come
// and change it.
void Scenario::EvictClient() {
  const int index = PickClient();
  const bool alone = shape_.cluster.clients > 1 && world_.random().OneIn(2);
  if (alone) EndOthers(index);
  if (failed()) return;
  CutOff(index);
  if (alone) {
    BootDown();
    if (!WaitReady("beside a client that is cut off")) return;
    workload_.Resume();
    for (int i = 0; i < shape_.cluster.clients; ++i) {
      if (i != index) workload_.Start(i);
    }
  }
  Work(shape_.cluster.metadata.session_timeout + 5s);
  const Duration since = world_.clock().Now() - kClientLoss - shape_.cluster.metadata.session_timeout - 14s;
  if (world_.random().OneIn(2)) {
    network_.Heal();
    if (!WaitAnswers(index, "that was cut off")) return;
  }
  EndClient(index, since);
}

// Waits for an answer of a client that nothing stops any more: evicted or not, it must go on by itself
// (client/eviction.cc).
bool Scenario::WaitAnswers(int index, const char* which) {
  if (failed()) return false;
  auto ask = [](client::FileSystem* filesystem) -> Task<Status> {
    co_return (co_await filesystem->Getattr(client::Caller{}, kRootFid, nullptr)).status();
  };
  const std::string what = absl::StrFormat("asking for the root by a client %s", which);
  Process* process = cluster_.process(cluster_.client(index));
  return Await(process, ask(&cluster_.filesystem(index)), what.c_str()).ok();
}

// The others leave, and this client works alone until it has nothing left that the servers do not know.
void Scenario::EndOthers(int index) {
  if (!Quiesce()) return;
  for (int i = 0; i < shape_.cluster.clients && !failed(); ++i) {
    if (i == index) continue;
    workload_.Dies(i);
    cluster_.Shutdown(cluster_.client(i), kPatience);
  }
  if (failed()) return;
  workload_.Resume();
  workload_.Start(index);
  Work(1s + UpTo(2s));
  if (!Quiesce()) return;
  Work(kClientLoss);
  // A truncation is held back for as long as the file is open and empty.
  if (ClientState* client = workload_.client(index); client != nullptr && !failed())
    (void)Await(client->process, TakeErrors(&workload_, client), "fsync of everything");
}

// The same while an OSS is away: that must not keep the eviction from its end.
void Scenario::EvictWithoutOss() {
  const Duration begin = cluster_.HeldUpSince();
  const int oss =
      cluster_.oss(static_cast<int>(world_.random().Below(static_cast<uint64_t>(shape_.cluster.osses))));
  cluster_.Crash(oss, Loss::kProcess);
  const int index = PickClient();
  CutOff(index);
  Work(shape_.cluster.metadata.session_timeout);
  (void)WaitEvicted(shape_.cluster.clients - 1);
  if (failed()) return;
  cluster_.Boot(oss);
  Work(15s);  // the MDS asks it how far the files reach that the client wrote
  EndClient(index, begin - kClientLoss);
}

// A client's process stands still (a stopped daemon, a frozen container) while its machine goes on answering
// for its connections. The others go on without it; when it runs again it has been evicted, or not.
void Scenario::FreezeClient() {
  const Duration begin = cluster_.HeldUpSince();
  const int index = PickClient();
  Process* process = cluster_.process(cluster_.client(index));
  workload_.Failing(index);
  process->Freeze(true);
  const uint64_t done = workload_.done();
  const Duration frozen = UpTo(3 * (shape_.cluster.metadata.session_timeout + 5s));
  Work(frozen);
  if (failed()) return;
  const bool others = shape_.cluster.clients > 1 && !shape_.workload.sequential;
  const bool stuck = workload_.done() == done && workload_.OthersWork(index);
  if (others && frozen > 2 * shape_.cluster.metadata.session_timeout && stuck)
    return world_.Fail(absl::StrFormat("hang: nobody goes on beside a client that is frozen for %d s",
                                       std::chrono::duration_cast<std::chrono::seconds>(frozen).count()));
  process->Freeze(false);
  Work(UpTo(3s));
  if (!WaitAnswers(index, "that was frozen")) return;
  EndClient(index, std::min(begin, world_.clock().Now() - frozen - 10s) - kClientLoss);
}

int Scenario::PickClient() {
  return static_cast<int>(world_.random().Below(static_cast<uint64_t>(shape_.cluster.clients)));
}

// The client's process ends. Changes that it had answered before `since`, and nobody has lost meanwhile, must
// be there.
void Scenario::EndClient(int index, Duration since) {
  if (failed()) return;
  orphans_allowed_ = true;
  workload_.Dies(index);
  cluster_.Crash(cluster_.client(index), Loss::kProcess);
  network_.Heal();
  cluster_.Boot(cluster_.client(index));
  if (!Quiesce() || !WaitReady("after the crash of a client")) return;
  WaitSizes(WaitEvicted(shape_.cluster.clients));
  if (failed()) return;
  Model::Losses losses;
  losses.may_be_lost = [index, since](const FileChange& change) {
    return !change.acknowledged ||
           (!change.durable && change.lazy && change.client == index && change.at >= since);
  };
  losses.may_wait = [index](const FileChange& change) {
    return !change.durable && change.lazy && change.client == index;
  };
  losses.replaced_whole = true;
  losses.early = true;
  workload_.NoteDone();  // of the others
  Settle(losses);
  TakeAllErrors();
  if (!failed()) ResumeClients();
}

}  // namespace nacre::sim
