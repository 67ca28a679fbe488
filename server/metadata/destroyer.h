// Works off the destroy queue: objects that no file has any more.
//
// The queue has its records by OST, and each OST a pass of its own, which may wait for that OST: one that is
// away or slow keeps no other from freeing space. Passes run in the background, over a page of records at a
// time; records go once the OST has destroyed their objects durably. Nothing is destroyed before the MDT's
// own record of it is durable: else a loss of power could bring a file back without its data. A record that
// cannot be read is logged once and left. Those of an OST that has been removed go without anybody being
// asked. Thread-safe.
#pragma once

#include <absl/container/flat_hash_set.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"
#include "common/task.h"
#include "server/kv/kv_store.h"
#include "server/metadata/records.h"

namespace nacre::mds {

struct Mds;

// Adds to the batch that these are to be destroyed once it is committed: all objects of a layout, or one.
void QueueDestroy(const Layout& layout, KvBatch* batch);
void QueueDestroy(OstIndex ost, const ObjectId& object, KvBatch* batch);

class Destroyer {
 public:
  // Starts a pass at each OST that is up and has records, unless one is under way there. To be called now and
  // then; waits for nothing.
  Status StartPasses(const std::shared_ptr<Mds>& mds);

  // At the start, before any pass: records of an earlier version, which were by file, become records by OST.
  static Task<Status> TakeUpRecordsByFile(std::shared_ptr<Mds> mds);

  // Objects in the queue; counts no further than some 65,536 records.
  static uint64_t QueuedObjects(Mds& mds);

 private:
  struct Queue {
    bool busy = false;
    Duration not_before{0};  // after a failure
  };

  bool Begin(OstIndex ost, Duration now);
  void End(OstIndex ost, Duration not_before);
  static Task<void> RunPass(std::shared_ptr<Mds> mds, OstIndex ost);
  static Task<Status> Pass(std::shared_ptr<Mds> mds, OstIndex ost);
  std::vector<ObjectId> ObjectsOf(const std::vector<KvEntry>& page, KvBatch* done);

  std::mutex mutex_;
  std::map<OstIndex, Queue> queues_;
  absl::flat_hash_set<std::string> reported_;  // keys of records that cannot be read
};

}  // namespace nacre::mds
