// A request of fallocate(2), in terms of a file's objects. A plain value.
#pragma once

#include <cstdint>

namespace nacre::client {

struct SpaceChange {
  bool punches = false;       // the range reads as zeros and takes no space
  bool preallocates = false;  // it has space, whatever it reads as
  uint64_t offset = 0;
  uint64_t length = 0;
  uint64_t end = 0;  // the file reaches at least to here afterwards
};

}  // namespace nacre::client
