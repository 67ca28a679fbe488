#include "server/metadata/lease_table.h"

#include <algorithm>

#include "rpc/convert.h"

namespace nacre::mds {
namespace {

bool Conflict(proto::LeaseMode a, proto::LeaseMode b) {
  return a == proto::LEASE_WRITE || b == proto::LEASE_WRITE;
}

void SetAll(const std::vector<OneShot<Unit>>& waiters) {
  for (const auto& waiter : waiters) waiter.Set({});
}

}  // namespace

proto::Lease LeaseGrant::ToProto() const {
  proto::Lease lease;
  *lease.mutable_resource() = nacre::ToProto(resource);
  lease.set_mode(mode);
  lease.set_id(id);
  return lease;
}

LeaseGrant LeaseTable::Grant(SessionId session, const Fid& resource, proto::LeaseMode mode) {
  std::lock_guard lock(mutex_);
  for (uint64_t id : by_resource_[resource]) {
    LeaseGrant& grant = grants_[id].grant;
    if (grant.session != session || grant.revoking) continue;
    grant.mode = mode;
    return grant;
  }
  while (grants_.contains(next_id_)) ++next_id_;  // one that was restored
  uint64_t id = next_id_++;
  by_resource_[resource].push_back(id);
  grants_[id].grant = {id, resource, session, mode, false};
  return grants_[id].grant;
}

bool LeaseTable::Restore(SessionId session, const proto::Lease& lease) {
  const Fid resource = FromProto(lease.resource());
  std::lock_guard lock(mutex_);
  for (const LeaseGrant& grant : HoldersLocked(resource)) {
    if (grant.session == session && grant.id == lease.id()) return true;
    if (grant.session != session && Conflict(grant.mode, lease.mode())) return false;
  }
  if (grants_.contains(lease.id())) return false;
  by_resource_[resource].push_back(lease.id());
  grants_[lease.id()].grant = {lease.id(), resource, session, lease.mode(), false};
  return true;
}

std::vector<LeaseGrant> LeaseTable::HoldersLocked(const Fid& resource) const {
  std::vector<LeaseGrant> holders;
  auto it = by_resource_.find(resource);
  if (it == by_resource_.end()) return holders;
  for (uint64_t id : it->second) holders.push_back(grants_.at(id).grant);
  return holders;
}

std::vector<LeaseGrant> LeaseTable::HoldersOf(const Fid& resource) const {
  std::lock_guard lock(mutex_);
  return HoldersLocked(resource);
}

std::vector<LeaseGrant> LeaseTable::Conflicts(const Fid& resource, SessionId session,
                                              proto::LeaseMode mode) const {
  std::vector<LeaseGrant> conflicts = HoldersOf(resource);
  std::erase_if(conflicts, [&](const LeaseGrant& grant) {
    return grant.session == session || !Conflict(grant.mode, mode);
  });
  return conflicts;
}

bool LeaseTable::BeginRevoke(uint64_t id) {
  std::lock_guard lock(mutex_);
  auto it = grants_.find(id);
  if (it == grants_.end()) return false;
  it->second.grant.revoking = true;
  return true;
}

OneShot<Unit> LeaseTable::Released(uint64_t id) {
  OneShot<Unit> released;
  std::lock_guard lock(mutex_);
  auto it = grants_.find(id);
  if (it == grants_.end())
    released.Set({});
  else
    it->second.waiters.push_back(released);
  return released;
}

void LeaseTable::Erase(uint64_t id, std::vector<OneShot<Unit>>* waiters) {
  auto it = grants_.find(id);
  auto place = by_resource_.find(it->second.grant.resource);
  std::erase(place->second, id);
  if (place->second.empty()) by_resource_.erase(place);
  waiters->insert(waiters->end(), it->second.waiters.begin(), it->second.waiters.end());
  grants_.erase(it);
}

void LeaseTable::Release(SessionId session, uint64_t id, proto::LeaseMode keep) {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    auto it = grants_.find(id);
    if (it == grants_.end() || it->second.grant.session != session) return;
    if (keep == proto::LEASE_NONE) {
      Erase(id, &waiters);
    } else {
      it->second.grant.mode = keep;
      it->second.grant.revoking = false;
      waiters.swap(it->second.waiters);
    }
  }
  SetAll(waiters);
}

template <typename Which>
void LeaseTable::EraseAll(Which which) {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    std::vector<uint64_t> ids;
    for (const auto& [id, slot] : grants_) {
      if (which(slot.grant)) ids.push_back(id);
    }
    for (uint64_t id : ids) Erase(id, &waiters);
  }
  SetAll(waiters);
}

void LeaseTable::EndUnnamed(SessionId session, const std::set<uint64_t>& named) {
  EraseAll([&](const LeaseGrant& grant) {
    return grant.session == session && grant.mode == proto::LEASE_READ && !named.contains(grant.id);
  });
}

void LeaseTable::DropSession(SessionId session) {
  EraseAll([session](const LeaseGrant& grant) { return grant.session == session; });
}

std::map<SessionId, uint64_t> LeaseTable::CountBySession() const {
  std::lock_guard lock(mutex_);
  std::map<SessionId, uint64_t> counts;
  for (const auto& [id, slot] : grants_) ++counts[slot.grant.session];
  return counts;
}

}  // namespace nacre::mds
