// The way back from several MDSes to one: a copy of the MDT becomes the MDT of a filesystem of one MDS.
//
// A store with the records of a copy is never served by itself: the other copies would go on without it, and
// there would be two histories of which OSTs and clients know parts. A store that was a copy and is alone now
// keeps the epoch, because OSSes obey no MDS of a lower one than they have heard of.
#pragma once

#include <string>

#include "common/status.h"
#include "common/task.h"
#include "server/kv/kv_store.h"

namespace nacre::replication {

// The epoch that an MDT had when it left several MDSes, or was restored from a backup; 0: none. A first
// primary over it begins a higher one.
StatusOr<uint64_t> StoredEpoch(KvStore& store);

// For a filesystem of one MDS: the epoch in which it serves this store (StoredEpoch).
// FAILED_PRECONDITION: it is a copy; the message names `directory` and says what to do.
StatusOr<uint64_t> EpochOfAlone(KvStore& store, const std::string& directory);

// Takes the records of a copy away, on stable storage, and returns the new epoch. Nobody else has the store
// open. FAILED_PRECONDITION: it is no copy, or one that is not whole.
Task<StatusOr<uint64_t>> MakeAlone(KvStore* store);

}  // namespace nacre::replication
