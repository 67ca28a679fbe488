#include "client/telling.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "client/attribute_rules.h"
#include "client/settling.h"
#include "common/log.h"
#include "rpc/convert.h"

namespace nacre::client {
namespace {

// inode.mutex is held. Takes what is dirty out of the inode, for one request.
proto::MetadataRequest TakeInline(Inode& inode) {
  proto::MetadataRequest request;
  proto::WriteInline* write = request.mutable_write_inline();
  *write->mutable_fid() = ToProto(inode.fid);
  const uint64_t begin = std::exchange(inode.inline_dirty_begin, 0);
  const uint64_t end = std::exchange(inode.inline_dirty_end, 0);
  if (inode.pending.cut) {
    write->set_replace(true);
    write->set_data(*inode.inline_bytes);
  } else {
    write->set_offset(begin);
    write->set_data(inode.inline_bytes->substr(begin, end - begin));
  }
  *write->mutable_mtime() = inode.pending.mtime ? ToProto(*inode.pending.mtime) : inode.attr.mtime();
  write->set_kill_suid(inode.pending.kill_suid);
  write->set_promised(inode.held > 0);
  return request;
}

// Turns the MDS's refusal of a change of the file with these objects into the error that a program is told.
// ESTALE becomes EIO: the MDT has lost power, and with it the change that gave the file these objects.
Status AsLoss(Inode& inode, const LayoutPtr& layout, Status refused) {
  if (ToErrno(refused) != ESTALE) return refused;
  {
    std::lock_guard lock(inode.mutex);
    inode.ForgetLayout(layout);
  }
  return ErrnoError(EIO, absl::StrFormat("what was written there is lost: %s", refused.message()));
}

}  // namespace

Telling::Telling(const Environment& environment, const Options& options, const Entrance& entrance,
                 EarlyChanges& early, MdsCalls& mds, MetadataQueue& queue, MdtRoom& room,
                 Background& background)
    : environment_(environment),
      options_(options),
      entrance_(entrance),
      early_(early),
      mds_(mds),
      queue_(queue),
      room_(room),
      background_(background) {}

// --- inline bytes ---

Telling::Told Telling::TryPushInline(const InodePtr& inode, OneShot<Status> answer) {
  const bool may_push = early_.MayAnswer();
  const EarlyChanges::Order order = early_.TakeOrder();
  proto::MetadataRequest request;
  uint64_t number = 0;
  {
    std::lock_guard guard(inode->mutex);
    if (inode->gone || !inode->inline_unsent() || inode->inline_bytes == nullptr) return Told::kNothing;
    if (inode->outgrowing != nullptr) return Told::kAsk;
    if (!may_push || !early_.MayChange(*inode) || inode->alone_under != inode->covered) return Told::kAsk;
    request = TakeInline(*inode);
    ApplyTold(request, &inode->attr);
    if (inode->pending.cut) inode->layout.reset();
    inode->pending = {};
    number = inode->content_change = inode->attr.change();
    ++inode->inline_flights;
  }
  early_.PushTold(inode, number, std::move(request), [this, inode, answer](const Reply& reply) {
    {
      std::lock_guard guard(inode->mutex);
      --inode->inline_flights;
    }
    Status told = EndInline(inode, reply);
    room_.LetGo(*inode);
    answer.Set(std::move(told));
  });
  return Told::kOnItsWay;
}

// The MDS has answered a WriteInline.
Status Telling::EndInline(const InodePtr& inode, const Reply& reply) {
  if (reply.ok()) {
    room_.Promise(reply->attr().promised_bytes());
    return OkStatus();
  }
  std::unique_lock lock(inode->mutex);
  inode->inline_bytes.reset();
  inode->inline_dirty_begin = inode->inline_dirty_end = 0;
  inode->pending = {};
  if (inode->gone) return OkStatus();
  lock.unlock();
  LogError("file %s: inline data could not be written back and is lost: %s", inode->fid.ToString(),
           std::string(reply.status().message()));
  NoteError(*inode, reply.status());
  return reply.status();
}

Task<Status> Telling::SendInline(InodePtr inode) {
  OneShot<Status> answer;
  const Told told = TryPushInline(inode, answer);
  if (told == Told::kNothing) co_return OkStatus();
  if (told == Told::kOnItsWay) co_return co_await answer.Wait();
  Settling settling(early_, {inode});  // nothing of the file is pushed until the reply has been taken in
  proto::MetadataRequest request;
  Pending sent;
  {
    std::lock_guard lock(inode->mutex);
    if (!inode->inline_unsent() || inode->inline_bytes == nullptr) co_return OkStatus();
    if (inode->outgrowing != nullptr) co_return OkStatus();
    sent = inode->pending;
    request = TakeInline(*inode);
  }
  Reply reply = co_await mds_.AskAsSystem(std::move(request));
  CO_RETURN_IF_ERROR(EndInline(inode, reply));
  std::lock_guard lock(inode->mutex);
  inode->Apply(reply->attr().attr());
  Pending& pending = inode->pending;
  if (sent.cut) pending.cut = false;
  if (sent.cut) inode->layout.reset();
  if (pending.size <= inode->attr.size()) pending.size = 0;
  if (pending.mtime == sent.mtime && !inode->inline_dirty()) pending.mtime.reset();
  if (sent.kill_suid) pending.kill_suid = false;
  co_return OkStatus();
}

Task<Status> Telling::TellCut(InodePtr inode) {
  {
    std::lock_guard lock(inode->mutex);
    if (!inode->pending.cut) co_return OkStatus();
    inode->rewritten = true;
  }
  AsyncMutex::Guard meta = co_await inode->meta.Lock();
  co_return co_await SendInline(inode);
}

// --- sizes and times ---

Task<Status> Telling::TellSize(InodePtr inode, LayoutPtr layout, Pending sent, RangeLock::Guard* range) {
  proto::MetadataRequest request;
  proto::UpdateSize* update = request.mutable_update_size();
  *update->mutable_fid() = ToProto(inode->fid);
  update->set_size(sent.sent_size);
  if (sent.mtime) *update->mutable_mtime() = ToProto(*sent.mtime);
  update->set_blocks_delta(sent.blocks_delta);
  update->set_kill_suid(sent.kill_suid);
  update->set_writeback(sent.writeback);
  update->set_promised(sent.promised);
  update->set_layout_generation(layout->generation());
  update->set_beside(true);
  (void)co_await queue_.WaitForRoom();  // who is killed meanwhile tells it all the same: nobody else would
  if (TryTellEarly(inode, request)) co_return OkStatus();
  request.set_want_file_lease(!sent.writeback && WantsFileLease(*inode));
  request.set_may_share(request.want_file_lease());
  Settling settling(early_, {inode});
  if (range != nullptr) range->Release();
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_.AskAsSystem(std::move(request)));
  room_.Promise(reply.attr().promised_bytes());
  std::lock_guard lock(inode->mutex);
  inode->Apply(reply.attr().attr());
  inode->NoteAlone(reply.attr().alone_under());
  co_return OkStatus();
}

