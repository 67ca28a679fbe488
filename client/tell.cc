// Write-behind tells the MDS of a file: inline bytes, sizes, times, and truncations that were held back.
// Under WRITE of the directory it takes its place among the changes that are answered early
// (early_changes.h), so that the MDS comes to it after the file's creation and before a rename that follows.
#include <sys/stat.h>

#include <cerrno>

#include "client/attribute_rules.h"
#include "client/core.h"
#include "client/permission.h"
#include "client/settling.h"
#include "client/within.h"
#include "common/cancellation.h"
#include "common/log.h"

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

// inode.mutex is held. What becomes of setuid bits and capabilities is for the MDS to judge.
bool MayCutBehind(const Inode& inode) {
  const proto::Attr& attr = inode.attr;
  return inode.attr_known && S_ISREG(attr.mode()) && (attr.mode() & (S_ISUID | S_ISGID)) == 0 &&
         !attr.has_xattrs() && !inode.gone && attr.nlink() > 0 && !inode.pending.kill_suid;
}

}  // namespace

// --- inline bytes ---

// Pushes all that is dirty of an inline file, and the truncation before it, behind what was answered early
// before. `answer` is set when the MDS has come to it.
Core::Told Core::TryPushInline(const InodePtr& inode, OneShot<Status> answer) {
  const bool may_push = early_->MayAnswer();
  const EarlyChanges::Order order = early_->TakeOrder();
  proto::MetadataRequest request;
  uint64_t number = 0;
  {
    std::lock_guard guard(inode->mutex);
    if (inode->gone || !inode->inline_unsent() || inode->inline_bytes == nullptr) return Told::kNothing;
    if (inode->outgrowing != nullptr) return Told::kAsk;
    if (!may_push || !early_->MayChange(*inode) || inode->alone_under != inode->covered) return Told::kAsk;
    request = TakeInline(*inode);
    ApplyTold(request, &inode->attr);
    if (inode->pending.cut) inode->layout.reset();
    inode->pending = {};
    number = inode->content_change = inode->attr.change();
    ++inode->inline_flights;
  }
  early_->PushTold(inode, number, std::move(request), [this, inode, answer](const Reply& reply) {
    {
      std::lock_guard guard(inode->mutex);
      --inode->inline_flights;
    }
    Status told = EndInline(inode, reply);
    LetGo(*inode);
    answer.Set(std::move(told));
  });
  return Told::kOnItsWay;
}

