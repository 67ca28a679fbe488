// The locks that this client holds on one file, as POSIX says: a new lock of an owner replaces what it
// overlaps of his.
#pragma once

#include <fcntl.h>

#include <vector>

#include "proto/metadata.pb.h"

namespace nacre::client {

inline void ApplyLock(std::vector<proto::LockRange>* locks, const proto::LockRange& lock) {
  std::vector<proto::LockRange> left;
  for (const proto::LockRange& held : *locks) {
    bool same = held.owner() == lock.owner() && held.flock() == lock.flock();
    if (!same || held.end() < lock.start() || lock.end() < held.start()) {
      left.push_back(held);
      continue;
    }
    if (held.start() < lock.start()) {
      left.push_back(held);
      left.back().set_end(lock.start() - 1);
    }
    if (lock.end() < held.end()) {
      left.push_back(held);
      left.back().set_start(lock.end() + 1);
    }
  }
  if (lock.type() != F_UNLCK) left.push_back(lock);
  *locks = std::move(left);
}

}  // namespace nacre::client
