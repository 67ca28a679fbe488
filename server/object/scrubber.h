// Scrubs one store: reads everything that it has from the disk, in the background and at a limited rate, to
// find what has gone bad before somebody needs it (docs/replication.md, "Scrubbing").
//
// Every member of a chain that is in sync reads its own blocks and compares them with their checksums. A bad
// one is written anew from the read cache or another member; one that nobody else has is reported, and
// reading it goes on failing with EIO. The head also compares what the members have mapped, by checksums and
// not by bytes: a member that has something else in an object of the same version is taken out of the chain
// and filled anew.
//
// A scrub begins when it is due (ObjectOptions::scrub_every after the last one), or when an administrator
// orders it. How far it is stands in the store, so that a restart goes on with it. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "common/ids.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/cluster.pb.h"
#include "server/object/aligned_buffer.h"
#include "server/object/object_store.h"

namespace nacre::ost {

class Chain;
class ServerCore;

// The state of a store's scrubs, as it is stored (proto/FORMAT.md, "Scrub record").
struct ScrubRecord {
  std::optional<ObjectId> after;  // of the scrub that is running: the last object that it has looked through
  proto::ScrubState state;
};
std::string Encode(const ScrubRecord& record);
StatusOr<ScrubRecord> ParseScrubRecord(std::string_view value);

class Scrubber {
 public:
  // `chain` may be null: the OST has one member. All of them outlive this.
  Scrubber(ServerCore* core, ObjectStore* store, Chain* chain) : core_(core), store_(store), chain_(chain) {}

  // Reads the store's record. Before anything else.
  Status Load();
  // Begins to scrub whenever it is time to, until the server stops.
  void Start();
  // Does what the order says, unless it was taken before.
  void Take(const proto::ScrubOrder& order);
  proto::ScrubState State() const;

 private:
  void Wake();
  static Task<void> Run(std::shared_ptr<ServerCore> core, Scrubber* scrubber);
  bool MayEnd();
  bool Begin();
  bool May() const;
  bool GoesOn() const;
  Task<void> Scrub();
  Task<Status> LookThroughAll();
  Task<Status> LookThrough(const ObjectId& id);
  Task<Status> VerifyBlocks(const ObjectId& id, uint64_t first, uint64_t count);
  Task<Status> Mend(const ObjectId& id, const ObjectStore::Damaged& damaged);
  Task<Status> CompareCopies(const ObjectId& id, uint64_t first, uint64_t count);
  Task<void> KeepToRate(uint64_t bytes);
  Task<void> Note();
  void End(bool whole);

  ServerCore* const core_;
  ObjectStore* const store_;
  Chain* const chain_;
  AlignedBuffer buffer_;  // the running scrub's own

  mutable std::mutex mutex_;
  bool runs_ = false;
  ScrubRecord record_;
  bool ordered_ = false;       // a scrub from the beginning, not yet begun
  bool stop_ordered_ = false;  // the one that is running is to end
  uint64_t rate_ = 0;          // of the order; 0: the configured one
  // Since when the rate counts, and the bytes that were read since.
  Duration paced_since_{0};
  uint64_t paced_bytes_ = 0;
};

}  // namespace nacre::ost
