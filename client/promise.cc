// Room on the MDT for what is held back of small files, and of sizes and times: the MDS promises so many
// bytes to each session, and a write is held back only within them. So it cannot fail later for want of space
// there (the OSTs' grants in targets.h are the same for objects).
#include "client/core.h"
#include "client/settling.h"

namespace nacre::client {
namespace {

constexpr int kTries = 3;

}  // namespace

bool Core::TryHold(Inode& inode, uint64_t bytes) {
  std::lock_guard lock(inode.mutex);
  if (bytes <= inode.held) return true;
  const uint64_t more = bytes - inode.held;
  if (held_.fetch_add(more) + more > promised_) {
    held_ -= more;
    return false;
  }
  inode.held = bytes;
  return true;
}

// `bytes` in all for this file. False: the MDT has no room to promise, ask it now.
Task<bool> Core::Hold(InodePtr inode, uint64_t bytes) {
  for (int i = 0; i < kTries && promised_ > 0; ++i) {
    if (TryHold(*inode, bytes)) {
      if (held_ > promised_ / 2) RelievePressure();
      co_return true;
    }
    co_await SendOld(0ns);
  }
  co_return false;
}

// Nothing is held back of this file any more, or it does not matter. Bytes in the cache count too: the time
// of their write may have been told already, with that of others, and what their sending changes has not.
void Core::LetGo(Inode& inode) {
  const bool unsent = cache_->IsDirty(inode.data);
  std::lock_guard lock(inode.mutex);
  const bool untold = inode.pending.any() || inode.inline_dirty() || inode.inline_flights > 0;
  if (!inode.gone && (unsent || untold)) return;
  held_ -= std::exchange(inode.held, 0);
}

// A write into an inline file that the MDS carries out now. The whole range is locked.
Task<StatusOr<size_t>> Core::WriteInlineNow(HandlePtr handle, uint64_t offset, Pieces pieces, size_t size) {
  InodePtr inode = handle->inode;
  AsyncMutex::Guard meta = co_await inode->meta.Lock();
  CO_RETURN_IF_ERROR(co_await SendInline(inode));
  Settling settling(*this, {inode});
  CO_RETURN_IF_ERROR(co_await WriteInlineThrough(handle, offset, pieces, size, nullptr));
  std::lock_guard lock(inode->mutex);
  if (inode->inline_bytes == nullptr) co_return size;
  std::string& bytes = inode->inline_bytes.Grow(offset + size);
  CopyOut(pieces, 0, reinterpret_cast<std::byte*>(bytes.data()) + offset, size);
  co_return size;
}

}  // namespace nacre::client
