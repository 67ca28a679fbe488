// The OSS: serves the objects of its OSTs to the data plane and keeps the MGS informed. Composition hands in
// the seams. Thread-safe; work runs on the executor given.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/random.h"
#include "common/status.h"
#include "common/task.h"
#include "rpc/cluster_channel.h"
#include "server/kv/kv_store.h"
#include "server/object/block_store.h"
#include "transport/transport.h"

namespace nacre {

struct ObjectEnvironment {
  Executor executor;
  Clock& clock;
  Random& random;
  Transport& transport;
  std::shared_ptr<ClusterChannel> cluster;  // null: serve everybody without an MGS (tests)
};

struct OstDevices {  // must outlive the server
  OstIndex index = 0;
  KvStore* store = nullptr;
  BlockStore* blocks = nullptr;
  std::string directory;  // for messages
  uint32_t copies = 1;    // members that the OST is to have, each on a server of its own
};

struct ObjectOptions {
  std::string listen;              // transport address
  std::string advertise;           // what clients are told; empty: where it listens
  uint64_t pool_bytes = 64 << 20;  // buffers and read cache, for all OSTs
  Duration sync_interval = std::chrono::seconds(1);
  Duration heartbeat = std::chrono::seconds(1);
  // At which a head fills each member that joins its chain; 0: as fast as it can.
  uint64_t fill_bytes_per_second = 0;
  // How long after one scrub of a store the next is due (server/object/scrubber.h); 0: only when it is
  // ordered.
  Duration scrub_every{0};
  uint64_t scrub_bytes_per_second = 32 << 20;  // that each store reads at most; 0: as fast as it can
  std::string boot;  // names this boot of the machine: after another one what was not synced may be gone
  // Bugs planted for the simulation (docs/testing.md): never on otherwise.
  bool plant_commit_before_data = false;  // the checksum is committed before its data is written
  bool plant_early_sync = false;          // a sync is acknowledged before it is done
  bool plant_forget_losses = false;       // after a loss of power clients are told of none
  bool plant_leak_page = false;           // each call leaves one page of the pool taken
  bool plant_early_ack = false;           // a head does not wait for the members behind it
  bool plant_unagreed = false;    // a head goes on without a member before the MGS has taken that one out
  bool plant_unfenced = false;    // a head that is none any more goes on, and members take its changes
  bool plant_epochless = false;   // a member that joins is compared by its objects' numbers of changes alone
  bool plant_blind_mend = false;  // a scrub takes a bad block for good, and changes its checksum
};

class ObjectServer {
 public:
  virtual ~ObjectServer() = default;

  // Opens (formatting empty ones) the OSTs, recovers them, listens. Registers with the MGS in the background,
  // for ever; clients are served while the MGS's answers keep the lease alive (service_lease.h), the MDS
  // always.
  static Task<StatusOr<std::unique_ptr<ObjectServer>>> Start(ObjectEnvironment environment,
                                                             std::vector<OstDevices> osts,
                                                             ObjectOptions options);

  virtual std::string address() const = 0;
  virtual uint64_t instance() const = 0;  // of this process, as the MGS knows it

  // Arrives if the MGS does not take this server for what it is: an OST of another cluster, an index that
  // belongs to another OST. Not if it was registered before in this process; it keeps trying in any case.
  virtual const OneShot<Status>& refused() const = 0;

  // Arrives, with the reason, when the process is to be started again without Stop: a disk has failed to
  // flush, and only a start looks what of the unsynced changes it has.
  virtual const OneShot<Status>& begin_anew() const = 0;

  // Stops listening and background work, and syncs. Call before destruction, except to simulate a crash.
  virtual Task<Status> Stop() = 0;
};

// For the process beside an OSS that has seen it end (daemon/end_witness.h): tells the MGS that the process
// of that instance serves nobody any more, so that nobody waits until its lease is over. Tries for three
// seconds, which is a lease of a chain's head by default.
Task<Status> TellOfEnd(std::shared_ptr<ClusterChannel> cluster, Clock& clock, uint64_t instance);

}  // namespace nacre
