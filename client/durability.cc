#include "client/durability.h"

namespace nacre::client {

Durability::Durability(Targets& targets, ObjectIo& io, MetadataQueue& queue, Session& session, OnLost on_lost)
    : targets_(targets), io_(io), queue_(queue), session_(session), on_lost_(std::move(on_lost)) {}

// --- objects ---

void Durability::Written(const InodePtr& inode, const Losses& osts) {
  Losses noted = osts;
  {
    std::lock_guard lock(inode->mutex);
    inode->unsynced.merge(noted);  // keeps what is there: the older count
  }
  // A write to several OSTs ends with the slowest: another of them may have lost power since it answered, and
  // CheckLosses has passed this file by.
  for (const auto& [ost, losses] : osts) CheckLosses(inode, ost, targets_.Losses(ost).value_or(losses));
}

void Durability::CheckLosses(const InodePtr& inode, OstIndex ost, uint64_t losses) {
  Losses written;
  {
    std::lock_guard lock(inode->mutex);
    auto it = inode->unsynced.find(ost);
    if (it == inode->unsynced.end() || it->second == losses) return;
    written.insert(inode->unsynced.extract(it));
  }
  (void)Compare(inode, written, {{ost, losses}});  // noted in the inode
}

Status Durability::Compare(const InodePtr& inode, const Losses& written, const Losses& now) {
  for (const auto& [ost, losses] : written) {
    auto found = now.find(ost);
    if (found != now.end() && found->second != losses) return on_lost_(inode, ost);
  }
  return OkStatus();
}

Task<Status> Durability::SyncObjects(uint64_t epoch, InodePtr inode, bool shared) {
  AsyncMutex::Guard turn = co_await inode->sync.Lock();
  Losses written;
  std::set<OstIndex> osts;
  {
    std::lock_guard lock(inode->mutex);
    written.swap(inode->unsynced);
    for (const auto& [ost, losses] : written) osts.insert(ost);
    // Without the lease others may have written what this is to make durable; or this client, before it
    // forgot the file.
    if ((shared || !inode->unsynced_whole) && !inode->attr.inline_data() && inode->layout != nullptr) {
      for (uint32_t n = 0; n < inode->layout->stripe_count(); ++n) osts.insert(inode->layout->Ost(n));
    }
  }
  if (osts.empty()) co_return OkStatus();
  auto synced = co_await io_.Sync(epoch, osts);
  {
    std::lock_guard lock(inode->mutex);
    if (!synced.ok()) inode->unsynced.merge(written);
    if (synced.ok() && !shared) inode->unsynced_whole = true;
  }
  CO_RETURN_IF_ERROR(synced.status());
  co_return Compare(inode, written, *synced);
}

// --- the MDT ---

Task<Status> Durability::SyncMutations(uint64_t epoch, uint64_t number, bool shared) {
  if (!shared && number <= synced_) co_return OkStatus();
  co_await queue_.Drain();
  // Not what is under way outside of the queue: the MDS may come to it after this.
  const uint64_t upto = session_.answered();
  proto::MetadataRequest request;
  request.mutable_sync();
  auto reply = co_await session_.Call(epoch, std::move(request));
  CO_RETURN_IF_ERROR(reply.status());
  if (session_.epoch() != epoch) co_return OkStatus();
  uint64_t before = synced_;
  while (before < upto && !synced_.compare_exchange_weak(before, upto)) {
  }
  // The numbers of another session begin anew: nothing of it is synced yet, and one sync too many does no
  // harm.
  if (session_.epoch() != epoch) Reset();
  co_return OkStatus();
}

}  // namespace nacre::client
