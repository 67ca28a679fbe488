#include "transport/memory_device.h"

#include <absl/strings/str_format.h>

#include <algorithm>

#include "common/ids.h"

namespace nacre {

Task<StatusOr<std::vector<StagingBuffer>>> MemoryDevice::StageAll(size_t size) {
  std::vector<StagingBuffer> buffers;
  const AsyncMutex::Guard turn = co_await several_.Lock();
  CO_ASSIGN_OR_RETURN(const uint64_t room, co_await ReserveStaging(size));
  if (size > room) {
    co_return ErrnoError(ENOTSUP, absl::StrFormat("a call with %d bytes of %s's memory does not fit into the "
                                                  "%d bytes of its staging buffers",
                                                  size, name(), room));
  }
  while (size > 0) {
    CO_ASSIGN_OR_RETURN(StagingBuffer buffer, co_await Stage(size));
    size -= buffer.bytes.size();
    buffers.push_back(std::move(buffer));
  }
  co_return buffers;
}

Task<StatusOr<std::vector<uint32_t>>> MemoryDevice::CopyInAndSum(std::vector<iovec> to,
                                                                 std::vector<iovec> from,
                                                                 std::vector<iovec> pieces) {
  CO_RETURN_IF_ERROR(co_await CopyIn(std::move(to), std::move(from)));
  co_return co_await SumBlocks(std::move(pieces));
}

Task<StatusOr<std::vector<uint32_t>>> MemoryDevice::SumBlocks(std::vector<iovec> pieces) {
  std::vector<iovec> blocks;
  for (const iovec& piece : pieces) {
    auto* const begin = static_cast<std::byte*>(piece.iov_base);
    for (size_t at = 0; at < piece.iov_len; at += kBlockSize)
      blocks.push_back({begin + at, std::min<size_t>(kBlockSize, piece.iov_len - at)});
  }
  co_return co_await Crc32c(std::move(blocks));
}

}  // namespace nacre
