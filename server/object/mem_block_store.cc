#include "server/object/mem_block_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/crc32c.h"

namespace nacre {

MemBlockStore::MemBlockStore(uint64_t block_count, Options options)
    : block_count_(block_count), options_(options) {}

// The checks, the fault and the delay that every operation begins with. ESHUTDOWN: it crashed meanwhile.
Task<Status> MemBlockStore::Begin(Operation operation, uint64_t block, uint64_t count) {
  uint64_t incarnation;
  Duration delay{0};
  Clock* clock;
  {
    std::lock_guard lock(mutex_);
    if (block > block_count_ || count > block_count_ - block) {
      co_return ErrnoError(EINVAL,
                           absl::StrCat(count, " blocks at ", block, " of a store of ", block_count_));
    }
    if (fault_hook_) CO_RETURN_IF_ERROR(fault_hook_(operation, block, count));
    incarnation = incarnation_;
    clock = options_.clock;
    if (clock != nullptr) {
      const bool slow = options_.slow_one_in > 0 && options_.random->OneIn(options_.slow_one_in);
      const Duration longest = slow ? options_.max_slow : options_.max_delay;
      const uint64_t spread = static_cast<uint64_t>((longest - options_.min_delay).count());
      delay = options_.min_delay + Duration(options_.random->Below(spread + 1));
    }
  }
  if (clock != nullptr) co_await clock->Sleep(delay);
  std::lock_guard lock(mutex_);
  if (incarnation != incarnation_) co_return ErrnoError(ESHUTDOWN, "the block store crashed");
  co_return OkStatus();
}

MemBlockStore::ContentPtr MemBlockStore::Newest(uint64_t block) const {
  auto it = blocks_.find(block);
  return it == blocks_.end() ? nullptr : it->second.versions.back().content;
}

void MemBlockStore::Apply(uint64_t block, ContentPtr content) {
  Block& entry = blocks_[block];
  if (entry.versions.empty()) entry.versions.push_back({0, nullptr});
  entry.versions.push_back({++sequence_, std::move(content)});
  unflushed_.insert(block);
  unwritten_.erase(block);
}

Task<Status> MemBlockStore::Read(uint64_t block, std::span<const std::span<std::byte>> buffers) {
  uint64_t bytes = 0;
  for (auto buffer : buffers) bytes += buffer.size();
  Status status = co_await Begin(Operation::kRead, block, bytes / kBlockSize);
  if (!status.ok()) co_return status;
  std::lock_guard lock(mutex_);
  for (auto buffer : buffers) {
    for (size_t at = 0; at < buffer.size(); at += kBlockSize, ++block) {
      ContentPtr content = Newest(block);
      if (content == nullptr) {
        std::memset(buffer.data() + at, 0, kBlockSize);
      } else {
        std::memcpy(buffer.data() + at, content->data(), kBlockSize);
      }
    }
  }
  co_return OkStatus();
}

Task<Status> MemBlockStore::Write(uint64_t block, std::span<const std::span<const std::byte>> buffers) {
  Pending write{block, {}};
  for (auto buffer : buffers) {
    for (size_t at = 0; at < buffer.size(); at += kBlockSize) {
      auto content = std::make_shared<Content>();
      std::memcpy(content->data(), buffer.data() + at, kBlockSize);
      write.contents.push_back(std::move(content));
    }
  }
  uint64_t count = write.contents.size();
  std::list<Pending>::iterator place;
  {
    std::lock_guard lock(mutex_);
    place = pending_.insert(pending_.end(), std::move(write));
  }
  Status status = co_await Begin(Operation::kWrite, block, count);
  std::lock_guard lock(mutex_);
  if (ToErrno(status) == ESHUTDOWN) co_return status;  // the crash has taken it from the list
  if (status.ok()) {
    for (ContentPtr& content : place->contents) Apply(block++, std::move(content));
  }
  pending_.erase(place);
  co_return status;
}

Task<Status> MemBlockStore::Flush() {
  uint64_t upto;
  {
    std::lock_guard lock(mutex_);
    upto = sequence_;
  }
  Status status = co_await Begin(Operation::kFlush, 0, 0);
  std::lock_guard lock(mutex_);
  if (ToErrno(status) == ESHUTDOWN) co_return status;  // it crashed meanwhile
  if (!status.ok()) {
    unwritten_ = unflushed_;
    co_return status;
  }
  for (auto it = unflushed_.begin(); it != unflushed_.end();) {
    if (unwritten_.contains(*it)) {
      ++it;
      continue;
    }
    auto& versions = blocks_[*it].versions;
    size_t keep = 0;
    while (keep + 1 < versions.size() && versions[keep + 1].sequence <= upto) ++keep;
    versions.erase(versions.begin(), versions.begin() + static_cast<ptrdiff_t>(keep));
    it = versions.size() == 1 ? unflushed_.erase(it) : std::next(it);
  }
  co_return OkStatus();
}

Task<Status> MemBlockStore::Preallocate(uint64_t block, uint64_t count) {
  std::lock_guard lock(mutex_);
  if (block + count > block_count_)
    co_return ErrnoError(EINVAL, absl::StrCat("no block ", block + count - 1));
  if (preallocated_.contains(block)) co_return OkStatus();
  if (AvailableLocked() < count) {
    co_return ErrnoError(ENOSPC, absl::StrCat("the disk in memory has no ", count, " blocks left"));
  }
  preallocated_[block] = count;
  co_return OkStatus();
}

uint64_t MemBlockStore::available_blocks() const {
  std::lock_guard lock(mutex_);
  return AvailableLocked();
}

uint64_t MemBlockStore::AvailableLocked() const {
  uint64_t left = options_.available_blocks;
  for (const auto& [first, count] : preallocated_) left -= std::min(left, count);
  return left;
}

Task<Status> MemBlockStore::Discard(uint64_t block, uint64_t count) {
  std::lock_guard lock(mutex_);
  preallocated_.erase(preallocated_.lower_bound(block), preallocated_.lower_bound(block + count));
  for (uint64_t i = 0; i < count; ++i) {
    blocks_.erase(block + i);
    unflushed_.erase(block + i);
    unwritten_.erase(block + i);
  }
  co_return OkStatus();
}

void MemBlockStore::CrashProcess(Random& random) {
  std::lock_guard lock(mutex_);
  ++incarnation_;
  for (const uint64_t block : std::exchange(unwritten_, {})) {
    blocks_[block].versions.resize(1);
    unflushed_.erase(block);
  }
  for (Pending& write : pending_) {
    for (size_t i = 0; i < write.contents.size(); ++i) {
      if (random.OneIn(2)) Apply(write.block + i, std::move(write.contents[i]));
    }
  }
  pending_.clear();
}

void MemBlockStore::LosePower(Random& random) {
  CrashProcess(random);
  std::lock_guard lock(mutex_);
  for (uint64_t block : unflushed_) {
    auto& versions = blocks_[block].versions;
    Version kept = versions[random.Below(versions.size())];
    versions.assign(1, std::move(kept));
  }
  unflushed_.clear();
}

void MemBlockStore::SetFaultHook(FaultHook hook) {
  std::lock_guard lock(mutex_);
  fault_hook_ = std::move(hook);
}

void MemBlockStore::SetNoDelay() {
  std::lock_guard lock(mutex_);
  options_.clock = nullptr;
}

void MemBlockStore::FlipBit(uint64_t block, size_t byte) {
  std::lock_guard lock(mutex_);
  Block& entry = blocks_[block];
  if (entry.versions.empty()) entry.versions.push_back({0, nullptr});
  for (Version& version : entry.versions) {
    auto content = std::make_shared<Content>();
    if (version.content != nullptr) *content = *version.content;
    (*content)[byte] ^= std::byte{1};
    version.content = std::move(content);
  }
}

bool MemBlockStore::SurelyHas(uint64_t block, uint32_t crc) const {
  static constexpr Content kZeros{};
  std::lock_guard lock(mutex_);
  auto it = blocks_.find(block);
  if (it == blocks_.end()) return Crc32c(kZeros) == crc;
  return std::ranges::all_of(it->second.versions, [crc](const Version& version) {
    return Crc32c(version.content == nullptr ? kZeros : *version.content) == crc;
  });
}

}  // namespace nacre
