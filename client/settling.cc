#include "client/settling.h"

#include <algorithm>

namespace nacre::client {

Settling::Settling(EarlyChanges& early, std::vector<InodePtr> inodes)
    : early_(early), inodes_(std::move(inodes)) {
  const EarlyChanges::Order order = early.TakeOrder();  // what was answered before is in the queue by now
  for (const InodePtr& inode : inodes_) {
    if (inode == nullptr) continue;
    std::lock_guard lock(inode->mutex);
    ++inode->settling;
  }
}

Settling::~Settling() {
  const uint64_t mutations = early_.session_.mutations();
  for (const InodePtr& inode : inodes_) {
    if (inode == nullptr) continue;
    std::lock_guard lock(inode->mutex);
    --inode->settling;
    inode->mutation = std::max(inode->mutation, mutations);
  }
}

}  // namespace nacre::client
