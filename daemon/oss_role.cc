#include "daemon/oss_role.h"

#include "common/random.h"
#include "server/kv/rocks_kv.h"
#include "server/object/uring_block_store.h"

namespace nacre {

StatusOr<std::unique_ptr<OssRole>> OssRole::Start(Runtime& runtime, Transport& transport,
                                                  std::shared_ptr<ClusterChannel> cluster,
                                                  const OssConfig& config) {
  std::unique_ptr<OssRole> role(new OssRole(runtime));
  std::vector<OstDevices> devices;
  for (const OstConfig& ost : config.osts) {
    ASSIGN_OR_RETURN(OstDevices device, role->OpenOst(ost, config.memory));
    devices.push_back(std::move(device));
  }
  ObjectEnvironment environment{runtime.executor(), RealClock(), SystemRandom(), transport,
                                std::move(cluster)};
  ASSIGN_OR_RETURN(role->server_,
                   runtime.Run(ObjectServer::Start(environment, std::move(devices), config.options)));
  return role;
}

StatusOr<OstDevices> OssRole::OpenOst(const OstConfig& config, uint64_t memory) {
  std::string meta = config.directory + "/meta", data = config.directory + "/data";
  RocksKvOptions store;
  store.memory_bytes = memory;
  Ost ost;
  ASSIGN_OR_RETURN(ost.store, OpenRocksKv(meta, store));
  UringBlockStoreOptions disk;
  disk.size_bytes = config.size;
  disk.executor = runtime_.executor();
  ASSIGN_OR_RETURN(ost.blocks, OpenUringBlockStore(data, disk));
  OstDevices device{config.index, ost.store.get(), ost.blocks.get(), config.directory, config.copies};
  osts_.push_back(std::move(ost));
  return device;
}

}  // namespace nacre
