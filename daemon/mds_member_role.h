// One of several MDSes that hold copies of one MDT (docs/decisions/0066-copies-of-the-mdt.md): the store, the
// member over it, what serves both, and the metadata server once the member has become the primary; composed
// from an MdsConfig with [copies]. Used by nacre-mds.
//
// It serves from its start on: a follower says who the primary is, and keeps what that tells it. A primary
// that has been deposed has no way back; deposed() tells, and the process is to end there and then, without
// Stop, as if it had been killed, and to begin anew.
//
// Borrows the runtime and the transport, which must outlive it. Main thread only; Start and Stop block.
// Errors name the directory, the address or the coordinator.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/runtime.h"
#include "daemon/config.h"
#include "rpc/grpc_server.h"
#include "rpc/mds_front.h"
#include "server/coordination/coordinator.h"
#include "server/kv/kv_store.h"
#include "server/metadata/backup.h"
#include "server/metadata/metadata_server.h"
#include "server/replication/member.h"
#include "transport/transport.h"

namespace nacre {

class MdsMemberRole {
 public:
  // The directory holds an MDT or a blank copy (target_directory.h). The config is finished (config.h) and
  // names a coordinator.
  static StatusOr<std::unique_ptr<MdsMemberRole>> Start(Runtime& runtime, Transport& transport,
                                                        const MdsConfig& config);
  ~MdsMemberRole();

  // Where it serves, with real ports.
  const std::vector<std::string>& addresses() const { return grpc_->addresses(); }

  // It serves no more, and says why.
  OneShot<Status> deposed() const { return deposed_; }
  // It cannot become the primary, and says why; or has, and cannot serve. Stop lets another one do it.
  OneShot<Status> failed() const { return failed_; }

  // Ends all streams; stops and syncs, and lets another one be the primary at once. Call before destruction,
  // unless deposed.
  Status Stop();

 private:
  class ShownCopies;

  MdsMemberRole(Runtime& runtime, Transport& transport, const MdsConfig& config);

  Status Open();
  Task<void> Live();
  Task<Status> Serve(replication::Member::Primacy primacy);
  bool BeginStop();  // whether there is a metadata server
  Task<Status> StopServer();

  Runtime& runtime_;
  Transport& transport_;
  const MdsConfig config_;
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<coordination::Coordinator> coordinator_;
  std::shared_ptr<CopyConnector> connector_;
  std::shared_ptr<replication::Member> member_;
  std::mutex mutex_;                        // guards stopping_ and the arrival of server_
  std::shared_ptr<Transport> to_osts_;      // of a primary, as is what follows
  std::unique_ptr<MetadataServer> server_;  // of a primary; stays once it is there
  bool stopping_ = false;
  std::unique_ptr<ShownCopies> cluster_;
  std::unique_ptr<MdtBackups> backups_;
  std::unique_ptr<MdsFront> front_;
  std::unique_ptr<GrpcServer> grpc_;
  OneShot<Status> deposed_, failed_;
  OneShot<Unit> server_ended_;
  OneShot<Unit> over_;  // Live has ended
};

}  // namespace nacre
