// The use of OSTs (OstUse): draining and removal (ost_registry.h).
#include <algorithm>
#include <cerrno>

#include "common/log.h"
#include "server/cluster/chain_keeper.h"
#include "server/cluster/ost_registry.h"

namespace nacre::cluster {

Status OstRegistry::UnknownOst(OstIndex index) const {
  if (removed_.contains(index))
    return ErrnoError(ENODEV, absl::StrFormat("OST %d has been removed from the cluster", index));
  return ErrnoError(ENODEV, absl::StrFormat("no OST with index %d was ever registered", index));
}

bool OstRegistry::Knows(OstIndex index) const {
  std::lock_guard lock(mutex_);
  return osts_.contains(index);
}

bool OstRegistry::IsDown(OstIndex index) const {
  std::lock_guard lock(mutex_);
  auto it = osts_.find(index);
  return it != osts_.end() && !IsUpLocked(index, it->second);
}

bool OstRegistry::IsFailing(OstIndex index) const {
  std::lock_guard lock(mutex_);
  auto it = osts_.find(index);
  return it != osts_.end() && !it->second.chained && it->second.info.failing() && !it->second.ended;
}

StatusOr<OstRegistry::UseChange> OstRegistry::BeginUseChange(OstIndex index) {
  std::lock_guard lock(mutex_);
  if (!changing_use_.insert(index).second) {
    return ErrnoError(EBUSY,
                      absl::StrFormat("OST %d is being drained, undrained or removed just now: wait for "
                                      "that, and try again",
                                      index));
  }
  return UseChange(this, [this, index](void*) {
    std::lock_guard lock(mutex_);
    changing_use_.erase(index);
  });
}

OstUse OstRegistry::UseOf(OstIndex index) const {
  std::lock_guard lock(mutex_);
  if (auto it = osts_.find(index); it != osts_.end()) return it->second.use;
  auto it = removed_.find(index);
  return it == removed_.end() ? OstUse::kActive : it->second.use;
}

std::vector<OstIndex> OstRegistry::Removed() const {
  std::lock_guard lock(mutex_);
  std::vector<OstIndex> indices;
  for (const auto& [index, record] : removed_) indices.push_back(index);
  return indices;
}

uint32_t OstRegistry::CopiesOf(OstIndex index) const {
  std::lock_guard lock(mutex_);
  if (auto it = removed_.find(index); it != removed_.end()) return it->second.copies;
  auto it = osts_.find(index);
  if (it == osts_.end() || !it->second.chained) return 1;
  return chains_->Record(index).copies;
}

void OstRegistry::ResetUsable() {
  std::erase_if(former_usable_, [](const auto& former) { return former.expired(); });
  if (usable_ != nullptr) former_usable_.push_back(usable_);
  usable_.reset();
}

bool OstRegistry::MayYetPlaceOn(OstIndex index) const {
  std::lock_guard lock(mutex_);
  if (usable_ != nullptr && usable_->Includes(index)) return true;
  return std::ranges::any_of(former_usable_, [index](const std::weak_ptr<const UsableOsts>& former) {
    const std::shared_ptr<const UsableOsts> usable = former.lock();
    return usable != nullptr && usable->Includes(index);
  });
}

Task<Status> OstRegistry::SetUse(OstIndex index, OstUse use) {
  auto guard = co_await registering_.Lock();
  CO_RETURN_IF_ERROR(co_await StoreUse(index, use));
  Changed();
  co_return OkStatus();
}

// With registering_ held.
Task<Status> OstRegistry::StoreUse(OstIndex index, OstUse use) {
  bool chained = false;
  OstRecord record;
  {
    std::lock_guard lock(mutex_);
    auto it = osts_.find(index);
    if (it == osts_.end()) co_return UnknownOst(index);
    chained = it->second.chained;
    record = it->second.record;
  }
  record.use = use;
  if (chained) {
    CO_RETURN_IF_ERROR(co_await chains_->SetUse(index, use));
  } else {
    KvBatch batch;
    batch.UseReserve();
    batch.Put(OstKey(index), EncodeOst(record));
    CO_RETURN_IF_ERROR(co_await store_.Commit(std::move(batch)));
    CO_RETURN_IF_ERROR(co_await store_.Sync());
  }
  std::lock_guard lock(mutex_);
  Ost& ost = osts_.at(index);
  ost.use = ost.record.use = use;
  ResetUsable();
  co_return OkStatus();
}

Task<Status> OstRegistry::Remove(OstIndex index, OstUse how) {
  auto guard = co_await registering_.Lock();
  OstRecord record = chains_->Record(index);  // not known there any more afterwards
  CO_RETURN_IF_ERROR(co_await StoreUse(index, how));
  std::shared_ptr<ObjectStub> stub, impatient;
  Status gone;
  {
    std::lock_guard lock(mutex_);
    auto it = osts_.find(index);
    if (record.members.empty()) record = it->second.record;
    record.use = how;
    removed_[index] = std::move(record);
    stub = std::move(it->second.stub);
    impatient = std::move(it->second.impatient);
    osts_.erase(it);
    gone = UnknownOst(index);
  }
  LogWarning("OST %d is in the cluster no more%s", index,
             how == OstUse::kLost ? ", with what was on it" : "");
  if (stub != nullptr) stub->End(gone);
  if (impatient != nullptr) impatient->End(gone);
  guard.Release();
  Changed();
  co_return OkStatus();
}

Task<bool> OstRegistry::AwaitOutlived(OstIndex index) {
  for (;;) {
    if (IsUp(index)) co_return false;
    const Duration left = ServesUntil(index) - clock_.Now();
    {
      std::lock_guard lock(mutex_);
      if (closed_ || left <= Duration{0}) co_return !closed_;
    }
    co_await clock_.Sleep(std::min(left, options_.heartbeat));
  }
}

std::vector<OstIndex> OstRegistry::TakeRemoved(
    google::protobuf::RepeatedPtrField<proto::OstInfo>* osts) const {
  std::vector<OstIndex> removed;
  google::protobuf::RepeatedPtrField<proto::OstInfo> rest;
  for (proto::OstInfo& info : *osts) {
    auto it = removed_.find(info.index());
    if (it != removed_.end() && it->second.Find(info.uuid()) != nullptr)
      removed.push_back(info.index());
    else
      *rest.Add() = std::move(info);
  }
  osts->Swap(&rest);
  return removed;
}

}  // namespace nacre::cluster
