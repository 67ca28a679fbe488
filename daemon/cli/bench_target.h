// The layers that `nacre bench` measures: the same operations through the mount, through the client library
// alone, and on a bare disk. One thread uses a target.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/status.h"

namespace nacre::cli {

class BenchTarget {
 public:
  virtual ~BenchTarget() = default;  // removes what was made

  // One file.
  virtual Status Write(uint64_t offset, std::span<const std::byte> data) = 0;
  virtual Status Read(uint64_t offset, std::span<std::byte> data) = 0;
  // Reads of 1 MiB from the front of the file, kAtOnce of them under way at a time, past this machine's
  // caches into memory that has been registered before.
  static constexpr size_t kAtOnce = 16;
  virtual Status ReadAtOnce(uint64_t /*operations*/) {
    return ErrnoError(EOPNOTSUPP, "no registered memory here");
  }
  virtual Status Sync() = 0;
  virtual Status DropCaches() = 0;  // what this machine still knows of the file

  // Many files. UNIMPLEMENTED: this layer has none.
  virtual Status Create(uint64_t number) = 0;
  virtual Status Stat(uint64_t number) = 0;
  virtual Status Unlink(uint64_t number) = 0;
};

// In a directory of its own below `directory`.
StatusOr<std::unique_ptr<BenchTarget>> MakeMountTarget(const std::string& directory);
// A client of its own, without kernel and FUSE, in a directory below the root.
StatusOr<std::unique_ptr<BenchTarget>> MakeClientTarget(const std::string& mds);
// A block store in a directory of its own below `directory`.
StatusOr<std::unique_ptr<BenchTarget>> MakeDiskTarget(const std::string& directory, uint64_t size);

}  // namespace nacre::cli
