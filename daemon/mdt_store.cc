#include "daemon/mdt_store.h"

#include "server/kv/rocks_kv.h"

namespace nacre {

StatusOr<std::unique_ptr<KvStore>> OpenMdtStore(const MdsConfig& config) {
  RocksKvOptions options;
  options.memory_bytes = config.StoreMemory();
  return OpenRocksKv(config.directory, options);
}

}  // namespace nacre