// A size goes into the queue and is not waited for. The bytes are in the objects: if this client is killed,
// they say how long the file is. False: the MDS has to be asked.
bool Telling::TryTellEarly(const InodePtr& inode, const proto::MetadataRequest& request) {
  const proto::UpdateSize& update = request.update_size();
  if (!early_.MayAnswer() || update.writeback()) return false;
  const EarlyChanges::Order order = early_.TakeOrder();
  uint64_t number = 0;
  {
    std::lock_guard guard(inode->mutex);
    if (!early_.MayChange(*inode) || inode->alone_under != inode->covered) return false;
    if (inode->Inline() || inode->attr.nlink() == 0) return false;
    if (inode->attr.layout_generation() != update.layout_generation()) return false;
    const bool current = inode->content_change == inode->attr.change();
    ApplyTold(request, &inode->attr);
    number = inode->attr.change();
    if (current) inode->content_change = number;
  }
  PushWrite(inode, number, request);
  return true;
}

// With the order held.
void Telling::PushWrite(const InodePtr& inode, uint64_t change, proto::MetadataRequest request) {
  early_.CountWrite();
  LayoutPtr layout;
  {
    std::lock_guard guard(inode->mutex);
    layout = inode->layout;
  }
  early_.PushTold(inode, change, std::move(request), [this, inode, layout](const Reply& reply) {
    if (reply.ok()) room_.Promise(reply->attr().promised_bytes());
    if (reply.ok()) return;
    LogError("file %s: a write that was answered is lost: %s", inode->fid.ToString(),
             std::string(reply.status().message()));
    NoteError(*inode, AsLoss(*inode, layout, reply.status()));
    std::lock_guard guard(inode->mutex);
    inode->inline_bytes.reset();
  });
}

