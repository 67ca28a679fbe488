#include "client/moving_out.h"

#include <algorithm>

#include "client/settling.h"
#include "common/cancellation.h"
#include "common/log.h"
#include "rpc/convert.h"

namespace nacre::client {
namespace {

constexpr uint64_t kMostOutgrown = 256 << 10;  // of one file

proto::MetadataRequest MoveOutRequest(Fid fid) {
  proto::MetadataRequest request;
  *request.mutable_move_out()->mutable_fid() = ToProto(fid);
  return request;
}

// Null: the file does not outgrow the MDT now.
std::shared_ptr<Outgrowing> OutgrowingOf(Inode& inode) {
  std::lock_guard lock(inode.mutex);
  return inode.outgrowing;
}

}  // namespace

MovingOut::MovingOut(const Entrance& entrance, Session& session, EarlyChanges& early, MdsCalls& mds,
                     MetadataQueue& queue, Telling& telling, FileData& data, Targets& targets, MdtRoom& room,
                     DirtyFiles& dirty, Background& background)
    : entrance_(entrance),
      session_(session),
      early_(early),
      mds_(mds),
      queue_(queue),
      telling_(telling),
      data_(data),
      targets_(targets),
      room_(room),
      dirty_(dirty),
      background_(background) {}

bool MovingOut::TryOutgrow(const InodePtr& inode, uint64_t end) {
  if (end > kMostOutgrown || !room_.TryHold(*inode, kRecordRoom)) return false;
  std::shared_ptr<Outgrowing> outgrowing = OutgrowingOf(*inode);
  const bool begins = outgrowing == nullptr;
  if (begins) outgrowing = std::make_shared<Outgrowing>();
  const uint64_t bytes = (end + kBlockSize - 1) / kBlockSize * kBlockSize;
  if (bytes > outgrowing->bytes) {
    if (!targets_.TryReserveOnEach(bytes - outgrowing->bytes, &outgrowing->reserved)) return false;
    outgrowing->bytes = bytes;
  }
  if (!begins || TryPush(inode, outgrowing)) return true;
  for (const auto& [ost, reserved] : outgrowing->reserved) targets_.Unreserve(ost, reserved);
  return false;
}

// A file of which the MDS has no bytes yet is moved out in its turn among the changes that are answered
// early: the MDS needs no OST for that, so nothing that follows waits for one. All of the file is locked.
bool MovingOut::TryPush(const InodePtr& inode, std::shared_ptr<Outgrowing> outgrowing) {
  const bool may_push = early_.MayAnswer();
  EarlyChanges::Order order = early_.TakeOrder();
  uint64_t number = 0;
  {
    std::lock_guard guard(inode->mutex);
    if (!may_push || !early_.MayChange(*inode) || inode->alone_under != inode->covered) return false;
    if (!inode->attr.inline_data() || inode->attr.size() > 0 || inode->pending.cut) return false;
    if (inode->inline_bytes == nullptr || inode->inline_flights > 0) return false;
    inode->attr.set_inline_data(false);
    inode->CountChange();
    number = inode->attr.change();
    inode->outgrowing = outgrowing;
  }
  queue_.Push(entrance_.epoch(), MoveOutRequest(inode->fid), [inode, outgrowing, number](const Reply& reply) {
    {
      std::lock_guard lock(inode->mutex);
      outgrowing->told = reply.status();
      if (reply.ok()) {
        const proto::Layout& layout = reply->moved_out().layout();
        inode->Apply(reply->moved_out().attr());
        inode->ApplyLayout(layout);
        // The attributes may be newer ones already.
        inode->attr.set_layout_generation(std::max(inode->attr.layout_generation(), layout.generation()));
      }
      if (!reply.ok() || reply->moved_out().attr().change() != number) inode->attr_known = false;
    }
    outgrowing->answered.Open();
  });
  const uint64_t mutations = session_.mutations();
  {
    std::lock_guard guard(inode->mutex);
    inode->mutation = mutations;
  }
  order.unlock();
  background_.Start(End(inode, std::move(outgrowing)));
  return true;
}

Task<Status> MovingOut::MoveOut(InodePtr inode) {
  CO_RETURN_IF_ERROR(co_await telling_.TellCut(inode));
  if (OutgrowingOf(*inode) != nullptr || TryPush(inode, std::make_shared<Outgrowing>()))
    co_return co_await Finish(inode, MayGiveUp::kYes);
  AsyncMutex::Guard meta = co_await inode->meta.Lock();
  Settling settling(early_, {inode});
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_.AskAsSystem(MoveOutRequest(inode->fid)));
  {
    std::lock_guard lock(inode->mutex);
    inode->Apply(reply.moved_out().attr());
    inode->ApplyLayout(reply.moved_out().layout());
  }
  co_return co_await WriteOutgrown(inode, nullptr);
}

Task<Status> MovingOut::MoveOutThrough(InodePtr inode) {
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_.AskAsSystem(MoveOutRequest(inode->fid)));
  Knowledge::Learn(*inode, reply.moved_out().attr(), &reply.moved_out().layout());
  co_return OkStatus();
}

