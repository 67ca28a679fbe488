// A request to the copy engine. Made by whoever asks, then only touched by the engine's thread, until `done`
// is set.
#pragma once

#include <absl/functional/any_invocable.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "common/status.h"
#include "common/task.h"
#include "gpu/segments.h"

namespace nacre::gpu {

struct Job {
  enum class Kind {
    kCopyIn,
    kCopyOut,
    kZero,
    kSum,
    kCall,   // a function, on the engine's thread
    kWatch,  // asks a function again and again until it says yes
  };

  explicit Job(Kind kind) : kind(kind) {}

  const Kind kind;
  std::vector<Segment> segments;  // copies
  // Zeros and sums. Of a copy to the device: of its target, what is to be summed up behind it.
  std::vector<iovec> pieces;
  // Of the parts of the pieces (piece_sums.h). Of a copy none, if nothing could be summed up behind it.
  std::vector<uint32_t> sums;
  absl::AnyInvocable<Status()> call;
  absl::AnyInvocable<bool()> arrived;

  size_t batches = 0;  // that must end before the job does
  Status status;       // the first error
  OneShot<Status> done;

  void Fail(Status error) {
    if (status.ok()) status = std::move(error);
  }
};
using JobPtr = std::shared_ptr<Job>;

}  // namespace nacre::gpu
