// The MDS: namespace, sessions, leases and locks over a KvStore, with the MGS beside it. Composition
// (daemon/, tests/sim) hands in the seams; whatever carries messages calls Handle and the ClusterHandler's
// methods. Thread-safe; work runs on the executor given.
#pragma once

#include <memory>

#include "common/clock.h"
#include "common/random.h"
#include "common/status.h"
#include "common/task.h"
#include "rpc/cluster_channel.h"
#include "rpc/mds_front.h"
#include "rpc/metadata_channel.h"
#include "server/kv/kv_store.h"
#include "transport/transport.h"

namespace nacre {

struct MetadataEnvironment {
  Executor executor;
  Clock& clock;
  Random& random;
  KvStore& store;
  Transport& transport;                  // to the OSSes: destroy, truncate, move-out, fence
  const Authority* authority = nullptr;  // of the copies (docs/decisions/0066); null: there is one MDS
};

struct MetadataOptions {
  uint32_t inline_limit = 16 << 10;  // bytes; 0: no inline data
  uint64_t record_bytes = 64 << 20;  // memory for inodes and names that are kept beside the store
  // How long a client may rely on what it holds after it has sent a keep-alive that was answered
  // (common/lease_time.h). Nobody else gets it sooner, however the client was lost.
  Duration lease = std::chrono::seconds(10);
  Duration session_timeout = std::chrono::seconds(30);  // silent for so long: evicted
  Duration recovery_window =
      std::chrono::seconds(30);  // after a restart: how long old sessions are waited for
  // An unanswered revocation evicts after so long. Longer than an attempt of a call to an OST.
  Duration revoke_timeout = std::chrono::seconds(45);
  // After a lease had to be revoked, the directory is left without for so long at most (peace.h): where
  // several change and look at the same directory, a request to the MDS costs each of them less than a
  // revocation.
  Duration peace = std::chrono::seconds(5);
  Duration sync_interval = std::chrono::seconds(1);  // how much a loss of power may take (DESIGN §8.3)
  // Of the OSSes. After five missed ones an OST is down; after ten its OSS serves no client any more.
  Duration heartbeat = std::chrono::seconds(1);
  // Bytes a second that are moved off OSTs that are being drained, and as many to spread files over OSTs.
  uint64_t drain_rate = 100 << 20;
  uint64_t promised_bytes = 16 << 20;  // what a session may hold back of small files, at most
  std::string boot;  // names this boot of the machine: after another one what was not synced may be gone
  // Of the copies (docs/decisions/0066), in which this MDS is primary: said to the OSSes. 0: there is one
  // MDS.
  uint64_t epoch = 0;
  bool leases = true;  // false: nobody gets leases of directories
  // Bugs planted for the simulation (docs/testing.md): never on otherwise.
  bool plant_repeat_twice = false;     // a repeated mutation is carried out again
  bool plant_no_recall = false;        // a change of data is answered while others still have pages of it
  bool plant_uncovered = false;        // a change does not wait for the leases of directories that cover it
  bool plant_overlooked = false;       // a request reads what another session has changed and not told
  bool plant_listed = false;           // a listing tells attributes that another session may have changed
  bool plant_unasked_removal = false;  // a file is removed though another session has WRITE of it
  bool plant_unsettled_tail = false;   // a layout is given out before the file's tail is in the objects
  bool plant_same_generation = false;  // a tail begins and the layout keeps its generation
  bool plant_unlocked = false;         // an operation does not wait for others that change the same inodes
  bool plant_stays_complete = false;   // a directory is taken for complete though names of it were evicted
  bool plant_no_reserve = false;       // the server's own records take nothing of a full MDT's reserve
  bool plant_keep_intent = false;      // the intent of a move-out stays when it is done
  bool plant_blind_migration = false;  // a file gets its new objects though the old ones have changed
  bool plant_unrecalled_migration = false;  // a file gets its new objects while clients have leases of it
  bool plant_patient_fence = false;         // an eviction waits for an OSS that is away
};

class MetadataServer : public MetadataHandler, public ClusterHandler {
 public:
  // Opens the MDT in the store, formatting an empty one. FAILED_PRECONDITION for another format's version;
  // DATA_LOSS for a damaged one.
  static Task<StatusOr<std::unique_ptr<MetadataServer>>> Start(MetadataEnvironment environment,
                                                               MetadataOptions options);

  // Stops background work and syncs. Call before destruction, except to simulate a crash.
  virtual Task<Status> Stop() = 0;
};

}  // namespace nacre
