#include "server/object/pool.h"

#include <cerrno>

namespace nacre::ost {

void BufferPool::Pages::Release() {
  if (pool_ == nullptr) return;
  pool_->Unpin(pages_);
  pages_.clear();
  pool_.reset();
}

StatusOr<std::shared_ptr<BufferPool>> BufferPool::Create(uint64_t bytes, Transport* transport) {
  bytes = bytes / kBlockSize * kBlockSize;
  if (bytes < kMinBytes) {
    return ErrnoError(EINVAL,
                      absl::StrCat("buffer pool of ", bytes, " bytes: at least ", kMinBytes, " are needed"));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<SharedMemory> memory, SharedMemory::Create("nacre-pool", bytes));
  std::shared_ptr<BufferPool> pool(new BufferPool(std::move(memory)));
  if (transport != nullptr) {
    ASSIGN_OR_RETURN(pool->region_, transport->RegisterShared(pool->memory_));
  }
  return pool;
}

Task<BufferPool::Pages> BufferPool::Acquire(size_t count) {
  OneShot<std::vector<uint32_t>> ready;
  {
    std::lock_guard lock(mutex_);
    if (waiters_.empty() && unpinned_ >= count) co_return Pages(shared_from_this(), Take(count));
    waiters_.push_back({count, ready});
  }
  std::shared_ptr<BufferPool> self = shared_from_this();
  std::vector<uint32_t> pages = co_await ready.Wait();
  co_return Pages(std::move(self), std::move(pages));
}

// The hand goes on from where it stopped, so that pages taken together lie together; a page that was hit
// since it last came by is passed once.
std::vector<uint32_t> BufferPool::Take(size_t count) {
  std::vector<uint32_t> taken;
  taken.reserve(count);
  for (; taken.size() < count; hand_ = hand_ + 1 == pages_.size() ? 0 : hand_ + 1) {
    Page& page = pages_[hand_];
    if (page.pins > 0) continue;
    if (page.referenced) {
      page.referenced = false;
      continue;
    }
    Forget(&page);
    page.pins = 1;
    taken.push_back(static_cast<uint32_t>(hand_));
  }
  unpinned_ -= count;
  return taken;
}

void BufferPool::Forget(Page* page) {
  if (page->key == kNoKey) return;
  cached_.erase(page->key);
  page->key = kNoKey;
  page->referenced = false;
}

size_t BufferPool::CountCached(std::span<const uint64_t> keys) {
  std::lock_guard lock(mutex_);
  size_t found = 0;
  for (uint64_t key : keys) found += cached_.contains(key) ? 1 : 0;
  return found;
}

void BufferPool::Pin(std::span<const uint64_t> keys, std::vector<uint32_t>* found) {
  std::lock_guard lock(mutex_);
  for (uint64_t key : keys) {
    auto it = cached_.find(key);
    if (it == cached_.end()) {
      found->push_back(kNone);
      continue;
    }
    Page& page = pages_[it->second];
    if (page.pins++ == 0) --unpinned_;
    page.referenced = true;
    found->push_back(it->second);
  }
}

void BufferPool::Unpin(std::span<const uint32_t> pages) {
  std::lock_guard lock(mutex_);
  for (uint32_t index : pages) {
    if (--pages_[index].pins == 0) ++unpinned_;
  }
  ServeWaiters();
}

void BufferPool::ServeWaiters() {
  while (!waiters_.empty() && waiters_.front().count <= unpinned_) {
    Waiter waiter = std::move(waiters_.front());
    waiters_.pop_front();
    waiter.ready.Set(Take(waiter.count));
  }
}

void BufferPool::Publish(std::span<const uint64_t> keys, std::span<const uint32_t> pages) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < keys.size(); ++i) {
    auto [it, fresh] = cached_.try_emplace(keys[i], pages[i]);
    if (!fresh) {
      pages_[it->second].key = kNoKey;
      it->second = pages[i];
    }
    pages_[pages[i]].key = keys[i];
    pages_[pages[i]].referenced = false;
  }
}

void BufferPool::Drop(uint32_t ost_slot, const BlockRun& run) {
  std::lock_guard lock(mutex_);
  for (uint64_t block = run.first; block < run.first + run.count; ++block) {
    auto it = cached_.find(CacheKey(ost_slot, block));
    if (it == cached_.end()) continue;
    pages_[it->second].key = kNoKey;
    cached_.erase(it);
  }
}

size_t BufferPool::pinned_pages() const {
  std::lock_guard lock(mutex_);
  return pages_.size() - unpinned_;
}

}  // namespace nacre::ost
