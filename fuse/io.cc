// Reading and writing.
//
// Read data goes to the kernel from where the file system has it; written data is handed down in the buffer
// that the request was read into, or in a copy (Session::KeepBytes). How pages stay true:
// docs/decisions/0010-fuse-capabilities.md.
#include <sys/uio.h>

#include <cerrno>

#include "fuse/request.h"

namespace nacre::fuse {
namespace {

// For whom the kernel asks. Read through whatever handle for a page of its cache (a mapping, readahead), it
// names no owner of locks.
bool FillsPages(const fuse_file_info& info) { return info.lock_owner == 0; }

enum class WriteKind {
  kDirect,     // past the page cache
  kCached,     // the pages have the bytes already, the last one is locked until the answer
  kWriteback,  // of a mapping
};

Task<void> Read(Request request, client::HandlePtr handle, bool fills_pages, uint64_t offset, size_t size) {
  StatusOr<client::LockedPages> locked;
  if (fills_pages) {
    locked = co_await request.filesystem().HoldPages(handle, offset, size, client::PageUse::kFill);
    if (!locked.ok()) co_return request.Done(locked.status());
  }
  StatusOr<client::ReadResult> result = co_await request.filesystem().Read(handle, offset, size);
  if (!result.ok()) co_return request.Done(result.status());
  std::vector<iovec> pieces;
  pieces.reserve(result->pieces.size());
  for (std::span<const std::byte> piece : result->pieces) {
    pieces.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
  }
  request.Reply(fuse_reply_iov, pieces.data(), static_cast<int>(pieces.size()));
}

// `copy`: the data, unless the request's answer keeps it.
Task<void> Write(Request request, Fid fid, client::HandlePtr handle, WriteKind kind, uint64_t offset,
                 std::span<const std::byte> data, [[maybe_unused]] std::shared_ptr<std::byte> copy) {
  client::FileSystem& filesystem = request.filesystem();
  if (kind == WriteKind::kWriteback) {
    request.Count(co_await filesystem.WriteBack(handle, offset, std::span(&data, 1)));
    co_return;
  }
  StatusOr<client::LockedPages> locked;
  if (kind == WriteKind::kCached) {
    locked = co_await filesystem.HoldPages(handle, offset, data.size(), client::PageUse::kWrite);
    if (!locked.ok()) co_return request.Done(locked.status());
  }
  StatusOr<size_t> written = co_await filesystem.Write(handle, offset, std::span(&data, 1));
  // The kernel has dropped the pages that a direct write covers before it sent it. Those that were filled
  // while it was under way go now. Nobody holds one of them locked until this write is answered: only cached
  // writes do that, and the kernel orders the two.
  if (kind == WriteKind::kDirect && filesystem.MayHavePages(handle)) co_await ForgetInode(request, fid);
  if (request.Count(written)) co_return;
  // The caller was killed while it waited, and the kernel has let go of the page. Somebody who reads it by
  // now waits for this write's hold with the page locked, and the kernel forgets the page only when that is
  // over.
  locked = client::LockedPages();
  co_await ForgetInode(request, fid);
}

}  // namespace

void AddIo(fuse_lowlevel_ops* ops) {
  ops->read = [](fuse_req_t raw, fuse_ino_t, size_t size, off_t offset, fuse_file_info* info) {
    Start(raw, Read, HandleOf(*info), FillsPages(*info), static_cast<uint64_t>(offset), size);
  };
  // Never from a pipe: FUSE_CAP_SPLICE_READ is off, the bytes are needed in memory (checksums, cache).
  ops->write_buf = [](fuse_req_t raw, fuse_ino_t node, fuse_bufvec* buffers, off_t offset,
                      fuse_file_info* info) {
    const fuse_buf& buffer = buffers->buf[0];
    std::span<const std::byte> data(static_cast<const std::byte*>(buffer.mem), buffer.size);
    OpenFile& file = FileOf(*info);
    WriteKind kind = info->writepage ? WriteKind::kWriteback
                     : file.cached   ? WriteKind::kCached
                                     : WriteKind::kDirect;
    // Nobody waits for what is written back of a mapping.
    Patience patience = kind == WriteKind::kWriteback ? Patience::kForEver : Patience::kUntilSignal;
    std::shared_ptr<std::byte> copy = SessionOf(raw).KeepBytes(&data);
    StartWith(patience, raw, Write, FidOf(raw, node), file.handle, kind, static_cast<uint64_t>(offset), data,
              std::move(copy));
  };
}

}  // namespace nacre::fuse
