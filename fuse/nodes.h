// The kernel's node numbers and st_ino of FIDs.
//
// A FID of version 0 with a sequence below 2^31 is its own number, {sequence, object}: nothing is kept for
// it, and the root is 1, as FUSE wants. Any other gets a number above 2^63 from a table, which counts the
// kernel's lookups and drops the entry with the last forget. Thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <mutex>
#include <optional>

#include "common/ids.h"

namespace nacre::fuse {

class NodeTable {
 public:
  // The number for a reply that counts as a lookup (an entry); Forget takes it back.
  uint64_t Refer(const Fid& fid);

  // The number, if the kernel may know the inode.
  std::optional<uint64_t> Find(const Fid& fid) const;

  // Zero FID for a number that was never given out or is forgotten.
  Fid Get(uint64_t node) const;

  void Forget(uint64_t node, uint64_t lookups);

  // st_ino: the node number where that is the FID itself, else a hash of the FID.
  static uint64_t Ino(const Fid& fid);

  size_t table_size() const;

 private:
  struct Entry {
    Fid fid;
    uint64_t lookups = 0;
  };

  mutable std::mutex mutex_;
  uint64_t next_ = 0;
  absl::flat_hash_map<uint64_t, Entry> by_node_;
  absl::flat_hash_map<Fid, uint64_t> by_fid_;
};

}  // namespace nacre::fuse
