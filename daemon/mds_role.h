// One MDS: the MDT's store, the metadata server on it, and what serves it to others, composed from an
// MdsConfig. Used by nacre-mds and nacre local.
//
// Borrows the runtime and the transport, which must outlive it. Main thread only; Start and Stop block.
// Errors name the directory or address.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/runtime.h"
#include "daemon/config.h"
#include "rpc/grpc_server.h"
#include "rpc/inproc_channel.h"
#include "server/kv/kv_store.h"
#include "server/metadata/backup.h"
#include "server/metadata/metadata_server.h"
#include "transport/transport.h"

namespace nacre {

class MdsRole {
 public:
  // The directory holds an MDT (target_directory.h). The config is finished (config.h).
  static StatusOr<std::unique_ptr<MdsRole>> Start(Runtime& runtime, Transport& transport,
                                                  const MdsConfig& config);

  // Where it serves, with real ports.
  const std::vector<std::string>& addresses() const { return grpc_->addresses(); }

  // For clients and servers in this process.
  std::shared_ptr<MetadataConnector> NewConnector(std::string name) {
    return inproc_->NewConnector(std::move(name), addresses().front());
  }
  std::shared_ptr<ClusterChannel> NewClusterChannel() { return inproc_->NewClusterChannel(); }

  // Ends all streams, stops and syncs. Call before destruction.
  Status Stop();

 private:
  explicit MdsRole(Runtime& runtime) : runtime_(runtime) {}

  Runtime& runtime_;
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<MetadataServer> server_;
  std::unique_ptr<MdtBackups> backups_;
  std::unique_ptr<InprocServer> inproc_;
  std::unique_ptr<GrpcServer> grpc_;
};

}  // namespace nacre
