// Makes new targets: an MDT or an OST in a directory that is missing or empty. Nothing listens meanwhile.
//
// Borrows the runtime. Main thread only; blocks. Everything is on disk when it returns OK; after an error the
// directory is as it was. Errors name the directory.
#pragma once

#include "common/runtime.h"
#include "daemon/config.h"

namespace nacre {

Status FormatMdt(Runtime& runtime, const MdsConfig& config);

// EINVAL for a size that the disk does not have.
Status FormatOst(Runtime& runtime, const OstConfig& config, uint64_t memory);

// A store that another MDS of the filesystem fills.
Status FormatCopy(Runtime& runtime, const MdsConfig& config);

// nacre-mds --format and nacre-oss --format: makes the targets of the configuration that are not there yet.
// The exit status for main.
int RunFormat(const MdsConfig& config, bool copy);
int RunFormat(const OssConfig& config);

// nacre-mds --alone: a copy of the MDT becomes the MDT of a filesystem of one MDS. The exit status for main.
int RunAlone(const MdsConfig& config);

}  // namespace nacre
