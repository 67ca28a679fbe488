// A backup of an MDT as bytes (proto/FORMAT.md, "A backup of an MDT"): made and read in pieces, so that
// memory does not grow with the MDT. Not thread-safe.
#pragma once

#include <istream>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "server/kv/kv_store.h"

namespace nacre::mds {

inline constexpr uint32_t kBackupVersion = 1;
inline constexpr size_t kBackupBlockBytes = 256 << 10;  // of entries, before the last one is added

struct BackupHeader {
  std::string cluster_uuid;
  uint32_t mdt_index = 0;    // there is one MDT so far
  uint32_t mdt_version = 0;  // of its format (records.h)
  int64_t made_seconds = 0;  // since 1970, by the MDS's clock
  std::string mds_version;   // the program's, for people
};

class BackupEncoder {
 public:
  std::string Begin(const BackupHeader& header);
  std::string Block(const std::vector<KvEntry>& entries);  // at least one
  std::string End();

 private:
  uint64_t entries_ = 0;
  uint32_t sum_ = 0;  // of the checksums so far
};

// DATA_LOSS for whatever is not a whole, undamaged backup: the message says where and what.
// FAILED_PRECONDITION: of another version.
class BackupReader {
 public:
  explicit BackupReader(std::istream& in) : in_(in) {}

  StatusOr<BackupHeader> ReadHeader();  // first, once
  // The entries of the next block; none: the end was reached and the backup is whole.
  StatusOr<std::vector<KvEntry>> Next();

 private:
  StatusOr<std::string> Take(size_t size);
  Status Damaged(std::string_view what) const;
  StatusOr<std::vector<KvEntry>> ReadEnd();

  std::istream& in_;
  uint64_t position_ = 0;
  uint64_t entries_ = 0;
  uint32_t sum_ = 0;
};

}  // namespace nacre::mds
