// The version with which each stored record of this directory begins, and its check.
#pragma once

#include <absl/strings/str_format.h>

#include <string>
#include <string_view>

#include "common/status.h"

namespace nacre::replication {

inline constexpr uint32_t kStoredVersion = 1;

// DATA_LOSS: not such a record. FAILED_PRECONDITION: of a later version. `what` names it in the message.
template <typename Record>
StatusOr<Record> ParseStored(std::string_view data, std::string_view what) {
  Record record;
  if (!record.ParseFromArray(data.data(), static_cast<int>(data.size())) || record.version() == 0) {
    return absl::DataLossError(absl::StrFormat("damaged %s, %d bytes", what, data.size()));
  }
  if (record.version() > kStoredVersion) {
    return absl::FailedPreconditionError(
        absl::StrFormat("a %s of version %d; this program knows version %d: install a newer one", what,
                        record.version(), kStoredVersion));
  }
  return record;
}

}  // namespace nacre::replication
