#include "client/inode_table.h"

namespace nacre::client {
namespace {

constexpr size_t kTrimBatch = 64;

// Whether the table's reference is the only one and nothing would be lost with the inode.
bool Disposable(const InodePtr& inode) {
  if (inode.use_count() > 1) return false;
  std::lock_guard lock(inode->mutex);
  return inode->opens == 0 && !inode->pending.any() && !inode->inline_dirty() && inode->inline_flights == 0 &&
         !inode->listed_dirty && inode->dirty_blocks == 0 && inode->locks.empty() &&
         inode->pages.leaving.empty() && inode->held == 0 && !inode->errors.unreported();
}

}  // namespace

InodePtr InodeTable::Find(Fid fid) {
  std::lock_guard lock(mutex_);
  auto it = slots_.find(fid);
  if (it == slots_.end()) return nullptr;
  order_.splice(order_.end(), order_, it->second.place);
  return it->second.inode;
}

InodePtr InodeTable::Get(Fid fid) {
  std::vector<InodePtr> dropped;  // destroyed outside of the mutex
  std::lock_guard lock(mutex_);
  auto it = slots_.find(fid);
  if (it != slots_.end()) {
    order_.splice(order_.end(), order_, it->second.place);
    return it->second.inode;
  }
  Trim(&dropped);
  auto inode = std::make_shared<Inode>(fid, cache_);
  slots_[fid] = {inode, order_.insert(order_.end(), fid)};
  return inode;
}

// Looks at a few of the longest unused only, so that its cost does not grow with the table.
void InodeTable::Trim(std::vector<InodePtr>* out) {
  size_t tries = kTrimBatch;
  while (slots_.size() + static_cast<size_t>(std::max<int64_t>(entries_, 0)) >= limit_ && !order_.empty() &&
         tries-- > 0) {
    Fid fid = order_.front();
    auto it = slots_.find(fid);
    if (!Disposable(it->second.inode)) {
      order_.splice(order_.end(), order_, it->second.place);
      continue;
    }
    entries_ -= static_cast<int64_t>(it->second.inode->entries.size());
    out->push_back(std::move(it->second.inode));
    order_.erase(it->second.place);
    slots_.erase(it);
  }
}

std::vector<InodePtr> InodeTable::All() {
  std::vector<InodePtr> all;
  std::lock_guard lock(mutex_);
  all.reserve(slots_.size());
  for (const Fid& fid : order_) all.push_back(slots_[fid].inode);
  return all;
}

size_t InodeTable::count() {
  std::lock_guard lock(mutex_);
  return slots_.size();
}

void InodeTable::CountEntries(int64_t change) { entries_ += change; }

void InodeTable::Forget() {
  std::vector<InodePtr> dropped;
  {
    std::lock_guard lock(mutex_);
    for (auto it = order_.begin(); it != order_.end();) {
      auto slot = slots_.find(*it);
      if (!Disposable(slot->second.inode)) {
        ++it;
        continue;
      }
      dropped.push_back(std::move(slot->second.inode));
      slots_.erase(slot);
      it = order_.erase(it);
    }
    entries_ = 0;
  }
  for (const InodePtr& inode : All()) {
    std::lock_guard lock(inode->mutex);
    inode->Forget();
  }
}

// --- names ---

NameKnown FindName(Inode& directory, const std::string& name) {
  std::lock_guard lock(directory.mutex);
  return FindNameLocked(directory, name);
}

NameKnown FindNameLocked(const Inode& directory, const std::string& name) {
  auto it = directory.entries.find(name);
  if (it != directory.entries.end()) {
    if (!it->second.fid) return {NameKnown::Answer::kAbsent, {}};
    return {NameKnown::Answer::kPresent, it->second.fid};
  }
  return {directory.complete ? NameKnown::Answer::kAbsent : NameKnown::Answer::kUnknown, {}};
}

FillToken BeginFill(Inode& directory) {
  std::lock_guard lock(directory.mutex);
  return {directory.version, directory.changing == 0};
}

bool FillName(InodeTable& table, Inode& directory, FillToken token, const std::string& name, Fid fid) {
  std::lock_guard lock(directory.mutex);
  if (!token.quiet || directory.version != token.version) return false;
  auto [it, fresh] = directory.entries.insert_or_assign(name, Inode::Entry{fid});
  if (fresh) table.CountEntries(1);
  return true;
}

NameLock::NameLock(NameLock&& other) noexcept
    : directory_(std::move(other.directory_)), name_(std::move(other.name_)) {}

NameLock& NameLock::operator=(NameLock&& other) noexcept {
  std::swap(directory_, other.directory_);
  std::swap(name_, other.name_);
  return *this;
}

std::optional<NameLock> NameLock::TryTake(const InodePtr& directory, const std::string& name) {
  {
    std::lock_guard lock(directory->mutex);
    if (!directory->locked_names.insert(name).second) return std::nullopt;
    ++directory->version;
    ++directory->changing;
  }
  NameLock taken;
  taken.directory_ = directory;
  taken.name_ = name;
  return taken;
}

Task<NameLock> NameLock::Take(InodePtr directory, std::string name) {
  for (;;) {
    std::optional<NameLock> taken = TryTake(directory, name);
    if (taken) co_return *std::move(taken);
    OneShot<Unit> free;
    {
      std::lock_guard lock(directory->mutex);
      if (!directory->locked_names.contains(name)) continue;
      directory->name_waiters.push_back(free);
    }
    co_await free.Wait();
  }
}

NameLock::~NameLock() {
  if (directory_ == nullptr) return;
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(directory_->mutex);
    directory_->locked_names.erase(name_);
    ++directory_->version;
    --directory_->changing;
    waiters.swap(directory_->name_waiters);
  }
  for (OneShot<Unit>& waiter : waiters) waiter.Set({});
}

void NameLock::Set(InodeTable& table, Fid fid) {
  std::lock_guard lock(directory_->mutex);
  if (!fid && directory_->complete) {
    table.CountEntries(-static_cast<int64_t>(directory_->entries.erase(name_)));
    return;
  }
  if (directory_->entries.insert_or_assign(name_, Inode::Entry{fid}).second) table.CountEntries(1);
}

void NameLock::SetUnknown(InodeTable& table) {
  std::lock_guard lock(directory_->mutex);
  table.CountEntries(-static_cast<int64_t>(directory_->entries.erase(name_)));
  directory_->complete = false;
  ++directory_->drops;
}

}  // namespace nacre::client