// The MDS has answered a WriteInline.
Status Core::EndInline(const InodePtr& inode, const Reply& reply) {
  std::unique_lock lock(inode->mutex);
  if (reply.ok()) {
    room_.Promise(reply->attr().promised_bytes());
    inode->Apply(reply->attr().attr());
    return OkStatus();
  }
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

// Returns when the MDS has all that was dirty of an inline file. inode->meta is held.
Task<Status> Core::SendInline(InodePtr inode) {
  OneShot<Status> answer;
  const Told told = TryPushInline(inode, answer);
  if (told == Told::kNothing) co_return OkStatus();
  if (told == Told::kOnItsWay) co_return co_await answer.Wait();
  Settling settling(*early_, {inode});  // nothing of the file is pushed until the reply has been taken in
  proto::MetadataRequest request;
  Pending sent;
  {
    std::lock_guard lock(inode->mutex);
    if (!inode->inline_unsent() || inode->inline_bytes == nullptr) co_return OkStatus();
    if (inode->outgrowing != nullptr) co_return OkStatus();
    sent = inode->pending;
    request = TakeInline(*inode);
  }
  Reply reply = co_await mds_->AskAsSystem(std::move(request));
  CO_RETURN_IF_ERROR(EndInline(inode, reply));
  std::lock_guard lock(inode->mutex);
  Pending& pending = inode->pending;
  if (sent.cut) pending.cut = false;
  if (sent.cut) inode->layout.reset();
  if (pending.size <= inode->attr.size()) pending.size = 0;
  if (pending.mtime == sent.mtime && !inode->inline_dirty()) pending.mtime.reset();
  if (sent.kill_suid) pending.kill_suid = false;
  co_return OkStatus();
}

// --- sizes of what objects have already ---

// A size goes into the queue and is not waited for. The bytes are in the objects: if this client is killed,
// they say how long the file is. False: the MDS has to be asked.
bool Core::TryTellEarly(const InodePtr& inode, const proto::MetadataRequest& request) {
  const proto::UpdateSize& update = request.update_size();
  if (!early_->MayAnswer() || update.writeback()) return false;
  const EarlyChanges::Order order = early_->TakeOrder();
  uint64_t number = 0;
  {
    std::lock_guard guard(inode->mutex);
    if (!early_->MayChange(*inode) || inode->alone_under != inode->covered) return false;
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
void Core::PushWrite(const InodePtr& inode, uint64_t change, proto::MetadataRequest request) {
  early_->CountWrite();
  LayoutPtr layout;
  {
    std::lock_guard guard(inode->mutex);
    layout = inode->layout;
  }
  early_->PushTold(inode, change, std::move(request), [this, inode, layout](const Reply& reply) {
    if (reply.ok()) room_.Promise(reply->attr().promised_bytes());
    if (reply.ok()) return;
    LogError("file %s: a write that was answered is lost: %s", inode->fid.ToString(),
             std::string(reply.status().message()));
    NoteError(*inode, AsLoss(*inode, layout, reply.status()));
    std::lock_guard guard(inode->mutex);
    inode->inline_bytes.reset();
  });
}

// --- truncations held back ---

bool Core::MayHoldCutsBack() const { return options_.caching && early_->MayAnswer() && inline_limit_ > 0; }

// Truncates the file to nothing, here: the MDS hears of it with the first of the new bytes, at an fsync, or
// when nobody has the file open for writing any more. Until then it has the old bytes, so that a program
// which rewrites a file has the old or the new ones, whenever this client is killed. False: the MDS has to be
// asked.
Task<StatusOr<bool>> Core::TryCutBehind(InodePtr inode) {
  if (!MayHoldCutsBack()) co_return false;
  {
    std::lock_guard lock(inode->mutex);
    if (!MayCutBehind(*inode)) co_return false;
  }
  const bool taken = co_await TakeData(inode);
  if (!taken) co_return false;
  RangeLock::Guard range = co_await LockWhole(inode, MayGiveUp::kYes);
  if (!range) co_return GivenUp();
  Status sent = co_await SendAll(inode);  // the bytes of before are the old ones
  if (!sent.ok()) co_return false;        // what is lost of them need not keep anybody from new ones
  const bool held = co_await Hold(inode, kRecordRoom);
  if (!held) co_return false;
  AsyncMutex::Guard meta = co_await inode->meta.Lock();
  {
    std::lock_guard lock(inode->mutex);
    if (inode->data_scope == nullptr || !MayCutBehind(*inode) || inode->settling > 0) co_return false;
  }
  co_await cache_->WaitFlights(inode->data, 0, UINT64_MAX);
  DropData(*inode, 0, UINT64_MAX);
  {
    std::lock_guard lock(inode->mutex);
    inode->pending = {};
    inode->pending.cut = true;  // of an empty file too: its times change
    inode->pending.mtime = environment_.clock.Wall();
    inode->inline_bytes = std::make_shared<std::string>();
    inode->inline_dirty_begin = inode->inline_dirty_end = 0;
  }
  early_->CountWrite();
  dirty_.List(inode);
  co_return true;
}

// Before what needs the MDS to know of the truncation. The file is locked against writes.
Task<Status> Core::TellCut(InodePtr inode) {
  {
    std::lock_guard lock(inode->mutex);
    if (!inode->pending.cut) co_return OkStatus();
    inode->rewritten = true;
  }
  AsyncMutex::Guard meta = co_await inode->meta.Lock();
  co_return co_await SendInline(inode);
}

// --- what has to be told before something else ---

// A descriptor of the file was closed, or (`last`) the handle: what is held back goes at once. A small file's
// bytes go behind its name, in the same request if that still waits. Waits for servers only if the MDS knows
// of the truncation already that these bytes follow.
Task<Status> Core::SendClosed(InodePtr inode, bool last) {
  bool waits = false, small = false;
  {
    std::lock_guard lock(inode->mutex);
    const bool unsent = inode->inline_unsent() || inode->dirty_blocks > 0 || inode->pending.any();
    if (!unsent) inode->rewritten = false;
    const bool unlinked = inode->attr_known && inode->attr.nlink() == 0;  // it goes with its last handle
    if (!unsent || inode->gone || unlinked) co_return OkStatus();
    // A shell that redirects into the file has closed one descriptor of two.
    if (!last && inode->awaits_bytes()) co_return OkStatus();
    waits = inode->rewritten && !last;
    small = inode->Inline();
  }
  if (waits) {
    CO_RETURN_IF_ERROR(co_await SendAll(inode));
    std::lock_guard lock(inode->mutex);
    inode->rewritten = false;
    co_return OkStatus();
  }
  if (small) {
    (void)co_await queue_->WaitForRoom();  // who is cancelled leaves it there all the same
    if (TryPushInline(inode, {}) != Told::kAsk) co_return OkStatus();
  }
  SendSoon(inode);
  co_return OkStatus();
}

// Returns when what is held back of the file reaches the MDS before anything that is told from now on.
Task<Status> Core::SendUnsent(InodePtr inode) {
  {
    std::lock_guard lock(inode->mutex);
    if (!inode->IsUnsent()) co_return OkStatus();
  }
  if (TryPushInline(inode, {}) == Told::kOnItsWay) co_return OkStatus();
  // In the background, so that who waits for a server that is away can be cancelled.
  auto sent = std::make_shared<Status>();
  const OneShot<Unit> ended = background_.Start(KeepStatus(sent, SendAll(inode)));
  CO_RETURN_IF_ERROR(co_await WaitUnlessCancelled(ended));
  co_return *sent;
}

}  // namespace nacre::client
