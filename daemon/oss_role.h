// One OSS: its OSTs' stores and disks and the object server on them, composed from an OssConfig. Used by
// nacre-oss and nacre local.
//
// An OST's directory holds meta/ (the KvStore) and data/ (the blocks). Borrows the runtime and the transport,
// which must outlive it. Main thread only; Start and Stop block. Errors name the directory or address.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/runtime.h"
#include "daemon/config.h"
#include "rpc/cluster_channel.h"
#include "server/kv/kv_store.h"
#include "server/object/block_store.h"
#include "server/object/object_server.h"
#include "transport/transport.h"

namespace nacre {

class OssRole {
 public:
  // The directories hold OSTs (target_directory.h), or are new ones of which OSTs are made (format.h). The
  // config is finished (config.h). Without a `cluster` it is told to no MGS.
  static StatusOr<std::unique_ptr<OssRole>> Start(Runtime& runtime, Transport& transport,
                                                  std::shared_ptr<ClusterChannel> cluster,
                                                  const OssConfig& config);

  // Where it serves, with the real port.
  std::string address() const { return server_->address(); }
  uint64_t instance() const { return server_->instance(); }  // of this process, as the MGS knows it

  // Arrives if the MGS refuses it for good (object_server.h).
  const OneShot<Status>& refused() const { return server_->refused(); }
  // Arrives when the process is to begin anew (likewise).
  const OneShot<Status>& begin_anew() const { return server_->begin_anew(); }

  // Stops and syncs. Call before destruction.
  Status Stop() { return runtime_.Run(server_->Stop()); }

 private:
  struct Ost {
    std::unique_ptr<KvStore> store;
    std::unique_ptr<BlockStore> blocks;
  };

  explicit OssRole(Runtime& runtime) : runtime_(runtime) {}
  StatusOr<OstDevices> OpenOst(const OstConfig& config, uint64_t memory);

  Runtime& runtime_;
  std::vector<Ost> osts_;
  std::unique_ptr<ObjectServer> server_;
};

}  // namespace nacre
