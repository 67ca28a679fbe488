#include "transport/block_sums.h"

#include <absl/container/inlined_vector.h>

#include <algorithm>

#include "common/crc32c.h"
#include "common/ids.h"
#include "transport/memory_device.h"

namespace nacre {
namespace {

using Places = std::span<const BlockSums::Place>;

// Behind the last of the blocks that follow each other, all of them whole but the last.
Places::iterator EndOfRun(Places::iterator first, Places::iterator end) {
  auto next = first + 1;
  while (next != end && next[-1].length == kBlockSize && next->offset == next[-1].offset + kBlockSize) ++next;
  return next;
}

// In one piece if the run lies in one; else the blocks that do.
void AddRun(const FlatMemory& memory, Places run, std::vector<size_t>* blocks, std::vector<iovec>* pieces) {
  absl::InlinedVector<iovec, 2> parts;
  const uint64_t begin = run.front().offset, end = run.back().offset + run.back().length;
  memory.AppendPieces(begin, end - begin, &parts);
  if (parts.size() == 1) {
    pieces->push_back(parts.front());
    const size_t before = blocks->size();
    blocks->resize(before + run.size());
    std::ranges::transform(run, blocks->begin() + static_cast<ptrdiff_t>(before), &BlockSums::Place::block);
  } else if (run.size() > 1) {
    for (const BlockSums::Place& place : run) AddRun(memory, {&place, 1}, blocks, pieces);
  }
}

}  // namespace

void BlockSums::Add(uint64_t object_offset, uint64_t length) {
  std::lock_guard lock(mutex_);
  size_t next = blocks_.size();
  blocks_.resize(next + CrcCount(object_offset, length));
  const uint64_t end = object_offset + length;
  for (uint64_t at = object_offset; at < end; ++next) {
    const uint64_t stop = std::min(end, (at / kBlockSize + 1) * kBlockSize);
    blocks_[next] = {.begin = size_, .length = static_cast<uint32_t>(stop - at)};
    size_ += stop - at;
    at = stop;
  }
}

void BlockSums::Reset() {
  std::lock_guard lock(mutex_);
  for (Block& block : blocks_) block.state = State::kUntouched;
}

std::vector<BlockSums::Place> BlockSums::Begin(uint64_t offset, uint64_t length) {
  std::vector<Place> whole;
  if (length == 0) return whole;
  whole.reserve(length / kBlockSize + 1);
  std::lock_guard lock(mutex_);
  auto block = std::upper_bound(blocks_.begin(), blocks_.end(), offset,
                                [](uint64_t at, const Block& block) { return at < block.begin; });
  if (block != blocks_.begin()) --block;
  for (; block != blocks_.end() && block->begin < offset + length; ++block) {
    const bool all = offset <= block->begin && block->begin + block->length <= offset + length;
    const bool first = block->state == State::kUntouched;
    block->state = all && first ? State::kPut : State::kUnclear;
    if (all && first)
      whole.push_back({static_cast<size_t>(block - blocks_.begin()), block->begin, block->length});
  }
  return whole;
}

void BlockSums::End(std::span<const size_t> blocks, std::span<const uint32_t> sums) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < blocks.size(); ++i) {
    Block& block = blocks_[blocks[i]];
    if (block.state != State::kPut) continue;  // another put has touched it meanwhile
    block.state = State::kSummed;
    block.sum = sums[i];
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
  std::vector<size_t> blocks;
  std::vector<iovec> pieces;
  const std::vector<BlockSums::Place> places = sums->Begin(offset, length);
  const Places all = places;
  blocks.reserve(places.size());
  pieces.reserve(places.size());
  for (auto first = all.begin(); first != all.end();) {
    const auto end = EndOfRun(first, all.end());
    AddRun(memory, {first, end}, &blocks, &pieces);
    first = end;
  }
  CO_ASSIGN_OR_RETURN(
      const std::vector<uint32_t> made,
      co_await memory.device()->CopyInAndSum(std::move(to), std::move(from), std::move(pieces)));
  sums->End(blocks, made);
  co_return OkStatus();
}

}  // namespace nacre
