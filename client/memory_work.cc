#include "client/memory_work.h"

#include <algorithm>
#include <cstring>

#include "common/crc32c.h"
#include "common/ids.h"
#include "transport/memory.h"

namespace nacre::client {

void MemoryWork::Zero(std::span<std::byte> memory) {
  if (memory.empty()) return;
  if (device_ != nullptr) {
    zero_.push_back(ToIovec(memory));
  } else {
    std::memset(memory.data(), 0, memory.size());
  }
}

void MemoryWork::Sum(uint64_t offset, std::span<const std::byte> memory, uint32_t* sums) {
  const uint64_t into = offset % kBlockSize;
  if (device_ == nullptr && into == 0) return Crc32cBlocks(offset, memory, sums);
  if (device_ == nullptr) {
    const auto first = memory.first(std::min<uint64_t>(memory.size(), kBlockSize - into));
    *sums = nacre::Crc32c(first, *sums);
    return Crc32cBlocks(offset + first.size(), memory.subspan(first.size()), sums + 1);
  }
  while (!memory.empty()) {
    const size_t take = std::min<uint64_t>(memory.size(), kBlockSize - offset % kBlockSize);
    pieces_.push_back(ToIovec(memory.first(take)));
    places_.push_back(sums++);
    memory = memory.subspan(take);
    offset += take;
  }
}

Task<Status> MemoryWork::Finish() {
  if (!zero_.empty()) CO_RETURN_IF_ERROR(co_await device_->Zero(std::exchange(zero_, {})));
  if (pieces_.empty()) co_return OkStatus();
  CO_ASSIGN_OR_RETURN(const std::vector<uint32_t> sums, co_await device_->Crc32c(pieces_));
  for (size_t i = 0; i < sums.size(); ++i) {
    *places_[i] = Crc32cConcat(*places_[i], sums[i], pieces_[i].iov_len);
  }
  pieces_.clear();
  places_.clear();
  co_return OkStatus();
}

}  // namespace nacre::client
