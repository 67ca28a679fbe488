// The early answer about access, from cached attributes under a lease. The MDS decides wherever it is asked.
#pragma once

#include <algorithm>
#include <cstdint>

#include "client/filesystem.h"
#include "proto/types.pb.h"

namespace nacre::client {

inline constexpr uint32_t kMayRead = 4, kMayWrite = 2, kMayExecute = 1;

inline bool MayAccess(const proto::Attr& attr, const Caller& caller, uint32_t want) {
  if (caller.uid == 0)
    return (want & kMayExecute) == 0 || (attr.mode() & 0111) != 0 || (attr.mode() & 0170000) == 0040000;
  uint32_t shift = 0;
  if (caller.uid == attr.uid()) {
    shift = 6;
  } else if (caller.gid == attr.gid() ||
             std::find(caller.groups.begin(), caller.groups.end(), attr.gid()) != caller.groups.end()) {
    shift = 3;
  }
  return ((attr.mode() >> shift) & want) == want;
}

}  // namespace nacre::client
