#include "server/metadata/lease_table.h"

#include <algorithm>

#include "rpc/convert.h"

namespace nacre::mds {
namespace {

// A client that uses more directories than this works without leases in the rest.
constexpr size_t kMostOfSession = 1 << 16;
constexpr size_t kSpare = 1 << 12;  // more than a client makes directories ahead of their answers

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
  return GrantLocked(session, resource, mode);
}

LeaseGrant LeaseTable::GrantLocked(SessionId session, const Fid& resource, proto::LeaseMode mode) {
  for (uint64_t id : by_resource_[resource]) {
    LeaseGrant& grant = grants_[id].grant;
    if (grant.session != session || grant.revoking) continue;
    if (grant.mode == proto::LEASE_WRITE && mode == proto::LEASE_READ) continue;
    grant.mode = mode;
    return grant;
  }
  return AddLocked(session, resource, mode);
}

LeaseGrant LeaseTable::GrantAnother(SessionId session, const Fid& resource, proto::LeaseMode mode) {
  std::lock_guard lock(mutex_);
  return AddLocked(session, resource, mode);
}

LeaseGrant LeaseTable::AddLocked(SessionId session, const Fid& resource, proto::LeaseMode mode) {
  while (grants_.contains(next_id_)) ++next_id_;  // one that was restored
  uint64_t id = next_id_++;
  by_resource_[resource].push_back(id);
  by_session_[session].insert(id);
  grants_[id].grant = {id, resource, session, mode, false};
  return grants_[id].grant;
}

std::optional<LeaseGrant> LeaseTable::TryGrantRead(SessionId session, const Fid& resource, Duration now) {
  std::lock_guard lock(mutex_);
  if (!MayGrant(resource, proto::LEASE_READ, now) || !HasRoom(session)) return std::nullopt;
  for (const LeaseGrant& grant : HoldersLocked(resource)) {
    if (grant.mode != proto::LEASE_WRITE) continue;
    if (grant.session != session || grant.revoking) return std::nullopt;
    return grant;
  }
  return GrantLocked(session, resource, proto::LEASE_READ);
}

std::optional<LeaseGrant> LeaseTable::TryGrantWrite(SessionId session, const Fid& resource, Duration now,
                                                    bool changing) {
  std::lock_guard lock(mutex_);
  if (!MayGrantWrite(session, resource, now, changing)) return std::nullopt;
  return GrantLocked(session, resource, proto::LEASE_WRITE);
}

bool LeaseTable::MayGetWrite(SessionId changer, const Fid& resource, Duration now) {
  std::lock_guard lock(mutex_);
  return MayGrantWrite(changer, resource, now, /*changing=*/true);
}

bool LeaseTable::MayGrantWrite(SessionId session, const Fid& resource, Duration now, bool changing) {
  return MayGrant(resource, proto::LEASE_WRITE, now, changing ? session : 0) && HasRoom(session) &&
         !OthersHold(session, resource);
}

bool LeaseTable::OthersHold(SessionId than, const Fid& resource) const {
  return std::ranges::any_of(HoldersLocked(resource), [than](const LeaseGrant& grant) {
    return grant.session != than || grant.revoking;
  });
}

bool LeaseTable::HasRoom(SessionId session) const {
  auto held = by_session_.find(session);
  return held == by_session_.end() || held->second.size() < kMostOfSession;
}

bool LeaseTable::HasAmpleRoom(SessionId session) const {
  std::lock_guard lock(mutex_);
  auto held = by_session_.find(session);
  return held == by_session_.end() || held->second.size() < kMostOfSession - kSpare;
}

bool LeaseTable::MayGrant(const Fid& resource, proto::LeaseMode mode, Duration now, SessionId changer) {
  while (!quiet_.empty() && quiet_.front().first <= now) {
    auto it = blocked_.find(quiet_.front().second);
    if (it != blocked_.end() && !it->second.any(now)) blocked_.erase(it);
    quiet_.pop_front();
  }
  auto it = blocked_.find(resource);
  if (it == blocked_.end()) return true;
  const Blocked& blocked = it->second;
  const Duration until = mode == proto::LEASE_WRITE ? blocked.write_until : blocked.until;
  const bool own = changer != 0 && blocked.changer == changer && !blocked.mixed;
  return until <= now && (blocked.changes == 0 || own);
}

void LeaseTable::BeginChange(const Fid& resource, SessionId changer) {
  std::lock_guard lock(mutex_);
  Blocked& blocked = blocked_[resource];
  if (blocked.changes++ == 0) {
    blocked.changer = changer;
    blocked.mixed = false;
  }
  blocked.mixed |= blocked.changer != changer;
}

void LeaseTable::EndChange(const Fid& resource) {
  std::lock_guard lock(mutex_);
  auto it = blocked_.find(resource);
  if (--it->second.changes == 0 && it->second.write_until == Duration{0}) blocked_.erase(it);
}

// Times only rise, as the clock does.
void LeaseTable::GrantNoneUntil(const Fid& resource, proto::LeaseMode mode, Duration time) {
  std::lock_guard lock(mutex_);
  Blocked& blocked = blocked_[resource];
  if (mode == proto::LEASE_READ) blocked.until = time;
  blocked.write_until = time;
  quiet_.emplace_back(time, resource);
}

bool LeaseTable::Restore(SessionId session, const proto::Lease& lease) {
  const Fid resource = FromProto(lease.resource());
  std::lock_guard lock(mutex_);
  bool held = false;
  for (const LeaseGrant& grant : HoldersLocked(resource)) {
    if (grant.session == session && grant.id == lease.id()) held = true;
    if (grant.session != session && Conflict(grant.mode, lease.mode())) return false;
  }
  if (held) grants_.at(lease.id()).grant.mode = lease.mode();
  if (held) return true;
  if (grants_.contains(lease.id())) return false;
  by_resource_[resource].push_back(lease.id());
  by_session_[session].insert(lease.id());
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

bool LeaseTable::HasConflict(const Fid& resource, SessionId session, proto::LeaseMode mode) const {
  std::lock_guard lock(mutex_);
  auto it = by_resource_.find(resource);
  return it != by_resource_.end() && std::any_of(it->second.begin(), it->second.end(), [&](uint64_t id) {
           const LeaseGrant& grant = grants_.at(id).grant;
           return grant.session != session && Conflict(grant.mode, mode);
         });
}

std::vector<LeaseGrant> LeaseTable::ReadersBut(SessionId session) const {
  std::vector<LeaseGrant> readers;
  std::lock_guard lock(mutex_);
  for (const auto& [id, slot] : grants_) {
    if (slot.grant.session != session && slot.grant.mode == proto::LEASE_READ) readers.push_back(slot.grant);
  }
  return readers;
}

bool LeaseTable::HoldsWrite(SessionId session, const Fid& resource) const {
  return std::ranges::any_of(HoldersOf(resource), [session](const LeaseGrant& grant) {
    return grant.session == session && grant.mode == proto::LEASE_WRITE;
  });
}

uint64_t LeaseTable::GoodWrite(SessionId session, const Fid& resource) const {
  for (const LeaseGrant& grant : HoldersOf(resource)) {
    if (grant.session == session && grant.mode == proto::LEASE_WRITE && !grant.revoking) return grant.id;
  }
  return 0;
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
  auto session = by_session_.find(it->second.grant.session);
  session->second.erase(id);
  if (session->second.empty()) by_session_.erase(session);
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
void LeaseTable::EraseAll(SessionId session, Which which) {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    auto held = by_session_.find(session);
    if (held == by_session_.end()) return;
    std::vector<uint64_t> ids;
    for (uint64_t id : held->second) {
      if (which(grants_.at(id).grant)) ids.push_back(id);
    }
    std::sort(ids.begin(), ids.end());  // waiters go on in the same order in every run of a simulation
    for (uint64_t id : ids) Erase(id, &waiters);
  }
  SetAll(waiters);
}

void LeaseTable::EndUnnamed(SessionId session, const std::set<uint64_t>& named) {
  EraseAll(session, [&](const LeaseGrant& grant) { return !named.contains(grant.id); });
}

void LeaseTable::DropSession(SessionId session) {
  EraseAll(session, [](const LeaseGrant&) { return true; });
}

std::map<SessionId, uint64_t> LeaseTable::CountBySession() const {
  std::lock_guard lock(mutex_);
  std::map<SessionId, uint64_t> counts;
  for (const auto& [session, ids] : by_session_) counts[session] = ids.size();
  return counts;
}

std::vector<Fid> LeaseTable::WrittenBy(SessionId session) const {
  std::vector<Fid> written;
  std::lock_guard lock(mutex_);
  auto held = by_session_.find(session);
  if (held == by_session_.end()) return written;
  for (uint64_t id : held->second) {
    const LeaseGrant& grant = grants_.at(id).grant;
    if (grant.mode == proto::LEASE_WRITE) written.push_back(grant.resource);
  }
  std::sort(written.begin(), written.end());  // the same in every run of a simulation
  return written;
}

}  // namespace nacre::mds
