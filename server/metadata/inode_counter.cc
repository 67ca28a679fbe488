#include "server/metadata/inode_counter.h"

#include "server/metadata/keys.h"
#include "server/metadata/records.h"

namespace nacre::mds {

InodeCounter::InodeCounter() {
  for (uint8_t number = kSlots; number > 0; --number) free_.push_back(static_cast<uint8_t>(number - 1));
}

Status InodeCounter::Load(KvStore& store) {
  for (uint8_t number = 0; number < kSlots; ++number) {
    auto value = store.Get(InodeCountKey(number));
    if (absl::IsNotFound(value.status())) continue;
    RETURN_IF_ERROR(value.status());
    ASSIGN_OR_RETURN(uint64_t count, ParseNumber(*value));
    values_[number] = static_cast<int64_t>(count);
  }
  return OkStatus();
}

Task<InodeCounter::Slot> InodeCounter::Take() {
  while (true) {
    OneShot<Unit> one_is_free;
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        const uint8_t number = free_.back();
        free_.pop_back();
        co_return Slot(this, number);
      }
      waiters_.push_back(one_is_free);
    }
    co_await one_is_free.Wait();
  }
}

void InodeCounter::GiveBack(uint8_t number) {
  OneShot<Unit> next;
  {
    std::lock_guard lock(mutex_);
    free_.push_back(number);
    if (waiters_.empty()) return;
    next = waiters_.front();
    waiters_.pop_front();
  }
  next.Set({});
}

uint64_t InodeCounter::Sum() const {
  int64_t sum = 0;
  for (const auto& value : values_) sum += value;
  return sum > 0 ? static_cast<uint64_t>(sum) : 0;
}

}  // namespace nacre::mds
