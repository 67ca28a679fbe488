// The seam between an OSS (or the command line) and the MGS: the calls of proto/cluster.proto.
#pragma once

#include "common/clock.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/cluster.pb.h"

namespace nacre {

// The MGS's side; thread-safe.
class ClusterHandler {
 public:
  virtual ~ClusterHandler() = default;
  virtual Task<proto::RegisterOssReply> RegisterOss(proto::RegisterOssRequest request) = 0;
  virtual Task<proto::HeartbeatReply> Heartbeat(proto::HeartbeatRequest request) = 0;
  virtual Task<proto::ReportChainReply> ReportChain(proto::ReportChainRequest request) = 0;
  virtual Task<proto::ClusterStatus> GetStatus() = 0;
  virtual Task<proto::AdminReply> Administer(proto::AdminRequest request) = 0;
};

// The caller's side; thread-safe. Every call fails with UNAVAILABLE or DEADLINE_EXCEEDED if the MGS is away.
// GetStatus fails with the status of the reply if that is an error; of the others it is in the reply.
class ClusterChannel {
 public:
  virtual ~ClusterChannel() = default;
  virtual Task<StatusOr<proto::RegisterOssReply>> RegisterOss(proto::RegisterOssRequest request) = 0;
  virtual Task<StatusOr<proto::HeartbeatReply>> Heartbeat(proto::HeartbeatRequest request) = 0;
  virtual Task<StatusOr<proto::ReportChainReply>> ReportChain(proto::ReportChainRequest request) = 0;
  virtual Task<StatusOr<proto::ClusterStatus>> GetStatus() = 0;
  virtual Task<StatusOr<proto::AdminReply>> Administer(proto::AdminRequest request) = 0;
};

}  // namespace nacre
