#include "server/object/space.h"

#include <algorithm>
#include <cerrno>

namespace nacre::ost {
namespace {

constexpr int kReclaimTries = 4;  // blocks become free in the second sync after their end
constexpr size_t kTrimAtOnce = 16;
constexpr uint64_t kMaxReserve = (64 << 20) / kBlockSize;
constexpr uint64_t kSpareGroups = 2;    // stay backed for what comes, unless
constexpr uint64_t kScarceGroups = 16;  // the disk below has less than this left

}  // namespace

GrantUse::~GrantUse() {
  if (space_ != nullptr && left_ > 0) space_->Release(left_);
}

Space::Space(BlockStore* blocks, std::string place)
    : blocks_(blocks),
      place_(std::move(place)),
      allocator_(blocks->block_count()),
      reserve_(std::min(kMaxReserve, blocks->block_count() / 100)) {}

std::optional<std::vector<BlockRun>> Space::TryAllocate(const Request& request) {
  std::lock_guard lock(mutex_);
  uint64_t from_grant = request.grant == nullptr ? 0 : std::min(request.grant->left_, request.blocks);
  uint64_t others =
      promised_ - from_grant + (request.replaces || from_grant == request.blocks ? 0 : reserve_);
  if (allocator_.backed_free_blocks() < request.blocks + others) return std::nullopt;
  auto runs = allocator_.Allocate(request.blocks, request.goal);
  if (!runs) return std::nullopt;
  if (from_grant > 0) {
    request.grant->left_ -= from_grant;
    promised_ -= from_grant;
  }
  return runs;
}

Task<StatusOr<std::vector<BlockRun>>> Space::Allocate(Request request) {
  for (int reclaimed = 0;;) {
    auto runs = TryAllocate(request);
    if (runs) co_return *std::move(runs);
    Status backed = co_await BackMore();
    if (backed.ok()) continue;
    if (ToErrno(backed) != ENOSPC) co_return backed;
    if (reclaimed++ < kReclaimTries && reclaim_) {
      StatusOr<bool> more = co_await reclaim_();
      if (!more.ok()) co_return more.status();
      if (*more) continue;
    }
    co_return ErrnoError(ENOSPC, absl::StrCat(place_, " is full: ", request.blocks, " blocks wanted, ",
                                              allocator_.backed_free_blocks(), " free, ", promised(),
                                              " promised to clients; ", backed.message()));
  }
}

// One more group, unless another caller has just backed one.
Task<Status> Space::BackMore() {
  uint64_t before = allocator_.backed_free_blocks();
  AsyncMutex::Guard guard = co_await backing_.Lock();
  if (allocator_.backed_free_blocks() > before) co_return OkStatus();
  std::optional<BlockRun> group = allocator_.UnbackedGroup();
  if (!group)
    co_return ErrnoError(ENOSPC, absl::StrCat("all of its ", allocator_.block_count(), " blocks are in use"));
  Status status = co_await blocks_->Preallocate(group->first, group->count);
  if (!status.ok()) co_return status;
  allocator_.SetBacked(*group);
  co_return OkStatus();
}

Task<uint64_t> Space::Promise(uint64_t blocks) {
  while (true) {
    {
      std::lock_guard lock(mutex_);
      uint64_t taken = promised_ + reserve_;
      uint64_t free = allocator_.backed_free_blocks();
      uint64_t available = free > taken ? free - taken : 0;
      if (available >= blocks) {
        promised_ += blocks;
        co_return blocks;
      }
    }
    Status backed = co_await BackMore();
    if (backed.ok()) continue;
    std::lock_guard lock(mutex_);
    uint64_t taken = promised_ + reserve_;
    uint64_t free = allocator_.backed_free_blocks();
    uint64_t promise = std::min(blocks, free > taken ? free - taken : 0);
    promised_ += promise;
    co_return promise;
  }
}

void Space::Release(uint64_t promised) {
  std::lock_guard lock(mutex_);
  promised_ -= std::min(promised_, promised);
}

uint64_t Space::promised() const {
  std::lock_guard lock(mutex_);
  return promised_;
}

uint64_t Space::free_blocks() const {
  uint64_t backed = allocator_.backed_free_blocks();
  uint64_t unbacked = allocator_.free_blocks() - std::min(backed, allocator_.free_blocks());
  return backed + std::min(unbacked, blocks_->available_blocks());
}

Task<Status> Space::Trim() {
  AsyncMutex::Guard guard = co_await backing_.Lock();
  std::vector<BlockRun> groups;
  {
    std::lock_guard lock(mutex_);
    bool scarce = blocks_->available_blocks() < kScarceGroups * kGroupBlocks;
    uint64_t spare = scarce ? 0 : kSpareGroups * kGroupBlocks;
    groups = allocator_.TakeEmptyGroups(promised_ + reserve_ + spare, kTrimAtOnce);
  }
  co_return co_await Discard(groups);
}

Task<Status> Space::DiscardUnbacked() {
  if (!blocks_->shares_disk()) co_return OkStatus();
  AsyncMutex::Guard guard = co_await backing_.Lock();
  co_return co_await Discard(allocator_.Unbacked());
}

Task<Status> Space::Discard(std::vector<BlockRun> runs) {
  for (const BlockRun& run : runs) {
    Status status = co_await blocks_->Discard(run.first, run.count);
    if (!status.ok()) co_return status;
  }
  co_return OkStatus();
}

}  // namespace nacre::ost
