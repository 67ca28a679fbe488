#include "client/inode_table.h"

#include <algorithm>

#include "common/allocator.h"

namespace nacre::client {
namespace {

constexpr int kTrimSteps = 16;  // inodes looked at for each one that is asked for

// Whether the table's reference is the only one and nothing would be lost with the inode. Then nobody can get
// another reference without the table's mutex.
bool Disposable(const InodePtr& inode) {
  if (inode.use_count() > 1) return false;
  std::lock_guard lock(inode->mutex);
  return inode->opens == 0 && !inode->pending.any() && !inode->inline_dirty() && inode->inline_flights == 0 &&
         !inode->listed_dirty && inode->dirty_blocks == 0 && inode->locks.empty() && inode->leaving.empty() &&
         inode->own_changes == 0 && inode->held == 0 && !inode->errors.unreported();
}

}  // namespace

void InodeTable::Append(Inode* inode) {
  inode->older = newest_;
  (newest_ != nullptr ? newest_->newer : oldest_) = inode;
  newest_ = inode;
  inode->used = ++uses_;
}

void InodeTable::Remove(Inode* inode) {
  if (contents_ == inode) contents_ = inode->newer;
  (inode->older != nullptr ? inode->older->newer : oldest_) = inode->newer;
  (inode->newer != nullptr ? inode->newer->older : newest_) = inode->older;
  inode->older = inode->newer = nullptr;
}

void InodeTable::Touch(Inode* inode) {
  Remove(inode);
  Append(inode);
}

InodePtr InodeTable::FindLocked(Fid fid) {
  auto it = inodes_.find(fid);
  if (it == inodes_.end()) return nullptr;
  Touch(it->get());
  return *it;
}

InodePtr InodeTable::Make(Fid fid) {
  auto inode = std::make_shared<Inode>(fid, cache_, budget_);
  inode->changed = DroppedAt(fid);
  inodes_.insert(inode);
  Append(inode.get());
  return inode;
}

InodePtr InodeTable::Find(Fid fid) {
  std::lock_guard lock(mutex_);
  return FindLocked(fid);
}

InodePtr InodeTable::Get(Fid fid) {
  if (budget_->MuchWasLetGo()) ReturnFreeMemory();
  std::vector<InodePtr> dropped;  // destroyed outside of the mutex
  std::lock_guard lock(mutex_);
  InodePtr inode = FindLocked(fid);
  if (budget_->Exceeded()) Trim(UINT64_MAX, &dropped);
  if (inode == nullptr) inode = Make(fid);
  return inode;
}

InodePtr InodeTable::GetListed(Fid fid, uint64_t began) {
  std::vector<InodePtr> dropped;
  std::lock_guard lock(mutex_);
  InodePtr inode = FindLocked(fid);
  if (inode != nullptr) return inode;
  Trim(began, &dropped);
  return budget_->Exceeded() ? nullptr : Make(fid);
}

uint64_t InodeTable::Now() {
  std::lock_guard lock(mutex_);
  return uses_;
}

void InodeTable::Retire(Inode& inode) {
  std::lock_guard lock(mutex_);
  auto it = inodes_.find(inode.fid);
  if (it == inodes_.end() || it->get() != &inode || oldest_ == &inode) return;
  Remove(&inode);
  inode.newer = std::exchange(oldest_, &inode);
  inode.newer->older = &inode;
  inode.used = 0;
}

// Looks at a few only, so that its cost does not grow with the table.
void InodeTable::Trim(uint64_t began, std::vector<InodePtr>* out) {
  bool dropped = false;
  for (int i = 0; i < kTrimSteps && budget_->Exceeded() && budget_->ContentsGoFirst(); ++i)
    dropped = DropContents() || dropped;
  if (dropped) return;
  for (int i = 0; i < kTrimSteps && budget_->Exceeded() && oldest_ != nullptr; ++i) {
    if (oldest_->used > began) return;
    if (InodePtr gone = DropOldest()) out->push_back(std::move(gone));
  }
}

// Looks at one inode, at the one behind it the next time. Whether it had bytes that could go. The
// write-behind's list has a closed file for some seconds after its bytes were sent, and does not want them
// any more.
bool InodeTable::DropContents() {
  Inode* at = contents_ != nullptr ? contents_ : oldest_;
  if (at == nullptr) return false;
  contents_ = at->newer;
  const InodePtr& inode = *inodes_.find(at->fid);
  std::lock_guard lock(at->mutex);
  if (inode.use_count() > (at->listed_dirty ? 2 : 1)) return false;
  if (at->inline_bytes == nullptr || at->inline_unsent()) return false;
  at->inline_bytes.reset();
  return true;
}

// Takes out the inode that has not been used for longest. One that has to stay loses the names in it, and
// counts as used. Null: it stays.
InodePtr InodeTable::DropOldest() {
  Inode* oldest = oldest_;
  auto it = inodes_.find(oldest->fid);
  if (!Disposable(*it)) {
    Touch(oldest);
    std::lock_guard lock(oldest->mutex);
    if (oldest->names.size() > 0) oldest->names.Forget();
    return nullptr;
  }
  return Drop(oldest);
}

InodePtr InodeTable::Drop(Inode* inode) {
  Remove(inode);
  auto it = inodes_.find(inode->fid);
  InodePtr gone = *it;
  inodes_.erase(it);
  DroppedAt(gone->fid) = NextEvent();
  if (gone->scope != nullptr) dropped_scopes_.push_back(gone->EndScope());
  return gone;
}

std::vector<ScopePtr> InodeTable::TakeDroppedScopes() {
  std::lock_guard lock(mutex_);
  return std::exchange(dropped_scopes_, {});
}

ScopePtr InodeTable::DroppedScope(const Fid& directory) {
  std::lock_guard lock(mutex_);
  auto it = std::ranges::find(dropped_scopes_, directory, [](const ScopePtr& scope) { return scope->of; });
  return it == dropped_scopes_.end() ? nullptr : *it;
}

ScopePtr InodeTable::KeepScope(uint64_t lease) {
  std::lock_guard lock(mutex_);
  auto it = std::find_if(dropped_scopes_.begin(), dropped_scopes_.end(),
                         [lease](const ScopePtr& scope) { return scope->lease() == lease; });
  if (it == dropped_scopes_.end()) return nullptr;
  ScopePtr scope = std::move(*it);
  dropped_scopes_.erase(it);
  return scope;
}

std::vector<InodePtr> InodeTable::All() {
  std::vector<InodePtr> all;
  std::lock_guard lock(mutex_);
  all.reserve(inodes_.size());
  for (Inode* inode = oldest_; inode != nullptr; inode = inode->newer)
    all.push_back(*inodes_.find(inode->fid));
  return all;
}

size_t InodeTable::count() {
  std::lock_guard lock(mutex_);
  return inodes_.size();
}

void InodeTable::Forget() {
  std::vector<InodePtr> dropped;
  {
    std::lock_guard lock(mutex_);
    for (Inode *inode = oldest_, *next = nullptr; inode != nullptr; inode = next) {
      next = inode->newer;
      if (Disposable(*inodes_.find(inode->fid))) dropped.push_back(Drop(inode));
    }
  }
  for (const InodePtr& inode : All()) {
    std::lock_guard lock(inode->mutex);
    inode->Forget();
  }
}

// --- names ---

NameKnown FindName(Inode& directory, const std::string& name) {
  std::lock_guard lock(directory.mutex);
  return directory.names.Find(name);
}

NameKnown FindAmongAll(const Inode& directory, const std::string& name) {
  const NameKnown known = directory.names.Find(name);
  const bool all = directory.names.present() == directory.attr.size();
  return known.answer == NameKnown::Answer::kUnknown && all ? NameKnown{NameKnown::Answer::kAbsent, {}}
                                                            : known;
}

FillToken BeginFill(Inode& directory) {
  std::lock_guard lock(directory.mutex);
  return {directory.version, directory.changing == 0, directory.names.drops(), nullptr};
}

namespace {

// With the directory's mutex held.
bool MayFill(const Inode& directory, const FillToken& token) {
  return token.quiet && directory.version == token.version &&
         (token.scope == nullptr || directory.scope == token.scope);
}

}  // namespace

void FillName(Inode& directory, FillToken token, const std::string& name, Fid fid) {
  std::lock_guard lock(directory.mutex);
  if (MayFill(directory, token)) directory.names.Set(name, fid);
}

bool FillListed(Inode& directory, FillToken token, const std::string& name, Fid fid) {
  std::lock_guard lock(directory.mutex);
  return MayFill(directory, token) && directory.names.TryAdd(name, fid);
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

void NameLock::Set(Fid fid) {
  std::lock_guard lock(directory_->mutex);
  directory_->names.Set(name_, fid);
}

void NameLock::SetUnknown() {
  std::lock_guard lock(directory_->mutex);
  directory_->names.Distrust(name_);
}

}  // namespace nacre::client
