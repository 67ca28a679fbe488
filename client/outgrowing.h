// A file that has outgrown the MDT while it is written here, from when the MDS is asked to move it out until
// its bytes are those of objects (client/moving_out.h, docs/decisions/0079-outgrowing-without-waiting.md).
#pragma once

#include <cstdint>
#include <map>

#include "common/ids.h"
#include "common/latch.h"
#include "common/status.h"

namespace nacre::client {

struct Outgrowing {
  Outgrowing() {
    answered.Close();
    ended.Close();
  }

  // Space for all bytes of the file on each OST that it may get, as nobody here knows yet which those are.
  // Guarded by the whole of Inode::range.
  uint64_t bytes = 0;
  std::map<OstIndex, uint64_t> reserved;

  Status told;     // what the MDS has said; guarded by Inode::mutex, and final when `answered` is open
  Latch answered;  // the inode has the layout, or `told` says why not
  Latch ended;     // the file is one with objects, or an inline one as before, or its bytes are lost
};

}  // namespace nacre::client
