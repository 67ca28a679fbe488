#include "transport/memory_device.h"

#include <absl/strings/str_format.h>

namespace nacre {

Task<StatusOr<std::vector<StagingBuffer>>> MemoryDevice::StageAll(size_t size) {
  if (size > staging_bytes()) {
    co_return ErrnoError(ENOTSUP, absl::StrFormat("a call with %d bytes of %s's memory does not fit into the "
                                                  "%d bytes of its staging buffers",
                                                  size, name(), staging_bytes()));
  }
  std::vector<StagingBuffer> buffers;
  const AsyncMutex::Guard turn = co_await several_.Lock();
  while (size > 0) {
    CO_ASSIGN_OR_RETURN(StagingBuffer buffer, co_await Stage(size));
    size -= buffer.bytes.size();
    buffers.push_back(std::move(buffer));
  }
  co_return buffers;
}

}  // namespace nacre
