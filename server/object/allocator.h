// Free space of an OST: a bitmap in memory, rebuilt at every start from the extent records. Space is handed
// out next-fit in runs as long as can be had. Thread-safe.
//
// Blocks lie in groups of 64 MiB. Only backed groups (the disk below has set the space aside) are allocated
// from; who wants more backs another one first, so that a full disk shows before anything is written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "common/status.h"
#include "server/object/format.h"

namespace nacre::ost {

inline constexpr uint64_t kGroupBlocks = (64 << 20) / kBlockSize;

class Allocator {
 public:
  explicit Allocator(uint64_t block_count);

  // While the extent records are scanned. false: the block is outside, or marked already.
  [[nodiscard]] bool MarkUsed(uint64_t block);
  // After the scan: groups with used blocks are backed.
  void FinishScan();

  // `count` blocks, first of all right behind `goal`; nothing at all if there are not so many in backed
  // groups.
  std::optional<std::vector<BlockRun>> Allocate(uint64_t count, uint64_t goal);
  void Free(const std::vector<BlockRun>& runs);

  // A group to back next, and that it has been; none: all are.
  std::optional<BlockRun> UnbackedGroup();
  void SetBacked(const BlockRun& group);
  // Backed groups without a used block, the last ones first and at most `limit`, as long as `keep` backed
  // free blocks remain; they count as unbacked from now on.
  std::vector<BlockRun> TakeEmptyGroups(uint64_t keep, size_t limit);
  // All that is not backed, neighbours in one run.
  std::vector<BlockRun> Unbacked() const;

  uint64_t block_count() const { return block_count_; }
  uint64_t free_blocks() const;  // all that are not used
  uint64_t backed_free_blocks() const;
  bool IsUsed(uint64_t block) const;

 private:
  struct Group {
    uint32_t free = 0;
    bool backed = false;
  };

  bool Test(uint64_t block) const { return (bits_[block / 64] >> (block % 64) & 1) != 0; }
  void Set(uint64_t block) { bits_[block / 64] |= uint64_t{1} << (block % 64); }
  void Clear(uint64_t block) { bits_[block / 64] &= ~(uint64_t{1} << (block % 64)); }
  uint64_t GroupEnd(uint64_t group) const { return std::min(block_count_, (group + 1) * kGroupBlocks); }
  uint64_t NextFree(uint64_t from, uint64_t end) const;
  uint64_t NextUsed(uint64_t from, uint64_t end) const;
  void TakeFrom(uint64_t from, uint64_t end, uint64_t* left, std::vector<BlockRun>* runs);
  void Mark(const BlockRun& run);

  const uint64_t block_count_;
  mutable std::mutex mutex_;
  std::vector<uint64_t> bits_;  // set: used
  std::vector<Group> groups_;
  uint64_t free_ = 0;
  uint64_t backed_free_ = 0;
  uint64_t next_ = 0;
};

}  // namespace nacre::ost
