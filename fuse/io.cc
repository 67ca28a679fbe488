// Reading and writing.
//
// Read data goes to the kernel from where the file system has it; written data is handed down in the buffer
// that the request was read into.
#include <sys/uio.h>

#include <cerrno>

#include "fuse/request.h"

namespace nacre::fuse {
namespace {

// Pages of a handle that was opened while the kernel might cache and now may not: out as soon as the answer
// is there.
void DropPages(Session& session, const Fid& fid) {
  if (std::optional<uint64_t> node = session.nodes().Find(fid)) session.invalidator().Inode(*node);
}

bool MustDropPages(Request& request, const client::HandlePtr& handle, bool cached) {
  return cached && !request.filesystem().MayCachePages(handle);
}

Task<void> Read(Request request, Fid fid, client::HandlePtr handle, bool cached, uint64_t offset,
                size_t size) {
  StatusOr<client::ReadResult> result = co_await request.filesystem().Read(handle, offset, size);
  if (!result.ok()) co_return request.Done(result.status());
  std::vector<iovec> pieces;
  pieces.reserve(result->pieces.size());
  for (std::span<const std::byte> piece : result->pieces) {
    pieces.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
  }
  fuse_reply_iov(request.Take(), pieces.data(), static_cast<int>(pieces.size()));
  if (MustDropPages(request, handle, cached)) DropPages(request.session(), fid);
}

// `buffer` keeps the data in place.
Task<void> Write(Request request, Fid fid, client::HandlePtr handle, bool cached, uint64_t offset,
                 std::span<const std::byte> data, [[maybe_unused]] std::shared_ptr<std::byte> buffer) {
  request.Count(co_await request.filesystem().Write(handle, offset, std::span(&data, 1)));
  if (MustDropPages(request, handle, cached)) DropPages(request.session(), fid);
}

}  // namespace

void AddIo(fuse_lowlevel_ops* ops) {
  ops->read = [](fuse_req_t raw, fuse_ino_t node, size_t size, off_t offset, fuse_file_info* info) {
    OpenFile& file = FileOf(*info);
    Start(raw, Read, FidOf(raw, node), file.handle, file.cached, static_cast<uint64_t>(offset), size);
  };
  // Never from a pipe: FUSE_CAP_SPLICE_READ is off, the bytes are needed in memory (checksums, cache).
  ops->write_buf = [](fuse_req_t raw, fuse_ino_t node, fuse_bufvec* buffers, off_t offset,
                      fuse_file_info* info) {
    const fuse_buf& buffer = buffers->buf[0];
    std::span<const std::byte> data(static_cast<const std::byte*>(buffer.mem), buffer.size);
    OpenFile& file = FileOf(*info);
    Start(raw, Write, FidOf(raw, node), file.handle, file.cached, static_cast<uint64_t>(offset), data,
          Session::CurrentBuffer());
  };
}

}  // namespace nacre::fuse
