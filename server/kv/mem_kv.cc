#include "server/kv/mem_kv.h"

#include <absl/strings/str_format.h>

#include <cerrno>

namespace nacre {
namespace {

class MemSnapshot : public KvSnapshot {
 public:
  explicit MemSnapshot(std::map<std::string, std::string, std::less<>> data) : data_(std::move(data)) {}

  StatusOr<std::vector<KvEntry>> Read(std::string_view from, size_t max_bytes) override {
    std::vector<KvEntry> entries;
    size_t bytes = 0;
    for (auto it = data_.lower_bound(from); it != data_.end() && bytes < max_bytes; ++it) {
      bytes += it->first.size() + it->second.size();
      entries.push_back({it->first, it->second});
    }
    return entries;
  }

 private:
  const std::map<std::string, std::string, std::less<>> data_;
};

}  // namespace

StatusOr<std::string> MemKv::Get(std::string_view key) {
  std::lock_guard lock(mutex_);
  auto it = data_.find(key);
  if (it == data_.end()) return ErrnoError(ENOENT, "no such key");
  return it->second;
}

StatusOr<std::vector<KvEntry>> MemKv::Scan(std::string_view from, std::string_view to, size_t limit) {
  std::lock_guard lock(mutex_);
  std::vector<KvEntry> entries;
  for (auto it = data_.lower_bound(from); it != data_.end() && entries.size() < limit; ++it) {
    if (!to.empty() && it->first >= to) break;
    entries.push_back({it->first, it->second});
  }
  return entries;
}

StatusOr<KvEntry> MemKv::Last(std::string_view from, std::string_view to) {
  std::lock_guard lock(mutex_);
  auto it = to.empty() ? data_.end() : data_.lower_bound(to);
  if (it == data_.begin() || std::prev(it)->first < from) return ErrnoError(ENOENT, "no key in this range");
  --it;
  return KvEntry{it->first, it->second};
}

StatusOr<std::unique_ptr<KvSnapshot>> MemKv::Snapshot() {
  std::lock_guard lock(mutex_);
  return std::make_unique<MemSnapshot>(data_);
}

Task<Status> MemKv::Commit(KvBatch batch) {
  std::shared_ptr<CommitPause> pause;
  {
    std::lock_guard lock(mutex_);
    pause = commit_pause_;
  }
  if (pause != nullptr) co_await (*pause)();
  const std::shared_ptr<Placed> placed = Place(std::move(batch));
  if (const auto& told = placed->batch.placed()) {
    told->Set({});
    if (pause != nullptr) co_await (*pause)();
  }
  Status status = CommitUntil(*placed);
  if (pause != nullptr) co_await (*pause)();
  co_return status;
}

std::shared_ptr<MemKv::Placed> MemKv::Place(KvBatch batch) {
  std::lock_guard lock(mutex_);
  return placed_.emplace_back(std::make_shared<Placed>(Placed{std::move(batch), {}}));
}

// Batches before it take effect as well, if they have not by now.
Status MemKv::CommitUntil(const Placed& last) {
  std::lock_guard lock(mutex_);
  while (!last.done && !placed_.empty()) {
    placed_.front()->done = CommitNow(placed_.front()->batch);
    placed_.pop_front();
  }
  return last.done.value_or(ErrnoError(ESHUTDOWN, "the store crashed during a commit"));
}

Status MemKv::CheckRoom(const KvBatch& batch) {
  if (commit_hook_) RETURN_IF_ERROR(commit_hook_(batch));
  uint64_t added = 0;
  for (const KvBatch::Op& op : batch.ops()) added += op.erase ? 0 : op.key.size() + op.value.size();
  if (bytes_ + added <= total_bytes_) return OkStatus();
  return ErrnoError(ENOSPC,
                    absl::StrFormat("in-memory store is full: %d of %d bytes in use", bytes_, total_bytes_));
}

Status MemKv::Admit(KvBatch* batch) {
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(CheckRoom(*batch));
  batch->SetAdmitted();
  return OkStatus();
}

Status MemKv::CommitNow(const KvBatch& batch) {
  if (!batch.admitted()) RETURN_IF_ERROR(CheckRoom(batch));
  Undo undo;
  undo.reserve(batch.ops().size());
  for (const KvBatch::Op& op : batch.ops()) Apply(op, &undo);
  unsynced_.push_back(std::move(undo));
  ++committed_;
  return OkStatus();
}

void MemKv::Apply(KvBatch::Op op, Undo* undo) {
  auto it = data_.find(op.key);
  if (it == data_.end()) {
    if (undo != nullptr) undo->push_back({op.key, {}, true});
    if (op.erase) return;
    bytes_ += op.key.size() + op.value.size();
    data_.emplace(std::move(op.key), std::move(op.value));
    return;
  }
  bytes_ -= it->second.size();
  if (undo != nullptr) undo->push_back({op.key, std::move(it->second), false});
  if (op.erase) {
    bytes_ -= it->first.size();
    data_.erase(it);
    return;
  }
  bytes_ += op.value.size();
  it->second = std::move(op.value);
}

void MemKv::TakeBack(Undo undo) {
  for (auto op = undo.rbegin(); op != undo.rend(); ++op) Apply(std::move(*op), nullptr);
}

Task<Status> MemKv::Sync() {
  uint64_t upto;
  uint64_t incarnation;
  std::shared_ptr<SyncHook> hook;
  {
    std::lock_guard lock(mutex_);
    upto = committed_;
    incarnation = incarnation_;
    hook = sync_hook_;
  }
  if (hook != nullptr) {
    Status status = co_await (*hook)();
    if (!status.ok()) co_return status;
  }
  std::lock_guard lock(mutex_);
  if (incarnation != incarnation_) co_return ErrnoError(ESHUTDOWN, "the store crashed during a sync");
  while (!unsynced_.empty() && committed_ - unsynced_.size() < upto) unsynced_.pop_front();
  co_return OkStatus();
}

KvStore::Space MemKv::GetSpace() {
  std::lock_guard lock(mutex_);
  return {total_bytes_, told_free_.value_or(total_bytes_ - std::min(bytes_, total_bytes_)), bytes_};
}

void MemKv::SetSyncHook(SyncHook hook) {
  std::lock_guard lock(mutex_);
  sync_hook_ = hook ? std::make_shared<SyncHook>(std::move(hook)) : nullptr;
}

void MemKv::SetFree(std::optional<uint64_t> bytes) {
  std::lock_guard lock(mutex_);
  told_free_ = bytes;
}

void MemKv::SetCommitPause(CommitPause pause) {
  std::lock_guard lock(mutex_);
  commit_pause_ = pause ? std::make_shared<CommitPause>(std::move(pause)) : nullptr;
}

void MemKv::SetCommitHook(CommitHook hook) {
  std::lock_guard lock(mutex_);
  commit_hook_ = std::move(hook);
}

void MemKv::CrashProcess() {
  std::lock_guard lock(mutex_);
  ++incarnation_;
  placed_.clear();
}

void MemKv::LosePower(Random& random) {
  std::lock_guard lock(mutex_);
  ++incarnation_;
  placed_.clear();
  size_t lost = random.Below(unsynced_.size() + 1);
  for (; lost > 0; --lost) {
    TakeBack(std::move(unsynced_.back()));
    unsynced_.pop_back();
    --committed_;
  }
  unsynced_.clear();  // what the disk has kept is on the disk
}

size_t MemKv::unsynced_batches() const {
  std::lock_guard lock(mutex_);
  return unsynced_.size();
}

}  // namespace nacre
