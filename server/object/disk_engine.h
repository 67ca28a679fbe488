// Carries out disk operations: by io_uring, or by threads where that is missing. Thread-safe. An operation's
// buffers and its file stay valid until it is done; the engine is destroyed when nothing is in flight.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/task.h"

namespace nacre {

struct DiskOperation {
  enum class Kind { kRead, kWrite, kSync, kAllocate };

  Kind kind = Kind::kSync;
  int fd = -1;
  uint64_t offset = 0;
  uint64_t length = 0;         // kAllocate
  int mode = 0;                // kAllocate: as fallocate(2)
  std::vector<iovec> buffers;  // kRead, kWrite; used up from the front
  size_t next_buffer = 0;
  OneShot<Status> done;
  // Set before the operation is handed to the kernel, read when it comes back: what was written on the one
  // side is seen on the other. A ring in memory promises that by itself, but not to the language (or to
  // TSan).
  std::atomic<bool> handed_over = false;

  // Notes a system call's result. true: finished, `done` is set; false: go on with the rest.
  bool Advance(int64_t result);
};

class DiskEngine {
 public:
  virtual ~DiskEngine() = default;
  virtual void Submit(std::unique_ptr<DiskOperation> operation) = 0;
};

// Completions are taken by a thread of `executor`, which saves a change of thread for each; if that is empty,
// by a thread of the engine's own. An error says why io_uring cannot be used here.
StatusOr<std::unique_ptr<DiskEngine>> MakeUringEngine(Executor executor);
std::unique_ptr<DiskEngine> MakeThreadEngine();

}  // namespace nacre
