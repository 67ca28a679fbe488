#include "client/write_behind.h"

#include <algorithm>
#include <iterator>

#include "client/within.h"
#include "common/cancellation.h"

namespace nacre::client {
namespace {

constexpr size_t kFilesAtOnce = 64;
constexpr Duration kGatherClosed = 1ms;
constexpr int kTriesToHold = 3;

}  // namespace

WriteBehind::WriteBehind(const Environment& environment, InodeTable& inodes, FileData& data, Telling& telling,
                         MovingOut& moving_out, MdtRoom& room, DirtyFiles& dirty, MetadataQueue& queue,
                         Background& background)
    : environment_(environment),
      inodes_(inodes),
      data_(data),
      telling_(telling),
      moving_out_(moving_out),
      room_(room),
      dirty_(dirty),
      queue_(queue),
      background_(background) {}

// --- when ---

// One at a time.
void WriteBehind::RelievePressure() {
  if (!relieving_.exchange(true)) background_.Start(Relieve());
}

Task<void> WriteBehind::Relieve() {
  co_await SendOld(0ns);
  relieving_ = false;
}

Task<bool> WriteBehind::Hold(InodePtr inode, uint64_t bytes) {
  for (int i = 0; i < kTriesToHold && room_.any(); ++i) {
    if (room_.TryHold(*inode, bytes)) {
      if (room_.crowded()) RelievePressure();
      co_return true;
    }
    co_await SendOld(0ns);
  }
  co_return false;
}

// In the background, with what else is closed at this time.
void WriteBehind::SendSoon(const InodePtr& inode) {
  if (dirty_.ListClosed(inode)) background_.Start(SendGathered());
}

Task<void> WriteBehind::SendGathered() {
  co_await environment_.clock.Sleep(kGatherClosed);
  (void)co_await SendFiles(dirty_.TakeClosed());
}

Task<void> WriteBehind::SendOld(Duration age) {
  std::vector<InodePtr> due = dirty_.TakeOlder(age);
  // Off the list before it is looked at: a writer that comes after the look lists it anew.
  std::erase_if(due, [&](const InodePtr& inode) {
    bool awaits_bytes;
    {
      std::lock_guard lock(inode->mutex);
      awaits_bytes = inode->awaits_bytes();
      inode->listed_dirty = false;
    }
    if (awaits_bytes) dirty_.List(inode);
    return awaits_bytes || !HoldsBack(*inode);  // it was sent when it was closed
  });
  (void)co_await SendFiles(std::move(due));
}

// The files are off the list.
Task<Status> WriteBehind::SendFiles(std::vector<InodePtr> files) {
  Status first;
  for (size_t begin = 0; begin < files.size(); begin += kFilesAtOnce) {
    std::vector<Task<Status>> sends;
    for (size_t i = begin; i < std::min(begin + kFilesAtOnce, files.size()); ++i) {
      {
        std::lock_guard lock(files[i]->mutex);
        files[i]->listed_dirty = false;
      }
      sends.push_back(SendAll(files[i]));
    }
    std::vector<Status> results = co_await WhenAll(std::move(sends));
    for (Status& result : results) {
      if (first.ok()) first = std::move(result);
    }
  }
  co_return first;
}

Task<Status> WriteBehind::SendEverything() {
  Status sent = co_await SendFiles(dirty_.TakeAll());
  // Other tasks may have taken files off the list and not have come to them yet.
  std::vector<InodePtr> inodes = inodes_.All();
  std::vector<InodePtr> files;
  std::copy_if(inodes.begin(), inodes.end(), std::back_inserter(files),
               [](const InodePtr& inode) { return HoldsBack(*inode); });
  Status rest = co_await SendFiles(std::move(files));
  if (sent.ok()) sent = std::move(rest);
  for (const InodePtr& inode : inodes) {  // what others are sending just now
    co_await moving_out_.Await(inode, MetadataQueue::Hurry::kYes);
    co_await inode->data_cache->WaitFlights(inode->data, 0, UINT64_MAX);
    AsyncMutex::Guard meta = co_await inode->meta.Lock();
  }
  co_return sent;
}

// --- one file ---

Task<Status> WriteBehind::SendAll(InodePtr inode) {
  Status sent = co_await SendParts(inode);
  room_.LetGo(*inode);
  co_return sent;
}

Task<Status> WriteBehind::SendParts(InodePtr inode) {
  {
    AsyncMutex::Guard meta = co_await moving_out_.LockMeta(inode, MetadataQueue::Hurry::kNo);
    CO_RETURN_IF_ERROR(co_await telling_.SendInline(inode));
  }
  Status data = co_await data_.Send(inode, 0, UINT64_MAX);
  Status size = co_await telling_.SendPending(inode);
  CO_RETURN_IF_ERROR(std::move(data));
  co_return size;
}

Task<Status> WriteBehind::SendClosed(InodePtr inode, bool last) {
  bool waits = false, small = false;
  {
    std::lock_guard lock(inode->mutex);
    const bool unsent = inode->inline_unsent() || inode->dirty_blocks > 0 || inode->pending.any();
    if (!unsent) inode->rewritten = false;
    const bool unlinked = inode->attr_known && inode->attr.nlink() == 0;       // it goes with its last handle
    const bool shared = inode->data_scope == nullptr && inode->pending.any();  // which others may have
    if (!unsent || inode->gone || (unlinked && !shared)) co_return OkStatus();
    // A shell that redirects into the file has closed one descriptor of two.
    if (!last && inode->awaits_bytes()) co_return OkStatus();
    waits = (inode->rewritten && !last) || unlinked;
    small = inode->Inline();
  }
  if (waits) {
    CO_RETURN_IF_ERROR(co_await SendAll(inode));
    std::lock_guard lock(inode->mutex);
    inode->rewritten = false;
    co_return OkStatus();
  }
  if (small) {
    (void)co_await queue_.WaitForRoom();  // who is cancelled leaves it there all the same
    if (telling_.TryPushInline(inode, {}) != Telling::Told::kAsk) co_return OkStatus();
  }
  SendSoon(inode);
  co_return OkStatus();
}

Task<Status> WriteBehind::SendUnsent(InodePtr inode) {
  {
    std::lock_guard lock(inode->mutex);
    if (!inode->IsUnsent()) co_return OkStatus();
  }
  if (telling_.TryPushInline(inode, {}) == Telling::Told::kOnItsWay) co_return OkStatus();
  // In the background, so that who waits for a server that is away can be cancelled.
  auto sent = std::make_shared<Status>();
  const OneShot<Unit> ended = background_.Start(KeepStatus(sent, SendAll(inode)));
  CO_RETURN_IF_ERROR(co_await WaitUnlessCancelled(ended));
  co_return *sent;
}

}  // namespace nacre::client