// Waits for the MDS, and makes the bytes those of objects. All of the file is locked. EINTR: nobody waits for
// the operation any more, and the file outgrows the MDT still. Other errors are noted in the inode.
Task<Status> MovingOut::Finish(InodePtr inode, MayGiveUp may) {
  const std::shared_ptr<Outgrowing> outgrowing = OutgrowingOf(*inode);
  if (outgrowing == nullptr) co_return OkStatus();
  if (outgrowing->answered.closed()) {
    background_.Start(queue_.Drain());  // the batch does not gather any more
    if (may == MayGiveUp::kYes)
      CO_RETURN_IF_ERROR(co_await WaitUnlessCancelled(background_.Start(outgrowing->answered.Wait())));
    else
      co_await outgrowing->answered.Wait();
  }
  Status result;
  {
    std::lock_guard lock(inode->mutex);
    result = outgrowing->told;
    // It may go into the MDT after all, by the request that tells of its bytes or of their loss.
    if (!result.ok()) inode->attr.set_inline_data(true);
  }
  if (result.ok()) result = co_await WriteOutgrown(inode, &outgrowing->reserved);
  for (const auto& [ost, reserved] : outgrowing->reserved) targets_.Unreserve(ost, reserved);
  bool lost = false, gone = false;
  {
    std::lock_guard lock(inode->mutex);
    inode->outgrowing.reset();
    gone = inode->gone;
    const std::string* bytes = inode->inline_bytes.get().get();
    lost = !gone && !result.ok() && bytes != nullptr && bytes->size() > room_.inline_limit();
    if (lost) {
      inode->inline_bytes.reset();
      inode->inline_dirty_begin = inode->inline_dirty_end = 0;
      inode->pending = {};
      inode->attr_known = false;
    }
  }
  if (gone) data_.Discard(*inode);
  if (lost) {
    LogError("file %s: what was written there is lost: %s", inode->fid.ToString(),
             std::string(result.message()));
    NoteError(*inode, result);
  }
  outgrowing->ended.Open();
  co_return result;
}

// The inline bytes that are dirty become dirty data of the file's objects, and it has no inline bytes any
// more. All of the file is locked, and the MDS has moved it out. `space`: FileData::WriteCached. Errors are
// noted in the inode.
Task<Status> MovingOut::WriteOutgrown(InodePtr inode, std::map<OstIndex, uint64_t>* space) {
  std::shared_ptr<std::string> bytes;
  uint64_t begin = 0, end = 0;
  LayoutPtr layout;
  {
    std::lock_guard lock(inode->mutex);
    bytes = inode->inline_bytes.get();
    begin = inode->inline_dirty_begin;
    end = inode->inline_dirty_end;
    layout = inode->layout;
  }
  if (bytes == nullptr) end = begin;
  Status written;
  if (layout == nullptr)
    written = ErrnoError(EIO, absl::StrFormat("file %s: moved out without a layout", inode->fid.ToString()));
  for (uint64_t at = begin; at < end && written.ok();) {
    const uint64_t n = std::min(end - at, FileData::kWindow - at % kChunkSize);
    const std::span<const std::byte> piece = std::as_bytes(std::span(bytes->data() + at, n));
    written = co_await data_.WriteCached(inode, layout, at, Pieces(&piece, 1), 0, n, space);
    at += n;
  }
  if (begin < end) dirty_.List(inode);
  if (!written.ok()) NoteError(*inode, written);
  // In one step: whoever looks without having locked the file finds the bytes here, or that they are
  // objects'.
  std::lock_guard lock(inode->mutex);
  inode->inline_bytes.reset();
  inode->inline_dirty_begin = inode->inline_dirty_end = 0;
  inode->outgrowing.reset();
  co_return written;
}

// Ends it when the MDS has answered, if nobody has who has locked the file meanwhile.
Task<void> MovingOut::End(InodePtr inode, std::shared_ptr<Outgrowing> outgrowing) {
  co_await outgrowing->answered.Wait();
  RangeLock::Guard range = co_await inode->range.Lock(0, RangeLock::kEnd, true);
  if (OutgrowingOf(*inode) == outgrowing) (void)co_await Finish(inode, MayGiveUp::kNo);
}

Task<void> MovingOut::Await(InodePtr inode, MetadataQueue::Hurry hurry) {
  const std::shared_ptr<Outgrowing> outgrowing = OutgrowingOf(*inode);
  if (outgrowing == nullptr) co_return;
  if (hurry == MetadataQueue::Hurry::kYes) background_.Start(queue_.Drain());
  co_await outgrowing->ended.Wait();
}

Task<RangeLock::Guard> MovingOut::LockWhole(InodePtr inode, MayGiveUp may) {
  RangeLock::Guard range = co_await LockForWriting(*inode, 0, RangeLock::kEnd, may);
  if (!range) co_return range;
  (void)co_await Finish(inode, may);
  if (OutgrowingOf(*inode) != nullptr) range.Release();
  co_return range;
}

Task<AsyncMutex::Guard> MovingOut::LockMeta(InodePtr inode, MetadataQueue::Hurry hurry) {
  for (;;) {
    co_await Await(inode, hurry);
    AsyncMutex::Guard meta = co_await inode->meta.Lock();
    if (OutgrowingOf(*inode) == nullptr) co_return meta;
  }
}

}  // namespace nacre::client
