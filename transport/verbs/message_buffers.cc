#include "transport/verbs/message_buffers.h"

#include <absl/strings/str_format.h>

#include <cerrno>

namespace nacre::verbs {

StatusOr<uint32_t> MessageBuffers::Take() {
  std::lock_guard lock(mutex_);
  if (free_.empty()) RETURN_IF_ERROR(Grow());
  const uint32_t index = free_.back();
  free_.pop_back();
  return index;
}

void MessageBuffers::Return(uint32_t index) {
  std::lock_guard lock(mutex_);
  free_.push_back(index);
}

Status MessageBuffers::Grow() {
  if (slab_count_ == kMaxSlabs) {
    return ErrnoError(ENOBUFS,
                      absl::StrFormat("all %d message buffers are in use", kMaxSlabs * kBuffersPerSlab));
  }
  const size_t size = size_t{kBuffersPerSlab} * size_;
  auto slab = std::make_unique<Slab>();
  slab->memory.reset(new std::byte[size]);
  ASSIGN_OR_RETURN(slab->registration,
                   Registration::Make(domain_, slab->memory.get(), size, IBV_ACCESS_LOCAL_WRITE));
  slabs_[slab_count_] = std::move(slab);
  for (uint32_t i = kBuffersPerSlab; i > 0; --i) free_.push_back(slab_count_ * kBuffersPerSlab + i - 1);
  ++slab_count_;
  return OkStatus();
}

}  // namespace nacre::verbs
