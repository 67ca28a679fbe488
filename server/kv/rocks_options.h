// The settings of a store's RocksDB: how it shares out its memory, and which of its own habits are turned
// off. Thread-safe.
#pragma once

#include <rocksdb/cache.h>
#include <rocksdb/options.h>

#include <memory>

#include "server/kv/rocks_kv.h"

namespace nacre {

// For blocks of tables: the store's memory without its memtables.
std::shared_ptr<rocksdb::Cache> NewRocksCache(const RocksKvOptions& options);

rocksdb::Options RocksOptions(const RocksKvOptions& options, std::shared_ptr<rocksdb::Cache> cache);

}  // namespace nacre
