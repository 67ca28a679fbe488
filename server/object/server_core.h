// The inside of an ObjectServer, shared by its background work and the requests in progress, each of which
// keeps it alive. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "server/object/chain.h"
#include "server/object/chain_buffers.h"
#include "server/object/object_server.h"
#include "server/object/object_store.h"
#include "server/object/scrubber.h"
#include "server/object/service_lease.h"
#include "server/object/sessions.h"

namespace nacre::ost {

struct Target {  // one OST
  std::unique_ptr<ObjectStore> store;
  std::unique_ptr<Sessions> sessions;
  uint32_t copies = 1;           // members that the OST is to have
  std::unique_ptr<Chain> chain;  // null: it has one
  std::unique_ptr<Scrubber> scrubber;
};

class ServerCore : public std::enable_shared_from_this<ServerCore> {
 public:
  ServerCore(ObjectEnvironment environment, ObjectOptions options)
      : environment(std::move(environment)), options(std::move(options)) {}

  // null: this OSS has no such OST.
  Target* Find(OstIndex index);

  bool stopping() const { return stopping_.load(); }
  // Background work ends soon; new requests are refused.
  void BeginStop();
  // After BeginStop: when nothing is running any more.
  Task<void> Drained();

  // Sleeps, or less when the server stops.
  Task<void> Pause(Duration duration);

  // One per request and per background loop, while it lasts.
  class Running {
   public:
    explicit Running(std::shared_ptr<ServerCore> core);
    ~Running();
    Running(const Running&) = delete;

   private:
    std::shared_ptr<ServerCore> core_;
  };

  const ObjectEnvironment environment;
  const ObjectOptions options;
  uint64_t instance = 0;
  std::string address;  // as clients are told
  std::shared_ptr<BufferPool> pool;
  ChainBuffers chain_buffers;
  std::vector<Target> targets;
  ServiceLease lease;          // whether clients are served
  OneShot<Status> refused;     // by the MGS, for good
  OneShot<Status> begin_anew;  // ObjectServer::begin_anew
  std::set<OstIndex> removed;  // from the cluster; the heartbeats' own

 private:
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  size_t running_ = 0;
  std::vector<OneShot<Unit>> drained_;
  std::vector<OneShot<Unit>> pauses_;
};

// Takes the MDS of this epoch for the primary: the OSTs of this server refuse those of earlier ones from now
// on, also after a restart. ESTALE: a later one has been heard of. Fails if the record of it cannot be stored
// in the OST that is asked; of an answer of the MGS (null) if in none: at a start the OSTs tell each other.
Task<Status> ObeyPrimary(std::shared_ptr<ServerCore> core, uint64_t mdt_epoch, const Target* asked);

// OK: an answer of the MGS given in this epoch counts. UNAVAILABLE: it does not, it comes from a primary of
// the past.
Task<Status> CheckAnswer(std::shared_ptr<ServerCore> core, uint64_t mdt_epoch);
// The same of an answer that a commit may wait for: does not wait until those of the primary before have
// ended.
Status CheckMdtEpoch(ServerCore& core, uint64_t mdt_epoch);

// Refuses what primaries of earlier epochs ask for from now on, until the process ends. ESTALE as above.
Status HearOfPrimary(ServerCore& core, uint64_t mdt_epoch);

// Answers one call.
Task<void> HandleCall(std::shared_ptr<ServerCore> core, std::shared_ptr<IncomingCall> call);

// Registers with the MGS, and again whenever it does not know us; heartbeats between.
Task<void> RunHeartbeats(std::shared_ptr<ServerCore> core);

// Syncs one OST every interval and gives empty space back.
Task<void> RunMaintenance(std::shared_ptr<ServerCore> core, size_t target);

}  // namespace nacre::ost