Task<Status> Telling::SendPending(InodePtr inode) {
  AsyncMutex::Guard meta = co_await inode->meta.Lock();
  Pending sent;
  std::optional<WallTime> mtime;
  LayoutPtr layout;
  {
    std::lock_guard lock(inode->mutex);
    layout = inode->layout;
    if (!inode->pending.any() || inode->gone || inode->Inline() || layout == nullptr) co_return OkStatus();
    sent = inode->pending;
    sent.promised = inode->held > 0;
    mtime = sent.mtime;
    if (!mtime) sent.mtime = FromProto(inode->attr.mtime());  // as it is
    inode->pending.blocks_delta = 0;
  }
  Status told = co_await TellSize(inode, layout, sent);
  // Somebody has removed it while these bytes were late: they may have made its objects anew.
  if (ToErrno(told) == ENOENT) DropObjects(inode, layout);
  bool gone;
  {
    std::lock_guard lock(inode->mutex);
    gone = inode->gone;
    Pending& pending = inode->pending;
    if (!told.ok()) pending = {};
    if (pending.sent_size <= inode->attr.size()) pending.sent_size = 0;
    // Nor does it reach as far as bytes that could not be sent, once all others have been.
    const bool all_told = told.ok() && inode->dirty_blocks == 0 && pending.sent_size == 0;
    if (all_told || pending.size <= inode->attr.size()) pending.size = 0;
    if (pending.mtime == mtime) pending.mtime.reset();
    if (sent.kill_suid) pending.kill_suid = false;
  }
  if (told.ok() || gone) co_return OkStatus();
  told = AsLoss(*inode, layout, std::move(told));
  LogError("file %s: the MDS did not take its new size: %s", inode->fid.ToString(),
           std::string(told.message()));
  NoteError(*inode, told);
  co_return told;
}

bool Telling::TryTellLater(const InodePtr& inode, const LayoutPtr& layout, const Pending& sent) {
  {
    std::lock_guard lock(inode->mutex);
    if (!inode->IsShared() || inode->appending > 0) return false;
  }
  if (!entrance_.LeasesGood() || !room_.TryHold(*inode, kRecordRoom)) return false;
  bool later = false;
  {
    std::lock_guard lock(inode->mutex);
    const LayoutPtr& now = inode->layout;
    later = inode->IsShared() && inode->appending == 0 && !inode->Inline() && now != nullptr &&
            now->generation() == layout->generation();
    if (later) {
      inode->NoteSent(sent);
      Pending& pending = inode->pending;
      pending.size = std::max(pending.size, sent.sent_size);
      pending.mtime = std::max(pending.mtime.value_or(*sent.mtime), *sent.mtime);
      pending.kill_suid |= sent.kill_suid && (inode->attr.mode() & (S_ISUID | S_ISGID)) != 0;
    }
  }
  if (later)
    early_.CountWrite();
  else
    room_.LetGo(*inode);
  return later;
}

// --- what else follows from writing ---

bool Telling::WantsFileLease(Inode& inode) {
  if (!options_.caching || !early_.MayAnswer()) return false;
  std::lock_guard lock(inode.mutex);
  if (inode.write_opens == 0 || inode.data_scope != nullptr || inode.scope != nullptr) return false;
  if (++inode.told_writes <= 1) return false;
  return inode.pages.recalled == 0ns ||
         environment_.clock.Coarse() - inode.pages.recalled > options_.file_peace;
}

void Telling::DropObjects(const InodePtr& inode, LayoutPtr layout) {
  background_.Start(AskToDrop(inode->fid, std::move(layout)));
}

// The MDS knows whether others still read by them, and whether the file may come back to them after a loss of
// power.
Task<void> Telling::AskToDrop(Fid fid, LayoutPtr layout) {
  proto::MetadataRequest request;
  proto::DropObjects* drop = request.mutable_drop_objects();
  *drop->mutable_fid() = ToProto(fid);
  drop->set_object_sequence(layout->object_sequence());
  for (uint32_t stripe = 0; stripe < layout->stripe_count(); ++stripe) drop->add_osts(layout->Ost(stripe));
  (void)co_await mds_.AskIn(entrance_.epoch(), std::move(request));  // what stays is found by the checker
}

}  // namespace nacre::client
