// The buffers of an OSS: shared memory, registered with the transport, cut into 4 KiB pages. A page is pinned
// (somebody works in it) or not; an unpinned page keeps what it held, which makes the pool the read cache.
// The cache is of physical blocks, which do not change as long as they are mapped. Pages of blocks that have
// been freed are used again first: so files that are written over and over, or made and removed, take no
// memory from the pages that are read.
//
// Its memory becomes large pages before it is used for the first time, where the kernel can do that: devices
// of the same machine then register it in a third of the time. A thread of the pool's own makes them, some
// way ahead of what is used, since that takes many milliseconds at times.
//
// Bounded: who pins pages has an Allotment, which its Admission gives out; so there is a page for everybody
// who asks for one, and nobody waits here. Thread-safe. Pages keep their pool alive.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "common/status.h"
#include "server/kv/own_thread.h"
#include "server/object/admission.h"
#include "server/object/format.h"
#include "transport/shared_memory.h"
#include "transport/transport.h"

namespace nacre::ost {

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  // Pinned pages; unpinned, and back in their allotment, at destruction.
  class Pages {
   public:
    Pages() = default;
    Pages(std::shared_ptr<BufferPool> pool, std::vector<uint32_t> pages, Allotment::Share share)
        : share_(std::move(share)), pool_(std::move(pool)), pages_(std::move(pages)) {}
    Pages(Pages&&) = default;
    Pages& operator=(Pages&& other) noexcept {
      Release();
      share_ = std::move(other.share_);
      pool_ = std::move(other.pool_);
      pages_ = std::move(other.pages_);
      return *this;
    }
    ~Pages() { Release(); }

    size_t size() const { return pages_.size(); }
    uint32_t index(size_t i) const { return pages_[i]; }
    std::byte* data(size_t i) const { return pool_->PageData(pages_[i]); }

   private:
    void Release();
    Allotment::Share share_;
    std::shared_ptr<BufferPool> pool_;
    std::vector<uint32_t> pages_;
  };

  // How far ahead of their first use large pages are made, in such steps: what somebody is writing to cannot
  // be made into one.
  static constexpr uint64_t kLargeStep = 16 * kLargePage, kLargeAhead = 4 * kLargeStep;
  static constexpr uint64_t kMinBytes = 1 << 20;  // Admission::kLeastPart

  // EINVAL below kMinBytes. `transport` may be null (tests).
  static StatusOr<std::shared_ptr<BufferPool>> Create(uint64_t bytes, Transport* transport);
  BufferPool(const BufferPool&) = delete;

  Admission& admission() { return *admission_; }

  // The share is of at least as many pages.
  // Pages with undefined content that belong to no block.
  Pages Take(Allotment::Share share, size_t count);
  // A page for each block: the one that holds it, or, where `cached` becomes false, one with undefined
  // content that belongs to no block. Keys: CacheKey(ost, block).
  Pages Take(Allotment::Share share, std::span<const uint64_t> keys, std::vector<bool>* cached);

  static uint64_t CacheKey(uint32_t ost_slot, uint64_t block) { return uint64_t{ost_slot} << 48 | block; }
  // Copies a block that is cached; false: it is not.
  bool Copy(uint64_t key, std::byte* to);
  // From now on the pages hold these blocks, and no other page does.
  void Publish(std::span<const uint64_t> keys, std::span<const uint32_t> pages);
  void Drop(uint32_t ost_slot, const BlockRun& run);

  // Pages for the network; empty without a transport.
  MemorySpan SpanOf(uint32_t page) const {
    return region_ == nullptr ? MemorySpan{} : MemorySpan{region_, uint64_t{page} * kBlockSize, kBlockSize};
  }

  std::byte* PageData(uint32_t page) const { return memory_->data() + uint64_t{page} * kBlockSize; }
  uint64_t bytes() const { return pages_.size() * kBlockSize; }
  size_t pinned_pages() const;

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  static constexpr uint64_t kNoKey = ~uint64_t{0};
  struct Page {
    uint64_t key = kNoKey;
    uint32_t pins = 0;
    bool referenced = false;  // hit since the hand last came by
  };
  struct PageRun {
    uint32_t first, count;
  };

  explicit BufferPool(std::shared_ptr<SharedMemory> memory)
      : memory_(std::move(memory)),
        pages_(memory_->size() / kBlockSize),
        unpinned_(pages_.size()),
        admission_(std::make_shared<Admission>(pages_.size())) {}

  void MakeLargePages(uint64_t begin, uint64_t end);

  uint32_t TakeOne();      // these under mutex_
  uint32_t TakeDropped();  // kNone: there is none
  uint32_t FindBehind(uint32_t before, uint64_t key) const;
  void MakeLargePagesAhead();
  void Forget(Page* page);
  void Unpin(std::span<const uint32_t> pages);

  const std::shared_ptr<SharedMemory> memory_;
  std::shared_ptr<MemoryRegion> region_;
  mutable std::mutex mutex_;
  std::vector<Page> pages_;
  absl::flat_hash_map<uint64_t, uint32_t> cached_;
  size_t unpinned_;
  size_t hand_ = 0;
  std::vector<PageRun> dropped_;  // of freed blocks; the hand may have taken some since
  uint64_t used_ = 0;             // bytes: where the hand has been
  uint64_t large_ = 0;            // bytes: as far as large pages have been asked for
  const std::shared_ptr<Admission> admission_;
  int refused_ = 0;  // calls for large pages, one after the other; large_pages_'s only
  OwnThread large_pages_;
};

}  // namespace nacre::ost
