// Finds data and holes in the objects of a file (SEEK_DATA, SEEK_HOLE). Thread-safe.
#pragma once

#include <cstdint>

#include "client/layout.h"
#include "client/object_io.h"
#include "common/status.h"
#include "common/task.h"

namespace nacre::client {

// Finds the first byte at or behind `offset` that belongs to a hole, or to data, in a file of this size.
// `layout`: null if the file's bytes lie in the MDT. ENXIO: there is none.
Task<StatusOr<uint64_t>> SeekInObjects(ObjectIo& io, uint64_t epoch, LayoutPtr layout, uint64_t size,
                                       uint64_t offset, bool hole);

}  // namespace nacre::client
