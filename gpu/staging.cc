#include "gpu/staging.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cerrno>

namespace nacre::gpu {

Staging::Staging(std::shared_ptr<Context> context, std::shared_ptr<PinnedRanges> pinned, uint64_t most_bytes)
    : context_(std::move(context)),
      pinned_(std::move(pinned)),
      most_slots_(std::max<uint64_t>(1, most_bytes / kSlotSize)) {}

Staging::~Staging() {
  if (!context_->Usable()) return;
  UseContext use(*context_);
  for (const auto& slot : slots_) {
    pinned_->Remove({slot->data, kSlotSize});
    if (use.status().ok()) context_->cuda()->MemFreeHost(slot->data);
  }
}

Task<StatusOr<StagingBuffer>> Staging::Stage(size_t size, CopyEngine* engine) {
  if (size == 0) co_return ErrnoError(EINVAL, "a staging buffer of 0 bytes");
  OneShot<StatusOr<StagingBuffer>> buffer;
  if (!TakeOrWait(size, buffer)) CO_RETURN_IF_ERROR(co_await Grow(engine));
  co_return co_await buffer.Wait();
}

// The slots that are to be taken together must be there before the first of them is taken: one that could not
// be had would be waited for by who has the others.
Task<uint64_t> Staging::Reserve(size_t size, CopyEngine* engine) {
  for (;;) {
    uint64_t before = 0;
    {
      std::lock_guard lock(mutex_);
      before = slots_.size() * kSlotSize;
      if (before >= size || !MayGrow()) co_return before;
      ++growing_;
    }
    (void)co_await Grow(engine);
    if (allocated_bytes() == before) co_return before;  // no more is to be had
  }
}

bool Staging::TakeOrWait(size_t size, const OneShot<StatusOr<StagingBuffer>>& buffer) {
  std::lock_guard lock(mutex_);
  // Nobody overtakes those who wait already.
  std::optional<StagingBuffer> free = waiters_.empty() ? Take(size) : std::nullopt;
  if (free.has_value()) {
    buffer.Set(*std::move(free));
    return true;
  }
  waiters_.push_back({size, buffer});
  if (!MayGrow()) return true;
  ++growing_;
  return false;
}

bool Staging::MayGrow() const { return slots_.size() + growing_ < most_slots_; }

// No coroutine: GCC 12 would destroy the closure twice.
Task<Status> Staging::Grow(CopyEngine* engine) {
  return engine->Call([self = shared_from_this()] {
    StatusOr<std::byte*> data = self->Allocate();
    std::unique_lock lock(self->mutex_);
    --self->growing_;
    if (data.ok()) {
      self->slots_.push_back(std::make_unique<Slot>(Slot{.data = *data}));
      self->free_.push_back(self->slots_.back().get());
    } else {
      self->last_error_ = data.status();
    }
    self->ServeWaiters(std::move(lock));
    return OkStatus();
  });
}

StatusOr<std::byte*> Staging::Allocate() {
  void* data = nullptr;
  const CudaLibrary& cuda = context_->cuda();
  RETURN_IF_ERROR(cuda.Check(cuda->MemHostAlloc(&data, kSlotSize, kCudaHostAllocPortable), "cuMemHostAlloc"));
  pinned_->Add({static_cast<std::byte*>(data), kSlotSize});
  return static_cast<std::byte*>(data);
}

std::optional<StagingBuffer> Staging::Take(size_t size) {
  if (size <= kSmallSize) return TakeSmall(size);
  if (free_.empty()) return std::nullopt;
  Slot* slot = free_.back();
  free_.pop_back();
  return Lend(slot, slot->data, std::min(size, kSlotSize));
}

std::optional<StagingBuffer> Staging::TakeSmall(size_t size) {
  if (cut_.empty()) {
    if (free_.empty()) return std::nullopt;
    Slot* slot = free_.back();
    free_.pop_back();
    slot->cut = true;
    for (size_t at = 0; at < kSlotSize; at += kSmallSize) slot->free_small.push_back(slot->data + at);
    cut_.push_back(slot);
  }
  Slot* slot = cut_.back();
  std::byte* data = slot->free_small.back();
  slot->free_small.pop_back();
  if (slot->free_small.empty()) cut_.pop_back();
  return Lend(slot, data, size);
}

StagingBuffer Staging::Lend(Slot* slot, std::byte* data, size_t size) {
  auto give_back = [self = shared_from_this(), slot](std::byte* data) { self->Return(slot, data); };
  return {{data, size}, std::shared_ptr<std::byte>(data, give_back), {slot->data, kSlotSize}};
}

void Staging::Return(Slot* slot, std::byte* data) {
  std::unique_lock lock(mutex_);
  if (!slot->cut) {
    free_.push_back(slot);
  } else {
    if (slot->free_small.empty()) cut_.push_back(slot);
    slot->free_small.push_back(data);
    if (slot->free_small.size() == kSlotSize / kSmallSize) {
      std::erase(cut_, slot);
      slot->free_small.clear();
      slot->cut = false;
      free_.push_back(slot);
    }
  }
  ServeWaiters(std::move(lock));
}

void Staging::ServeWaiters(std::unique_lock<std::mutex> lock) {
  std::vector<std::pair<Waiter, StatusOr<StagingBuffer>>> served;
  while (!waiters_.empty()) {
    std::optional<StagingBuffer> buffer = Take(waiters_.front().size);
    bool hopeless = slots_.empty() && growing_ == 0;
    if (!buffer.has_value() && !hopeless) break;
    if (buffer.has_value())
      served.emplace_back(std::move(waiters_.front()), *std::move(buffer));
    else
      served.emplace_back(std::move(waiters_.front()), last_error_);
    waiters_.pop_front();
  }
  lock.unlock();
  for (auto& [waiter, answer] : served) waiter.buffer.Set(std::move(answer));
}

uint64_t Staging::allocated_bytes() const {
  std::lock_guard lock(mutex_);
  return slots_.size() * kSlotSize;
}

}  // namespace nacre::gpu
