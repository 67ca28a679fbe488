// Reading: out of the cache under a lease, past it otherwise or with O_DIRECT.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "client/core.h"

namespace nacre::client {
namespace {

constexpr uint64_t kMostPinned = 4 << 20;  // of one read

ReadResult Slice(std::shared_ptr<std::string> bytes, uint64_t offset, size_t size) {
  ReadResult result;
  if (offset >= bytes->size()) return result;
  result.size = std::min<uint64_t>(size, bytes->size() - offset);
  result.pieces.push_back(std::as_bytes(std::span(bytes->data() + offset, result.size)));
  result.keep = std::move(bytes);
  return result;
}

// The lease by which the file keeps its objects although others write to it; null: there is none.
ScopePtr SharedUnder(Inode& inode) {
  std::lock_guard lock(inode.mutex);
  return inode.IsShared() ? inode.scope : nullptr;
}

}  // namespace

Task<StatusOr<ReadResult>> Core::Read(HandlePtr handle, uint64_t offset, size_t size) {
  NACRE_ENTER(pass);
  CO_RETURN_IF_ERROR(entrance_.Check(*handle));
  if (!handle->readable()) co_return ErrnoError(EBADF, "read: the file is open for writing only");
  if (offset > INT64_MAX || size > INT64_MAX - offset)
    co_return ErrnoError(EINVAL, absl::StrFormat("read at %d: too far", offset));
  if (size > std::min<uint64_t>(kMostPinned, cache_->max_allocation() * kChunkSize / 2)) {
    co_return co_await ReadLarge(handle, offset, size);
  }
  if (!ReadsCached(*handle->inode) && WantsContentLease(*handle)) co_await LeaseContent(handle);
  if (!ReadsCached(*handle->inode)) co_return co_await ReadThrough(handle, offset, size);
  auto read = co_await ReadCached(handle, offset, size);
  if (!entrance_.LeasesGood())
    CO_RETURN_IF_ERROR(co_await entrance_.AwaitGoodLeases(handle));  // they ran out while it waited
  co_return read;
}

// More than the cache should hold in place for one reader: gathered in memory of its own.
Task<StatusOr<ReadResult>> Core::ReadLarge(HandlePtr handle, uint64_t offset, size_t size) {
  auto buffer = std::make_shared<std::string>();
  const uint64_t most = std::min<uint64_t>(kMostPinned, cache_->max_allocation() * kChunkSize / 2);
  bool relies = false;  // on a lease
  while (buffer->size() < size) {
    size_t want = std::min<uint64_t>(most, size - buffer->size());
    uint64_t at = offset + buffer->size();
    StatusOr<ReadResult> part = ErrnoError(EIO, "nothing read");
    if (ReadsCached(*handle->inode)) {
      relies = true;
      part = co_await ReadCached(handle, at, want);
    } else {
      part = co_await ReadThrough(handle, at, want);
    }
    if (!part.ok()) co_return part.status();
    for (std::span<const std::byte> piece : part->pieces) {
      buffer->append(reinterpret_cast<const char*>(piece.data()), piece.size());
    }
    if (part->size < want) break;
  }
  if (relies && !entrance_.LeasesGood()) CO_RETURN_IF_ERROR(co_await entrance_.AwaitGoodLeases(handle));
  co_return Slice(std::move(buffer), 0, size);
}

// READ of a file may end while something is read under it, for nobody who gives a lease back waits for reads.
// Then the file may have left the objects that were asked.
Task<StatusOr<ReadResult>> Core::ReadCached(HandlePtr handle, uint64_t offset, size_t size) {
  Inode& inode = *handle->inode;
  uint64_t lease = 0;
  {
    std::lock_guard lock(inode.mutex);
    if (inode.ContentLeased()) lease = inode.pages.lease;
  }
  auto read = co_await ReadInCache(handle, offset, size);
  if (HoldsData(inode)) co_return read;
  {
    std::lock_guard lock(inode.mutex);
    if (inode.ContentLeased() && inode.pages.lease == lease) co_return read;
  }
  co_return co_await ReadThrough(handle, offset, size);
}

Task<StatusOr<ReadResult>> Core::ReadInCache(HandlePtr handle, uint64_t offset, size_t size) {
  InodePtr inode = handle->inode;
  CO_RETURN_IF_ERROR(co_await mds_->LoadFile(inode));
  LayoutPtr layout;
  uint64_t file_size = 0;
  {
    std::lock_guard lock(inode->mutex);
    if (!inode->Content()) co_return ContentLost(*inode);
    if (inode->Inline()) co_return Slice(inode->inline_bytes.get(), offset, size);
    layout = inode->layout;
    file_size = inode->Size();
  }
  if (offset >= file_size) co_return ReadResult{};
  uint64_t end = std::min<uint64_t>(offset + size, file_size);
  if ((handle->flags & O_DIRECT) != 0) {
    if (cache_->IsDirty(inode->data, offset, end))
      CO_RETURN_IF_ERROR(co_await data_->Send(inode, offset, end));
    auto read = co_await reads_->Past(inode, layout, offset, end - offset, nullptr);
    {
      // The lease may have been away meanwhile, and the file have left these objects.
      std::lock_guard lock(inode->mutex);
      if (inode->layout != nullptr && inode->layout->object_sequence() == layout->object_sequence())
        co_return read;
    }
    co_return co_await ReadInCache(handle, offset, size);
  }
  reads_->Ahead(handle, offset, end - offset, file_size);

  ReadResult result;
  auto pins = std::make_shared<ChunkPins>(cache_);
  if (!cache_->TryRead(inode->data, offset, end - offset, &result.pieces, pins.get())) {
    RangeLock::Guard range = co_await inode->range.LockUnlessCancelled(offset, end, false);
    if (!range) co_return GivenUp();
    if (!ReadsCached(*inode)) {  // given up while we waited
      range.Release();
      co_return co_await ReadThrough(handle, offset, size);
    }
    {
      std::lock_guard lock(inode->mutex);  // it may have been cut while we waited
      end = std::min(end, inode->Size());
      if (inode->Inline() && inode->inline_bytes == nullptr) co_return ContentLost(*inode);
      if (inode->Inline()) co_return Slice(inode->inline_bytes.get(), offset, size);
    }
    if (offset >= end) co_return ReadResult{};
    do {
      CO_RETURN_IF_ERROR(co_await reads_->Fetch(inode, offset, end));
    } while (!cache_->TryRead(inode->data, offset, end - offset, &result.pieces, pins.get()));
  }
  result.size = end - offset;
  result.keep = std::move(pins);
  co_return result;
}

// --- past the cache ---

Task<StatusOr<ReadResult>> Core::ReadThrough(HandlePtr handle, uint64_t offset, size_t size) {
  InodePtr inode = handle->inode;
  for (int attempt = 0;; ++attempt) {
    const Duration begin = environment_.clock.Now();
    const ScopePtr shared = SharedUnder(*inode);
    CO_ASSIGN_OR_RETURN(FileContent file, co_await mds_->LoadContent(inode, offset + size));
    if (file.inline_bytes != nullptr) co_return Slice(file.inline_bytes, offset, size);
    if (offset >= file.size) co_return ReadResult{};
    bool complete = true;
    auto result = co_await reads_->Past(inode, file.layout, offset,
                                        std::min<uint64_t>(size, file.size - offset), &complete);
    if (ToErrno(result.status()) == ESTALE && attempt < kRaces) continue;  // its objects have been moved
    if (!result.ok() || attempt >= kRaces || (complete && session_->ObjectsKeptSince(begin)))
      co_return result;
    if (shared != nullptr && shared->good() && entrance_.LeasesGood()) co_return result;  // holes
    const bool replaced = co_await Replaced(inode, file);
    if (!replaced) co_return result;
  }
}

}  // namespace nacre::client
