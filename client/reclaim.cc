#include "client/reclaim.h"

#include <algorithm>
#include <utility>

#include "client/handles.h"
#include "rpc/convert.h"

namespace nacre::client {
namespace {

constexpr int kEntriesOfReclaim = 4000;  // some hundred KiB

void AddLease(const Inode& inode, uint64_t id, proto::LeaseMode mode, proto::Reclaim* held,
              bool late = false) {
  proto::Lease* lease = held->add_leases();
  *lease->mutable_resource() = ToProto(inode.fid);
  lease->set_mode(mode);
  lease->set_id(id);
  lease->set_late(late);
}

}  // namespace

std::vector<proto::Reclaim> ListHeld(const std::vector<InodePtr>& inodes) {
  std::vector<proto::Reclaim> parts(1);
  proto::Reclaim leases;  // all in the last message: the MDS ends those that it does not name
  int entries = 0;
  auto part = [&]() -> proto::Reclaim* {
    if (entries++ == kEntriesOfReclaim) {
      parts.emplace_back();
      entries = 1;
    }
    return &parts.back();
  };
  for (const InodePtr& inode : inodes) {
    std::lock_guard lock(inode->mutex);
    if (Handles::IsUntold(*inode)) {
      // Nobody else tells it. Under WRITE the MDS may have yet to make the file: LeaseReturns tells it then.
      const Scope& under = *inode->opened_under;
      if (!under.good() && !under.writes()) inode->told = inode->opens;
    }
    uint32_t count = inode->told + inode->closing;
    if (inode->kept_open) count = std::max(count, 1u);
    if (count > 0) {
      ++inode->named;
      proto::OpenFile* open = part()->add_opens();
      *open->mutable_fid() = ToProto(inode->fid);
      open->set_count(count);
      open->set_write(inode->write_opens > 0);
    }
    for (const proto::LockRange& lock_range : inode->locks) *part()->add_locks() = lock_range;
    if (inode->pages.lease != 0) AddLease(*inode, inode->pages.lease, proto::LEASE_READ, &leases);
    const ScopePtr& scope = inode->scope;
    if (scope != nullptr) AddLease(*inode, scope->lease(), scope->mode(), &leases);
    // One that the MDS has not named keeps others out until what was answered under it is told.
    const ScopePtr& ended = inode->ended;
    if (scope == nullptr && ended != nullptr && ended->lease() == 0)
      AddLease(*inode, 0, proto::LEASE_WRITE, &leases);
    for (const Inode::Leaving& one : inode->leaving) {
      if (!one.returned) AddLease(*inode, one.lease, one.mode, &leases, one.late);
    }
  }
  if (leases.leases_size() > 0) parts.push_back(std::move(leases));
  return parts;
}

}  // namespace nacre::client
