// RocksDB's newest entries in an EntryTree (entry_tree.h) instead of its own list.
//
// For stores whose keys are compared byte by byte, and with allow_concurrent_memtable_write off. The files
// that RocksDB keeps do not depend on it: a store can be opened with either.
#pragma once

#include <rocksdb/memtablerep.h>

#include <memory>

namespace nacre {

std::shared_ptr<rocksdb::MemTableRepFactory> NewTreeMemtables();

}  // namespace nacre
