#include "server/object/allocator.h"

#include <algorithm>

namespace nacre::ost {

Allocator::Allocator(uint64_t block_count)
    : block_count_(block_count),
      bits_((block_count + 63) / 64),
      groups_((block_count + kGroupBlocks - 1) / kGroupBlocks),
      free_(block_count) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].free = static_cast<uint32_t>(GroupEnd(g) - g * kGroupBlocks);
  }
}

bool Allocator::MarkUsed(uint64_t block) {
  std::lock_guard lock(mutex_);
  if (block >= block_count_ || Test(block)) return false;
  Set(block);
  --groups_[block / kGroupBlocks].free;
  --free_;
  return true;
}

void Allocator::FinishScan() {
  std::lock_guard lock(mutex_);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const uint64_t size = GroupEnd(g) - g * kGroupBlocks;
    if (groups_[g].free == size || groups_[g].backed) continue;
    groups_[g].backed = true;
    backed_free_ += groups_[g].free;
  }
}

// The first block in [from, end) that is free, `end` without one; whole words are skipped.
uint64_t Allocator::NextFree(uint64_t from, uint64_t end) const {
  while (from < end) {
    uint64_t word = ~bits_[from / 64] >> (from % 64);
    if (word != 0) return std::min<uint64_t>(end, from + static_cast<uint64_t>(std::countr_zero(word)));
    from = (from / 64 + 1) * 64;
  }
  return end;
}

uint64_t Allocator::NextUsed(uint64_t from, uint64_t end) const {
  while (from < end) {
    uint64_t word = bits_[from / 64] >> (from % 64);
    if (word != 0) return std::min<uint64_t>(end, from + static_cast<uint64_t>(std::countr_zero(word)));
    from = (from / 64 + 1) * 64;
  }
  return end;
}

void Allocator::Mark(const BlockRun& run) {
  for (uint64_t block = run.first; block < run.first + run.count; ++block) {
    Set(block);
    --groups_[block / kGroupBlocks].free;
  }
  free_ -= run.count;
  backed_free_ -= run.count;
}

void Allocator::TakeFrom(uint64_t from, uint64_t end, uint64_t* left, std::vector<BlockRun>* runs) {
  while (*left > 0) {
    from = NextFree(from, end);
    if (from >= end) return;
    uint64_t stop = NextUsed(from, std::min(end, from + *left));
    BlockRun run{from, stop - from};
    Mark(run);
    *left -= run.count;
    if (!runs->empty() && runs->back().first + runs->back().count == run.first) {
      runs->back().count += run.count;
    } else {
      runs->push_back(run);
    }
    from = stop;
    next_ = stop;
  }
}

std::optional<std::vector<BlockRun>> Allocator::Allocate(uint64_t count, uint64_t goal) {
  std::lock_guard lock(mutex_);
  if (backed_free_ < count) return std::nullopt;
  std::vector<BlockRun> runs;
  uint64_t left = count;
  auto take_in_group = [&](uint64_t from) {
    size_t group = from / kGroupBlocks;
    if (!groups_[group].backed || groups_[group].free == 0) return;
    TakeFrom(from, GroupEnd(group), &left, &runs);
  };
  if (goal < block_count_ && !Test(goal) && groups_[goal / kGroupBlocks].backed) {
    TakeFrom(goal, NextUsed(goal, std::min(goal + count, GroupEnd(goal / kGroupBlocks))), &left, &runs);
  }
  if (left == 0) return runs;
  uint64_t start = next_ < block_count_ ? next_ : 0;
  take_in_group(start);
  for (size_t i = 1; i <= groups_.size() && left > 0; ++i) {
    take_in_group((start / kGroupBlocks + i) % groups_.size() * kGroupBlocks);
  }
  return runs;
}

void Allocator::Free(const std::vector<BlockRun>& runs) {
  std::lock_guard lock(mutex_);
  for (const BlockRun& run : runs) {
    for (uint64_t block = run.first; block < run.first + run.count; ++block) {
      if (!Test(block)) continue;
      Clear(block);
      Group& group = groups_[block / kGroupBlocks];
      ++group.free;
      ++free_;
      if (group.backed) ++backed_free_;
    }
  }
}

std::optional<BlockRun> Allocator::UnbackedGroup() {
  std::lock_guard lock(mutex_);
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].backed) continue;
    return BlockRun{g * kGroupBlocks, GroupEnd(g) - g * kGroupBlocks};
  }
  return std::nullopt;
}

void Allocator::SetBacked(const BlockRun& group) {
  std::lock_guard lock(mutex_);
  Group& g = groups_[group.first / kGroupBlocks];
  if (g.backed) return;
  g.backed = true;
  backed_free_ += g.free;
}

std::vector<BlockRun> Allocator::TakeEmptyGroups(uint64_t keep, size_t limit) {
  std::lock_guard lock(mutex_);
  std::vector<BlockRun> taken;
  for (size_t g = groups_.size(); g-- > 0 && taken.size() < limit;) {
    const uint64_t size = GroupEnd(g) - g * kGroupBlocks;
    if (!groups_[g].backed || groups_[g].free != size || backed_free_ < keep + size) continue;
    groups_[g].backed = false;
    backed_free_ -= size;
    taken.push_back({g * kGroupBlocks, size});
  }
  return taken;
}

std::vector<BlockRun> Allocator::Unbacked() const {
  std::lock_guard lock(mutex_);
  std::vector<BlockRun> runs;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].backed) continue;
    const uint64_t first = g * kGroupBlocks;
    if (runs.empty() || runs.back().first + runs.back().count != first) runs.push_back({first, 0});
    runs.back().count += GroupEnd(g) - first;
  }
  return runs;
}

uint64_t Allocator::free_blocks() const {
  std::lock_guard lock(mutex_);
  return free_;
}

uint64_t Allocator::backed_free_blocks() const {
  std::lock_guard lock(mutex_);
  return backed_free_;
}

bool Allocator::IsUsed(uint64_t block) const {
  std::lock_guard lock(mutex_);
  return block < block_count_ && Test(block);
}

}  // namespace nacre::ost
