// Works off the destroy queue: objects of files that are gone. In the background, in batches, per OST and
// around OSTs that are away; what is done is taken off the queue once the OST has it on stable storage.
// Nothing is destroyed before the MDT's own record of it is durable: else a loss of power could bring a file
// back without its data. Thread-safe.
#pragma once

#include <absl/container/flat_hash_set.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "common/ids.h"
#include "common/status.h"
#include "common/task.h"

namespace nacre::mds {

struct Mds;

class Destroyer {
 public:
  // Objects of this sequence are being written (truncate.h, MoveOut): leave them although they are in the
  // queue.
  void Hold(uint64_t sequence);
  void Release(uint64_t sequence);

  // One pass over the queue, by one caller at a time. True: something is left.
  Task<StatusOr<bool>> Pass(std::shared_ptr<Mds> mds);

  uint64_t QueuedObjects() const { return queued_; }  // as of the last pass

 private:
  // A scan shows the queue as it was at one moment. A record in it may have been taken off since, and its
  // objects belong to a file now: so what was held at any time since the scan began is left for the next
  // pass.
  void BeginScan();
  bool WasHeld(uint64_t sequence) const;

  mutable std::mutex mutex_;
  absl::flat_hash_set<uint64_t> held_;
  absl::flat_hash_set<uint64_t> released_;  // since the last scan began
  std::atomic<uint64_t> queued_{0};
};

}  // namespace nacre::mds
