// O_APPEND where several clients may write to the file (docs/decisions/0060-appends.md).
#include <cerrno>

#include "client/core.h"

namespace nacre::client {

// Inline, or at bytes at the end that the MDS gives out (docs/decisions/0060-appends.md). From then on they
// read as zeros until they are written: so whoever has got them does not give up any more. EFBIG, ESTALE: the
// file has changed its form meanwhile.
Task<StatusOr<size_t>> Core::AppendOnce(HandlePtr handle, Pieces pieces, size_t size) {
  InodePtr inode = handle->inode;
  CO_RETURN_IF_ERROR(co_await mds_->LoadFile(inode));
  bool is_inline = false;
  {
    std::lock_guard lock(inode->mutex);
    is_inline = inode->attr.inline_data();
  }
  if (is_inline) {
    RangeLock::Guard range = co_await inode->range.LockUnlessCancelled(0, RangeLock::kEnd, true);
    if (!range) co_return GivenUp();
    if (!HoldsData(*inode)) {
      CO_RETURN_IF_ERROR(co_await WriteInlineThrough(handle, std::nullopt, pieces, size, &range));
      co_return size;
    }
    range.Release();
    CO_ASSIGN_OR_RETURN(auto written,
                        co_await WriteHeld(handle, std::nullopt, pieces, size, MayGiveUp::kYes));
    if (!written) co_return ErrnoError(ESTALE, "the file's data is not worked on here any more");
    co_return *written;
  }
  CO_RETURN_IF_ERROR(co_await telling_->SendPending(inode));  // where the file ends
  proto::MetadataRequest request;
  *request.mutable_append()->mutable_fid() = ToProto(inode->fid);
  request.mutable_append()->set_length(size);
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->AskAsSystem(std::move(request)));
  Knowledge::Learn(*inode, reply.append().attr());
  const uint64_t offset = reply.append().offset();
  co_return co_await WriteThrough(handle, offset, pieces, size, MayGiveUp::kNo);
}

Task<StatusOr<size_t>> Core::AppendThrough(HandlePtr handle, Pieces pieces, size_t size) {
  for (int attempt = 0;; ++attempt) {
    StatusOr<size_t> written = co_await AppendOnce(handle, pieces, size);
    int error = ToErrno(written.status());
    if ((error != EFBIG && error != ESTALE) || attempt >= kRaces) co_return written;
  }
}

}  // namespace nacre::client
