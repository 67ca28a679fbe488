// Takes a backup of a running MDS's MDT into a file, and makes an MDT from one: nacre mdt, without its
// output.
//
// Main thread only; both block. Errors name the file or the directory and say what to do.
// server/metadata/backup.h says what a backup has, restore.h what is done at a restore.
#pragma once

#include <functional>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "server/metadata/restore.h"

namespace nacre {

struct MdtBackupReport {
  mds::BackupHeader header;
  uint64_t entries = 0;
  uint64_t bytes = 0;  // of the file
};

using MdtBackupProgress = std::function<void(const std::string& state)>;

// `file` comes into being whole, checked and on stable storage, or not at all; only its owner may read it.
// EEXIST: it is there. ENOSPC: its disk has less room than the MDT takes, or was filled meanwhile.
StatusOr<MdtBackupReport> BackupMdt(const std::string& address, const std::string& file,
                                    const MdtBackupProgress& progress);

// The directory is missing (its parent is there) or empty. The backup is read as a whole before anything is
// made; what an error leaves is removed. EEXIST: something is there. DATA_LOSS: the backup is damaged.
StatusOr<MdtBackupReport> RestoreMdtInto(const std::string& file, const std::string& directory,
                                         const WallTime& now, const MdtBackupProgress& progress);

}  // namespace nacre
