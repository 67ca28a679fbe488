// Serves handlers over gRPC: TCP ("host:port") and unix sockets ("unix:/path"; a path has no comma, which
// separates the addresses of several servers). No authentication: who may connect is for the caller to decide
// by the addresses.
//
// Thread-safe. Every request is a task of its own on the executor given; Disconnected runs there too. The
// handlers must outlive the server and whatever still runs on the executor.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rpc/backup_channel.h"
#include "rpc/cluster_channel.h"
#include "rpc/copy_channel.h"
#include "rpc/metadata_channel.h"

namespace nacre {

// The services that a server offers. Calls to one that is null are refused as unknown.
struct GrpcServices {
  MetadataHandler* metadata = nullptr;
  ClusterHandler* cluster = nullptr;
  BackupHandler* backup = nullptr;
  CopyHandler* copies = nullptr;
};

class GrpcServer {
 public:
  // INVALID_ARGUMENT: not an address. EADDRINUSE, EADDRNOTAVAIL, EACCES, …: why one cannot be listened at.
  static StatusOr<std::unique_ptr<GrpcServer>> Start(Executor executor, const GrpcServices& services,
                                                     const std::vector<std::string>& addresses);
  ~GrpcServer();  // Stop()

  // As given, with the real port where 0 was asked for.
  const std::vector<std::string>& addresses() const;

  // Ends every stream and stops listening. Does not wait for tasks on the executor.
  void Stop();

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nacre
