// How long it will take until what the streams of one way (a bus in one direction) have been given is done,
// by how fast such work has been done lately. Streams that share a way share one of these: each gets a part
// of it, and knows nothing of the others' work. For one thread.
#pragma once

#include <cstdint>

#include "gpu/batch.h"

namespace nacre::gpu {

class SharedRate {
 public:
  // These bytes are under way from now on. Returns when they, and all others that are, should be done.
  EngineTime Begin(uint64_t bytes, EngineTime now);
  // They are done, as it was noticed now.
  void End(uint64_t bytes, EngineTime now);

  uint64_t under_way() const { return under_way_; }

 private:
  void Learn(EngineTime now);

  double bytes_per_second_ = 20e9;
  uint64_t under_way_ = 0;
  // Since the last time that nothing was under way, or that something was learned.
  EngineTime since_;
  uint64_t done_ = 0;
};

}  // namespace nacre::gpu
