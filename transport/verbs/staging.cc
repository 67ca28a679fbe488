#include "transport/verbs/staging.h"

namespace nacre::verbs {

StatusOr<std::unique_ptr<Staging::Memory>> Staging::Make() {
  auto memory = std::make_unique<Memory>();
  memory->bytes.reset(new std::byte[kChunkSize]);
  ASSIGN_OR_RETURN(memory->registration,
                   Registration::Make(domain_, memory->bytes.get(), kChunkSize, IBV_ACCESS_LOCAL_WRITE));
  return memory;
}

Task<StatusOr<Staging::Chunk>> Staging::Take() {
  const OneShot<std::unique_ptr<Memory>> ready;
  std::unique_ptr<Memory> memory;
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      memory = std::move(free_.back());
      free_.pop_back();
    } else if (made_ < kMaxChunks) {
      CO_ASSIGN_OR_RETURN(memory, Make());
      ++made_;
    } else {
      waiters_.push_back(ready);
    }
  }
  if (memory == nullptr) memory = co_await ready.Wait();
  co_return Chunk(shared_from_this(), std::move(memory));
}

void Staging::Return(std::unique_ptr<Memory> memory) {
  OneShot<std::unique_ptr<Memory>> next;
  {
    std::lock_guard lock(mutex_);
    if (waiters_.empty()) {
      free_.push_back(std::move(memory));
      return;
    }
    next = waiters_.front();
    waiters_.pop_front();
  }
  next.Set(std::move(memory));
}

}  // namespace nacre::verbs
