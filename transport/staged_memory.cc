#include "transport/staged_memory.h"

namespace nacre {

StatusOr<std::shared_ptr<MemoryRegion>> StagingRegions::Find(const std::shared_ptr<MemoryDevice>& device,
                                                             std::span<std::byte> slot) {
  std::lock_guard lock(mutex_);
  Slot& known = slots_[slot.data()];
  if (known.region == nullptr) {
    ASSIGN_OR_RETURN(known.region, register_(slot.data(), slot.size()));
    known.device = device;
  }
  return known.region;
}

Task<StatusOr<StagedMemory>> StagedMemory::Take(StagingRegions* regions, std::vector<MemorySpan> memory) {
  StagedMemory staged;
  staged.device_ = memory.front().region->device();
  staged.memory_ = FlatMemory(std::move(memory));
  CO_ASSIGN_OR_RETURN(staged.buffers_, co_await staged.device_->StageAll(staged.memory_.size()));
  for (const StagingBuffer& buffer : staged.buffers_) {
    CO_ASSIGN_OR_RETURN(std::shared_ptr<MemoryRegion> region, regions->Find(staged.device_, buffer.slot));
    const auto offset = static_cast<uint64_t>(buffer.bytes.data() - buffer.slot.data());
    staged.spans_.push_back({std::move(region), offset, buffer.bytes.size()});
  }
  co_return staged;
}

Task<Status> StagedMemory::Deliver() {
  std::vector<iovec> to, from;
  memory_.AppendPieces(0, memory_.size(), &to);
  for (const StagingBuffer& buffer : buffers_) from.push_back(ToIovec(buffer.bytes));
  if (to.empty()) co_return OkStatus();
  co_return co_await device_->CopyIn(std::move(to), std::move(from));
}

}  // namespace nacre
