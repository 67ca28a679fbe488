// The seam between MDSes that hold copies of one MDT: the call of proto/copies.proto. Real form: gRPC
// (grpc_server.h, grpc_copies.h).
#pragma once

#include <memory>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/copies.pb.h"

namespace nacre {

// The side that is told; thread-safe.
class CopyHandler {
 public:
  virtual ~CopyHandler() = default;
  virtual Task<proto::CopyReply> Exchange(proto::CopyRequest request) = 0;
};

// The side that tells; thread-safe. Connects by itself, again and again.
class CopyChannel {
 public:
  virtual ~CopyChannel() = default;
  // UNAVAILABLE or DEADLINE_EXCEEDED: no answer; the request may have been carried out, or may be later. The
  // reply's own status is inside it.
  virtual Task<StatusOr<proto::CopyReply>> Exchange(proto::CopyRequest request, Duration timeout) = 0;
};

class CopyConnector {
 public:
  virtual ~CopyConnector() = default;
  // Never fails: nobody needs to be there yet. INVALID_ARGUMENT: not an address.
  virtual StatusOr<std::shared_ptr<CopyChannel>> Open(const std::string& address) = 0;
};

}  // namespace nacre
