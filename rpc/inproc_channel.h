// A metadata and management server in the same process: requests, replies and pushes are handed over as they
// are, without being serialised. Same behaviour at a loss of the stream as the gRPC form (grpc_channel.h).
//
// Thread-safe. Metadata requests are handled on the server's executor, those of the cluster service on the
// caller's. The handlers must outlive the server and whatever still runs on its executor.
#pragma once

#include <memory>
#include <string>

#include "rpc/cluster_channel.h"
#include "rpc/metadata_channel.h"

namespace nacre {

class InprocServer {
 public:
  InprocServer(Executor executor, MetadataHandler& metadata, ClusterHandler& cluster);
  ~InprocServer();  // Stop()
  InprocServer(const InprocServer&) = delete;
  InprocServer& operator=(const InprocServer&) = delete;

  // Both may outlive the server: once it has stopped they answer UNAVAILABLE.
  // `name` is what the MDS sees as the peer's name; `address` is where others reach it, for messages and
  // users.
  std::shared_ptr<MetadataConnector> NewConnector(std::string name, std::string address = "inproc");
  std::shared_ptr<ClusterChannel> NewClusterChannel();

  // Ends every stream, on both sides.
  void Stop();

 private:
  struct Core;
  class Stream;
  class Channel;
  class Connector;
  class Cluster;

  std::shared_ptr<Core> core_;
};

}  // namespace nacre
