// O_APPEND where several clients may write to the file (docs/decisions/0060-appends.md and
// 0085-stored-appends.md).
#include <cerrno>

#include "client/core.h"
#include "client/settling.h"

namespace nacre::client {
namespace {

constexpr size_t kMostStored = 1 << 20;  // of one append; the MDS refuses more

// One append whose place is the MDS's to say, until its answer has been taken in. It begins with all of the
// file's range locked. The file's cached bytes are not trusted any more (leased_reads.cc): the block at the
// old end lacks those that come behind it.
class Appending {
 public:
  explicit Appending(Inode& inode) : inode_(inode) {
    std::lock_guard lock(inode_.mutex);
    ++inode_.appending;
    inode_.pages.content = 0;
  }
  ~Appending() {
    std::lock_guard lock(inode_.mutex);
    --inode_.appending;
  }
  Appending(const Appending&) = delete;
  Appending& operator=(const Appending&) = delete;

 private:
  Inode& inode_;
};

}  // namespace

// EFBIG, ESTALE: the file has changed its form meanwhile.
Task<StatusOr<size_t>> Core::AppendOnce(HandlePtr handle, Pieces pieces, size_t size) {
  InodePtr inode = handle->inode;
  RangeLock::Guard range = co_await inode->range.LockUnlessCancelled(0, RangeLock::kEnd, true);
  if (!range) co_return GivenUp();
  if (HoldsData(*inode)) {
    range.Release();
    CO_ASSIGN_OR_RETURN(auto written,
                        co_await WriteHeld(handle, std::nullopt, pieces, size, MayGiveUp::kYes));
    if (!written) co_return ErrnoError(ESTALE, "the file's data is not worked on here any more");
    co_return *written;
  }
  bool is_inline = false;
  {
    std::lock_guard lock(inode->mutex);
    is_inline = inode->attr.inline_data();
  }
  if (is_inline) {
    CO_RETURN_IF_ERROR(co_await WriteInlineThrough(handle, std::nullopt, pieces, size, &range));
    co_return size;
  }
  CO_ASSIGN_OR_RETURN(const proto::AppendReply place, co_await AskToAppend(handle, pieces, size, &range));
  if (place.stored()) co_return size;
  // The bytes of its place read as zeros until they are written: so whoever has got it does not give up any
  // more.
  co_return co_await WriteThrough(handle, place.offset(), pieces, size, MayGiveUp::kNo);
}

// To a file with objects. `range`: all of it, is released as soon as nobody takes the file's data before the
// answer.
Task<StatusOr<proto::AppendReply>> Core::AskToAppend(HandlePtr handle, Pieces pieces, size_t size,
                                                     RangeLock::Guard* range) {
  InodePtr inode = handle->inode;
  const Appending appending(*inode);
  const Settling settling(*early_, {inode});
  range->Release();
  CO_RETURN_IF_ERROR(co_await telling_->SendPending(inode));  // where the file ends
  proto::MetadataRequest request;
  proto::Append* append = request.mutable_append();
  *append->mutable_fid() = ToProto(inode->fid);
  append->set_length(size);
  if (size <= kMostStored) {
    append->mutable_data()->resize(size);
    CopyOut(pieces, 0, reinterpret_cast<std::byte*>(append->mutable_data()->data()), size);
    append->set_kill_suid(handle->caller.uid != 0);
  }
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->AskAsSystem(std::move(request)));
  Knowledge::Learn(*inode, reply.append().attr());
  co_return reply.append();
}

// The remembered attributes say whether the file has objects. They may be out of date: the MDS then refuses
// the append. To look first would be one more round trip for each append where several append by turns, and
// would give the layout out, for which what was appended has to be written to the objects.
Task<StatusOr<size_t>> Core::AppendThrough(HandlePtr handle, Pieces pieces, size_t size) {
  const InodePtr& inode = handle->inode;
  for (int attempt = 0;; ++attempt) {
    bool look = attempt > 0;
    {
      std::lock_guard lock(inode->mutex);
      look = look || (!inode->attr_known && inode->attr.inline_data());
    }
    if (look) CO_RETURN_IF_ERROR(co_await mds_->LoadFile(inode));
    StatusOr<size_t> written = co_await AppendOnce(handle, pieces, size);
    int error = ToErrno(written.status());
    if ((error != EFBIG && error != ESTALE) || attempt >= kRaces) co_return written;
  }
}

}  // namespace nacre::client
