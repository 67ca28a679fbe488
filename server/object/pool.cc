#include "server/object/pool.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/log.h"

namespace nacre::ost {
namespace {

// Of the look-ups of a call: each is a miss of the CPU's caches, and all other calls wait for the lock
// meanwhile.
constexpr size_t kLookAhead = 8;
// Of a run of dropped pages that is used again before the hand goes on: what is taken together should lie
// together.
constexpr uint32_t kFewestDropped = 16;
// In a row, of kLargeStep each: a few are of pages that are just being used. Then there are no more to be
// had, and looking for some takes long.
constexpr int kMostLargePageRefusals = 16;

}  // namespace

void BufferPool::Pages::Release() {
  if (pool_ == nullptr) return;
  pool_->Unpin(pages_);
  pages_.clear();
  pool_.reset();
  share_ = Allotment::Share();
}

StatusOr<std::shared_ptr<BufferPool>> BufferPool::Create(uint64_t bytes, Transport* transport) {
  bytes = bytes / kBlockSize * kBlockSize;
  if (bytes < kMinBytes) {
    return ErrnoError(EINVAL,
                      absl::StrCat("buffer pool of ", bytes, " bytes: at least ", kMinBytes, " are needed"));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<SharedMemory> memory, SharedMemory::Create("nacre-pool", bytes));
  memory->PreferLargePages();
  std::shared_ptr<BufferPool> pool(new BufferPool(std::move(memory)));
  if (transport != nullptr) {
    ASSIGN_OR_RETURN(pool->region_, transport->RegisterShared(pool->memory_));
  }
  return pool;
}

BufferPool::Pages BufferPool::Take(Allotment::Share share, size_t count) {
  std::vector<uint32_t> taken(count);
  {
    std::lock_guard lock(mutex_);
    for (uint32_t& page : taken) page = TakeOne();
    MakeLargePagesAhead();
  }
  return Pages(shared_from_this(), std::move(taken), std::move(share));
}

BufferPool::Pages BufferPool::Take(Allotment::Share share, std::span<const uint64_t> keys,
                                   std::vector<bool>* cached) {
  std::vector<uint32_t> taken(keys.size(), kNone);
  cached->assign(keys.size(), false);
  {
    std::lock_guard lock(mutex_);
    // First those that are there: pages are taken from what nobody has pinned.
    uint32_t before = kNone;
    for (size_t i = 0; i < keys.size(); ++i) {
      const size_t ahead = i + kLookAhead;
      if (ahead < keys.size() && keys[ahead] != keys[ahead - 1] + 1) cached_.prefetch(keys[ahead]);
      before = FindBehind(before, keys[i]);
      if (before == kNone) continue;
      Page& page = pages_[before];
      if (page.pins++ == 0) --unpinned_;
      page.referenced = true;
      taken[i] = before;
      (*cached)[i] = true;
    }
    for (uint32_t& page : taken) {
      if (page == kNone) page = TakeOne();
    }
    MakeLargePagesAhead();
  }
  return Pages(shared_from_this(), std::move(taken), std::move(share));
}

// The page that holds a block, or none. Pages that were taken together lie together, so the page behind the
// one of the block before mostly does: it is looked at first, which spares two misses of the CPU's caches.
uint32_t BufferPool::FindBehind(uint32_t before, uint64_t key) const {
  if (before < pages_.size() - 1 && pages_[before + 1].key == key) return before + 1;
  const auto found = cached_.find(key);
  return found == cached_.end() ? kNone : found->second;
}

bool BufferPool::Copy(uint64_t key, std::byte* to) {
  std::lock_guard lock(mutex_);
  const auto found = cached_.find(key);
  if (found == cached_.end()) return false;
  pages_[found->second].referenced = true;
  std::memcpy(to, PageData(found->second), kBlockSize);
  return true;
}

// The hand goes on from where it stopped, so that pages taken together lie together; a page that was hit
// since it last came by is passed once. There is one that nobody has pinned: the allotments are no more than
// the pool.
uint32_t BufferPool::TakeOne() {
  if (const uint32_t dropped = TakeDropped(); dropped != kNone) return dropped;
  for (;;) {
    const auto index = static_cast<uint32_t>(hand_);
    hand_ = hand_ + 1 == pages_.size() ? 0 : hand_ + 1;
    Page& page = pages_[index];
    if (page.pins > 0) continue;
    if (std::exchange(page.referenced, false)) continue;
    Forget(&page);
    page.pins = 1;
    --unpinned_;
    used_ = std::max<uint64_t>(used_, (index + 1) * kBlockSize);
    return index;
  }
}

uint32_t BufferPool::TakeDropped() {
  while (!dropped_.empty()) {
    PageRun& run = dropped_.back();
    const uint32_t index = run.first++;
    if (--run.count == 0) dropped_.pop_back();
    Page& page = pages_[index];
    if (page.pins > 0 || page.key != kNoKey) continue;
    page.pins = 1;
    --unpinned_;
    return index;
  }
  return kNone;
}

void BufferPool::MakeLargePagesAhead() {
  const uint64_t all = memory_->size() / kLargePage * kLargePage;
  const uint64_t wanted = std::min(all, (used_ / kLargeStep + 1) * kLargeStep + kLargeAhead);
  if (wanted <= large_) return;
  large_pages_.Post([this, begin = large_, wanted] { MakeLargePages(begin, wanted); });
  large_ = wanted;
}

void BufferPool::MakeLargePages(uint64_t begin, uint64_t end) {
  for (; begin < end && refused_ < kMostLargePageRefusals; begin += kLargeStep) {
    const Status made = memory_->MakeLargePages(begin, std::min(begin + kLargeStep, end));
    if (made.ok()) {
      refused_ = 0;
    } else if (ToErrno(made) == ENOTSUP || ++refused_ == kMostLargePageRefusals) {
      refused_ = kMostLargePageRefusals;
      LogInfo("the pool's memory stays in small pages from here on: %s", made.message());
    }
  }
}

void BufferPool::Forget(Page* page) {
  if (page->key == kNoKey) return;
  cached_.erase(page->key);
  page->key = kNoKey;
  page->referenced = false;
}

void BufferPool::Unpin(std::span<const uint32_t> pages) {
  std::lock_guard lock(mutex_);
  for (uint32_t index : pages) {
    if (--pages_[index].pins == 0) ++unpinned_;
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
  PageRun dropped{0, 0};
  const auto keep = [&] {
    if (dropped.count >= kFewestDropped) dropped_.push_back(dropped);
  };
  for (uint64_t block = run.first; block < run.first + run.count; ++block) {
    auto it = cached_.find(CacheKey(ost_slot, block));
    if (it == cached_.end()) continue;
    const uint32_t index = it->second;
    pages_[index].key = kNoKey;
    pages_[index].referenced = false;
    cached_.erase(it);
    if (index != dropped.first + dropped.count) {
      keep();
      dropped = {index, 0};
    }
    ++dropped.count;
  }
  keep();
}

size_t BufferPool::pinned_pages() const {
  std::lock_guard lock(mutex_);
  return pages_.size() - unpinned_;
}

}  // namespace nacre::ost
