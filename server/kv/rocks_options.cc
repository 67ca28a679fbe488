#include "server/kv/rocks_options.h"

#include <rocksdb/convenience.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/listener.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <utility>

#include "server/kv/rocks_memtable.h"

namespace nacre {
namespace {

constexpr int kMemtables = 3;  // with those that are being written out

// Else RocksDB would try to recover in a thread of its own (see RocksKv in rocks_kv.cc).
class NoRecoveryByItself : public rocksdb::EventListener {
 public:
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status, bool* recover) override {
    *recover = false;
  }
};

uint64_t MemtableBytes(const RocksKvOptions& options) {
  return std::clamp<uint64_t>(options.memory_bytes / 8, 1 << 20, 64 << 20);
}

}  // namespace

std::shared_ptr<rocksdb::Cache> NewRocksCache(const RocksKvOptions& options) {
  const uint64_t memtables = kMemtables * MemtableBytes(options);
  const uint64_t bytes = options.memory_bytes > memtables ? options.memory_bytes - memtables : 1 << 20;
  return rocksdb::NewLRUCache(bytes, /*num_shard_bits=*/4);
}

rocksdb::Options RocksOptions(const RocksKvOptions& options, std::shared_ptr<rocksdb::Cache> cache) {
  rocksdb::Options out;
  const uint64_t memtable = MemtableBytes(options);
  out.create_if_missing = !options.read_only;
  out.write_buffer_size = memtable;
  out.max_write_buffer_number = kMemtables;
  out.memtable_factory = NewTreeMemtables();
  out.allow_concurrent_memtable_write = false;
  out.memtable_whole_key_filtering = true;  // each new name is looked for first, and is in no table
  out.memtable_prefix_bloom_size_ratio = 0.02;
  out.max_total_wal_size = 4 * memtable;
  out.max_open_files = options.open_files;
  out.max_background_jobs = 2;
  out.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  // A synced log that has gone or shrunk is damage, not an empty log.
  out.track_and_verify_wals_in_manifest = true;
  out.target_file_size_base = 16 << 20;
  out.max_bytes_for_level_base = 64 << 20;
  out.level_compaction_dynamic_level_bytes = true;
  out.compression = rocksdb::kNoCompression;
  for (auto type : rocksdb::GetSupportedCompressions()) {
    if (type == rocksdb::kLZ4Compression) out.compression = type;
  }
  out.info_log_level = rocksdb::WARN_LEVEL;
  out.keep_log_file_num = 2;
  out.max_log_file_size = 4 << 20;
  out.max_manifest_file_size = 16 << 20;
  out.stats_dump_period_sec = 0;  // an idle store does nothing
  out.stats_persist_period_sec = 0;
  out.listeners = {std::make_shared<NoRecoveryByItself>()};
  out.avoid_flush_during_shutdown = true;  // the log has it all

  rocksdb::BlockBasedTableOptions table;
  table.block_cache = std::move(cache);
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.cache_index_and_filter_blocks = true;
  table.pin_l0_filter_and_index_blocks_in_cache = true;
  table.block_size = 8 << 10;
  table.format_version = 5;
  out.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return out;
}

}  // namespace nacre
