#include "client/dirty_files.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace nacre::client {
namespace {

constexpr size_t kMost = 4096;

}  // namespace

DirtyFiles::DirtyFiles(const Environment& environment, const Options& options, Hooks hooks)
    : environment_(environment), options_(options), hooks_(std::move(hooks)) {}

void DirtyFiles::List(const InodePtr& inode) {
  {
    std::lock_guard lock(inode->mutex);
    if (inode->listed_dirty || inode->gone) return;
    inode->listed_dirty = true;
    inode->dirty_since = environment_.clock.Now();
  }
  bool crowded;
  {
    std::lock_guard lock(mutex_);
    dirty_.push_back(inode);
    crowded = dirty_.size() == kMost;
    if (timer_ == nullptr) ArmLocked();
  }
  if (crowded) hooks_.crowded();
}

void DirtyFiles::ArmLocked() {
  if (stopped_) return;
  timer_ = environment_.clock.After(environment_.executor, options_.write_behind / 2, [this] { OnTimer(); });
}

void DirtyFiles::OnTimer() {
  bool idle = false;
  {
    std::lock_guard lock(mutex_);
    timer_.reset();
    if (stopped_) return;
    idle = dirty_.empty();
    if (!idle) ArmLocked();
  }
  if (idle)
    hooks_.idle();
  else
    hooks_.due();
}

std::vector<InodePtr> DirtyFiles::TakeOlder(Duration age) {
  std::lock_guard lock(mutex_);
  const Duration now = environment_.clock.Now();
  auto young = std::find_if(dirty_.begin(), dirty_.end(), [&](const InodePtr& inode) {
    std::lock_guard inode_lock(inode->mutex);
    return now - inode->dirty_since < age;
  });
  std::vector<InodePtr> older(std::make_move_iterator(dirty_.begin()), std::make_move_iterator(young));
  dirty_.erase(dirty_.begin(), young);
  return older;
}

std::vector<InodePtr> DirtyFiles::TakeAll() {
  std::lock_guard lock(mutex_);
  return std::exchange(dirty_, {});
}

bool DirtyFiles::ListClosed(const InodePtr& inode) {
  std::lock_guard lock(mutex_);
  if (!closed_.empty() && closed_.back() == inode) return false;  // its descriptor was closed, now its handle
  closed_.push_back(inode);
  return closed_.size() == 1;
}

std::vector<InodePtr> DirtyFiles::TakeClosed() {
  std::lock_guard lock(mutex_);
  return std::exchange(closed_, {});
}

void DirtyFiles::Stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  timer_.reset();
}

}  // namespace nacre::client
