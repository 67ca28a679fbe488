#include "transport/block_sums.h"

#include <absl/container/inlined_vector.h>

#include <algorithm>

#include "common/crc32c.h"
#include "common/ids.h"
#include "transport/memory_device.h"

namespace nacre {
namespace {

// The run, with the piece of memory in which it lies; if it lies in several, those of its blocks that lie in
// one.
void AddRun(const FlatMemory& memory, const BlockSums::Run& run, std::vector<BlockSums::Run>* runs,
            std::vector<iovec>* pieces) {
  absl::InlinedVector<iovec, 2> parts;
  memory.AppendPieces(run.offset, run.length, &parts);
  if (parts.size() == 1) {
    pieces->push_back(parts.front());
    runs->push_back(run);
  } else if (run.count > 1) {
    for (size_t i = 0; i < run.count; ++i) AddRun(memory, run.Only(i), runs, pieces);
  }
}

}  // namespace

BlockSums::Run BlockSums::Run::Only(size_t i) const {
  const uint64_t before = i * kBlockSize;
  return {block + i, 1, offset + before, std::min(length - before, kBlockSize)};
}

void BlockSums::Add(uint64_t object_offset, uint64_t length) {
  std::lock_guard lock(mutex_);
  size_t next = blocks_.size();
  blocks_.resize(next + CrcCount(object_offset, length));
  const uint64_t end = object_offset + length;
  for (uint64_t at = object_offset; at < end; ++next) {
    const uint64_t stop = std::min(end, (at / kBlockSize + 1) * kBlockSize);
    blocks_[next] = {.begin = size_, .length = static_cast<uint16_t>(stop - at)};
    size_ += stop - at;
    at = stop;
  }
}

void BlockSums::Reset() {
  std::lock_guard lock(mutex_);
  for (Block& block : blocks_) block.state = State::kUntouched;
}

std::vector<BlockSums::Run> BlockSums::Begin(uint64_t offset, uint64_t length) {
  std::vector<Run> runs;
  if (length == 0) return runs;
  std::lock_guard lock(mutex_);
  auto block = std::upper_bound(blocks_.begin(), blocks_.end(), offset,
                                [](uint64_t at, const Block& block) { return at < block.begin; });
  if (block != blocks_.begin()) --block;
  bool goes_on = false;  // the block before is the last one of the last run, and whole
  for (; block != blocks_.end() && block->begin < offset + length; ++block) {
    const bool all = offset <= block->begin && block->begin + block->length <= offset + length;
    const bool first = block->state == State::kUntouched;
    block->state = all && first ? State::kPut : State::kUnclear;
    if (!all || !first) {
      goes_on = false;
      continue;
    }
    if (!goes_on) runs.push_back({static_cast<size_t>(block - blocks_.begin()), 0, block->begin, 0});
    ++runs.back().count;
    runs.back().length += block->length;
    goes_on = block->length == kBlockSize;
  }
  return runs;
}

void BlockSums::End(std::span<const Run> runs, std::span<const uint32_t> sums) {
  std::lock_guard lock(mutex_);
  for (const Run& run : runs) {
    for (size_t i = 0; i < run.count; ++i) {
      Block& block = blocks_[run.block + i];
      if (block.state != State::kPut) continue;  // another put has touched it meanwhile
      block.state = State::kSummed;
      block.sum = sums[i];
    }
    sums = sums.subspan(run.count);
  }
}

std::vector<std::optional<uint32_t>> BlockSums::Made() const {
  std::lock_guard lock(mutex_);
  std::vector<std::optional<uint32_t>> made(blocks_.size());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].state == State::kSummed) made[i] = blocks_[i].sum;
  }
  return made;
}

Task<Status> CopyToDevice(const FlatMemory& memory, uint64_t offset, std::vector<iovec> from,
                          BlockSumsPtr sums) {
  uint64_t length = 0;
  for (const iovec& piece : from) length += piece.iov_len;
  std::vector<iovec> to;
  to.reserve(from.size());
  memory.AppendPieces(offset, length, &to);
  if (sums == nullptr) co_return co_await memory.device()->CopyIn(std::move(to), std::move(from));
  std::vector<BlockSums::Run> runs;
  std::vector<iovec> pieces;
  runs.reserve(to.size());
  pieces.reserve(to.size());
  for (const BlockSums::Run& run : sums->Begin(offset, length)) AddRun(memory, run, &runs, &pieces);
  CO_ASSIGN_OR_RETURN(
      const std::vector<uint32_t> made,
      co_await memory.device()->CopyInAndSum(std::move(to), std::move(from), std::move(pieces)));
  sums->End(runs, made);
  co_return OkStatus();
}

}  // namespace nacre
