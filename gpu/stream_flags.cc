#include "gpu/stream_flags.h"

#include <new>

namespace nacre::gpu {
namespace {

constexpr size_t kFlagsOfPage = 1024;

}  // namespace

StreamFlagPool::~StreamFlagPool() {
  if (!context_->Usable()) return;
  UseContext use(*context_);
  // A page on which a stream still waits stays.
  FreeArrived();
  if (!awaited_.empty()) return;
  for (void* page : pages_) context_->cuda()->MemFreeHost(page);
}

void StreamFlagPool::FreeArrived() {
  std::erase_if(awaited_, [this](StreamFlags* flags) {
    if (!flags->HasArrived()) return false;
    free_.push_back(flags);
    return true;
  });
}

StatusOr<std::shared_ptr<StreamFlags>> StreamFlagPool::Take() {
  std::lock_guard lock(mutex_);
  if (free_.empty()) FreeArrived();
  if (free_.empty()) RETURN_IF_ERROR(Grow());
  StreamFlags* flags = free_.back();
  free_.pop_back();
  ++flags->number;
  return std::shared_ptr<StreamFlags>(flags, [self = shared_from_this()](StreamFlags* flags) {
    std::lock_guard lock(self->mutex_);
    (flags->HasArrived() ? self->free_ : self->awaited_).push_back(flags);
  });
}

Status StreamFlagPool::Grow() {
  UseContext use(*context_);
  RETURN_IF_ERROR(use.status());
  void* page = nullptr;
  const CudaLibrary& cuda = context_->cuda();
  RETURN_IF_ERROR(
      cuda.Check(cuda->MemHostAlloc(&page, kFlagsOfPage * sizeof(StreamFlags), kCudaHostAllocPortable),
                 "cuMemHostAlloc"));
  pages_.push_back(page);
  auto* flags = static_cast<StreamFlags*>(page);
  for (size_t i = 0; i < kFlagsOfPage; ++i) free_.push_back(new (flags + i) StreamFlags);
  return OkStatus();
}

}  // namespace nacre::gpu
