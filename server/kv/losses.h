// How often a store may have lost what it had committed but not synced: a loss of power, a crash of the
// operating system, a flush that failed. The end of a process alone loses nothing, so a start within the same
// boot of the machine counts as none, and one after a clean end neither.
//
// One record in the store, under a key of the owner's choice: u64 losses, u8 1 after a clean end, the boot's
// name. Servers tell the count to their clients, who then know whether what they have not seen synced may be
// gone. Functions without state; one caller at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"
#include "common/task.h"
#include "server/kv/kv_store.h"

namespace nacre {

struct LossRecord {
  uint64_t losses = 0;
  bool clean = false;
  std::string boot;
};
std::string EncodeLossRecord(const LossRecord& record);
StatusOr<LossRecord> ParseLossRecord(std::string_view value);  // DATA_LOSS

// At the start, before anything is answered: the count as of now, on stable storage. `boot` names this boot
// of the machine.
Task<StatusOr<uint64_t>> CountLosses(KvStore* store, std::string key, std::string boot);

// Whether the store may have lost something since it was open last: then CountLosses, which is still to come,
// will count it. True as well where that cannot be known: `boot` is empty, or there is no record.
StatusOr<bool> MayHaveLost(KvStore* store, std::string key, std::string_view boot);

// Something may be lost though the machine goes on: a disk has refused to flush what it had taken. The next
// start counts it, in whichever boot.
Task<Status> SuspectLoss(KvStore* store, std::string key);

// The count becomes this one, on stable storage: the store has got what another one has.
Task<Status> SetLosses(KvStore* store, std::string key, uint64_t losses);

// At the end, behind the last sync: nothing will be committed any more.
Task<Status> EndClean(KvStore* store, std::string key);

}  // namespace nacre
