// The seam between an MDS and whoever takes a backup of its MDT: the call of proto/backup.proto. Real form:
// gRPC (grpc_server.h, grpc_backup.h).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/status.h"

namespace nacre {

// One backup that is being made. Used by one thread at a time; gone before the MDT's store is.
class BackupSource {
 public:
  virtual ~BackupSource() = default;
  virtual uint64_t expected_bytes() const = 0;
  // The next piece of the file; none: that was all.
  virtual StatusOr<std::optional<std::string>> Next() = 0;
};

// The MDS's side; thread-safe.
class BackupHandler {
 public:
  virtual ~BackupHandler() = default;
  // EBUSY: as many are under way as may be.
  virtual StatusOr<std::unique_ptr<BackupSource>> BeginBackup() = 0;
};

}  // namespace nacre
