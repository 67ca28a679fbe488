#include "server/metadata/lease_table.h"

#include <algorithm>
#include <utility>

#include "rpc/convert.h"

namespace nacre::mds {
namespace {

// A client that uses more directories than this works without leases in the rest.
constexpr size_t kMostOfSession = 1 << 16;
constexpr size_t kSpare = 1 << 12;  // more than a client makes directories ahead of their answers

bool Conflict(proto::LeaseMode a, proto::LeaseMode b) {
  return a != b || a == proto::LEASE_WRITE;  // several may read, and several may share
}

// Whether its holder may have changed what the MDS has not been told of.
bool Writes(proto::LeaseMode mode) { return mode == proto::LEASE_WRITE || mode == proto::LEASE_SHARED; }

void SetAll(const std::vector<OneShot<Unit>>& waiters) {
  for (const auto& waiter : waiters) waiter.Set({});
}

}  // namespace

proto::Lease LeaseGrant::ToProto() const {
  proto::Lease lease;
  *lease.mutable_resource() = nacre::ToProto(resource);
  lease.set_mode(mode);
  lease.set_id(id);
  lease.set_late(late);
  return lease;
}

LeaseGrant LeaseTable::Grant(SessionId session, const Fid& resource, proto::LeaseMode mode) {
  std::lock_guard lock(mutex_);
  return GrantLocked(session, resource, mode);
}

LeaseGrant LeaseTable::GrantLocked(SessionId session, const Fid& resource, proto::LeaseMode mode) {
  for (const LeaseGrant& own : OwnLocked(session, resource)) {
    if (own.revoking || (Writes(own.mode) && mode == proto::LEASE_READ)) continue;
    LeaseGrant& grant = grants_.at(own.id).grant;
    SetMode(&grant, mode);
    return grant;
  }
  return AddLocked(session, resource, mode);
}

std::optional<LeaseGrant> LeaseTable::TryGrantFileRead(SessionId session, const Fid& file) {
  std::lock_guard lock(mutex_);
  if (ConflictsLocked(file, session, proto::LEASE_READ)) return std::nullopt;
  return GrantLocked(session, file, proto::LEASE_READ);
}

LeaseGrant LeaseTable::GrantLate(SessionId session, const Fid& file) {
  std::lock_guard lock(mutex_);
  return AddLocked(session, file, proto::LEASE_WRITE, /*late=*/true);
}

LeaseGrant LeaseTable::AddLocked(SessionId session, const Fid& resource, proto::LeaseMode mode, bool late) {
  while (grants_.contains(next_id_)) ++next_id_;  // one that was restored
  return Enter({next_id_++, resource, session, mode, false, late, Now(), {}});
}

LeaseGrant LeaseTable::Enter(const LeaseGrant& grant) {
  Holders& holders = by_resource_[grant.resource];
  holders.grants.emplace(grant.session, grant.id);
  holders.Count(grant.mode, 1);
  by_session_[grant.session].insert(grant.id);
  return grants_[grant.id].grant = grant;
}

void LeaseTable::SetMode(LeaseGrant* grant, proto::LeaseMode mode) {
  Holders& holders = by_resource_.at(grant->resource);
  holders.Count(grant->mode, -1);
  holders.Count(mode, 1);
  grant->mode = mode;
}

std::optional<LeaseGrant> LeaseTable::TryGrantRead(SessionId session, const Fid& resource, Duration now) {
  std::lock_guard lock(mutex_);
  if (!MayGrant(resource, proto::LEASE_READ, now) || HeldBy(session) >= kMostOfSession) return std::nullopt;
  if (ConflictsLocked(resource, session, proto::LEASE_READ)) return std::nullopt;
  for (const LeaseGrant& own : OwnLocked(session, resource)) {
    if (own.mode != proto::LEASE_WRITE) continue;
    if (own.revoking) return std::nullopt;
    return own;
  }
  return GrantLocked(session, resource, proto::LEASE_READ);
}

std::optional<LeaseGrant> LeaseTable::TryGrantWrite(SessionId session, const Fid& resource, Duration now,
                                                    bool changing) {
  std::lock_guard lock(mutex_);
  if (!MayGrantWrite(session, resource, now, changing)) return std::nullopt;
  return GrantLocked(session, resource, proto::LEASE_WRITE);
}

std::optional<LeaseGrant> LeaseTable::TryGrantFileWrite(SessionId session, const Fid& file, Duration now) {
  std::lock_guard lock(mutex_);
  if (!MayGrantWrite(session, file, now, /*changing=*/true)) return std::nullopt;
  for (const LeaseGrant& own : OwnLocked(session, file)) {
    if (own.late) return std::nullopt;
    if (Writes(own.mode)) return own;
  }
  return AddLocked(session, file, proto::LEASE_WRITE);
}

std::optional<LeaseGrant> LeaseTable::TryGrantShared(SessionId session, const Fid& file) {
  std::lock_guard lock(mutex_);
  const auto blocked = blocked_.find(file);
  if (blocked != blocked_.end() && blocked->second.changes > blocked->second.beside) return std::nullopt;
  if (HeldBy(session) >= kMostOfSession || ConflictsLocked(file, session, proto::LEASE_SHARED))
    return std::nullopt;
  for (const LeaseGrant& own : OwnLocked(session, file)) {
    if (own.revoking || own.late) return std::nullopt;
    if (Writes(own.mode)) return own;
  }
  return AddLocked(session, file, proto::LEASE_SHARED);
}

bool LeaseTable::MayGetWrite(SessionId changer, const Fid& resource, Duration now) {
  std::lock_guard lock(mutex_);
  return MayGrantWrite(changer, resource, now, /*changing=*/true);
}

bool LeaseTable::MayGrantWrite(SessionId session, const Fid& resource, Duration now, bool changing) {
  return MayGrant(resource, proto::LEASE_WRITE, now, changing ? session : 0) &&
         HeldBy(session) < kMostOfSession && !OthersHold(session, resource);
}

bool LeaseTable::OthersHold(SessionId than, const Fid& resource) const {
  return ConflictsLocked(resource, than, proto::LEASE_WRITE) ||
         std::ranges::any_of(OwnLocked(than, resource), &LeaseGrant::revoking);
}

// mutex_ is held.
size_t LeaseTable::HeldBy(SessionId session) const {
  auto held = by_session_.find(session);
  return held == by_session_.end() ? 0 : held->second.size();
}

bool LeaseTable::HasAmpleRoom(SessionId session) const {
  std::lock_guard lock(mutex_);
  return HeldBy(session) < kMostOfSession - kSpare;
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

void LeaseTable::BeginChange(const Fid& resource, SessionId changer, bool beside) {
  std::lock_guard lock(mutex_);
  Blocked& blocked = blocked_[resource];
  blocked.beside += beside ? 1 : 0;
  if (blocked.changes++ == 0) {
    blocked.changer = changer;
    blocked.mixed = false;
  }
  blocked.mixed |= blocked.changer != changer;
}

void LeaseTable::EndChange(const Fid& resource, bool beside) {
  std::lock_guard lock(mutex_);
  auto it = blocked_.find(resource);
  it->second.beside -= beside ? 1 : 0;
  if (--it->second.changes == 0 && it->second.write_until == Duration{0}) blocked_.erase(it);
}

// Times of a resource only rise.
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
  if (ConflictsLocked(resource, session, lease.mode())) return false;
  auto held = grants_.find(lease.id());
  if (held == grants_.end()) {
    Enter({lease.id(), resource, session, lease.mode(), false, lease.late(), Now(), {}});
    return true;
  }
  LeaseGrant& grant = held->second.grant;
  if (grant.session != session || grant.resource != resource) return false;
  SetMode(&grant, lease.mode());
  return true;
}

std::vector<LeaseGrant> LeaseTable::HoldersOf(const Fid& resource) const {
  std::vector<LeaseGrant> holders;
  std::lock_guard lock(mutex_);
  auto it = by_resource_.find(resource);
  if (it == by_resource_.end()) return holders;
  for (const auto& [session, id] : it->second.grants) holders.push_back(grants_.at(id).grant);
  return holders;
}

std::vector<LeaseGrant> LeaseTable::OwnLocked(SessionId session, const Fid& resource) const {
  std::vector<LeaseGrant> own;
  auto it = by_resource_.find(resource);
  if (it == by_resource_.end()) return own;
  const auto& all = it->second.grants;
  for (auto one = all.lower_bound({session, 0}); one != all.end() && one->first == session; ++one)
    own.push_back(grants_.at(one->second).grant);
  return own;
}

// Grants of other sessions.
bool LeaseTable::ConflictsLocked(const Fid& resource, SessionId session, proto::LeaseMode mode) const {
  auto it = by_resource_.find(resource);
  if (it == by_resource_.end()) return false;
  const Holders& holders = it->second;
  if (mode == proto::LEASE_WRITE)
    return holders.grants.begin()->first != session || holders.grants.rbegin()->first != session;
  const size_t alike = mode == proto::LEASE_SHARED ? holders.sharers : holders.readers;
  return alike < holders.grants.size() && std::ranges::any_of(holders.grants, [&](const auto& held) {
           return held.first != session && Conflict(grants_.at(held.second).grant.mode, mode);
         });
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
  return ConflictsLocked(resource, session, mode);
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
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(OwnLocked(session, resource),
                             [](const LeaseGrant& grant) { return Writes(grant.mode); });
}

bool LeaseTable::MayHoldBack(SessionId session, const Fid& resource) const {
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(OwnLocked(session, resource), [](const LeaseGrant& grant) {
    return grant.mode == proto::LEASE_WRITE && !grant.late;
  });
}

uint64_t LeaseTable::GoodWrite(SessionId session, const Fid& resource) const {
  std::lock_guard lock(mutex_);
  for (const LeaseGrant& own : OwnLocked(session, resource)) {
    if (own.mode == proto::LEASE_WRITE && !own.revoking && !own.late) return own.id;
  }
  return 0;
}

uint64_t LeaseTable::Pin(SessionId session, const Fid& resource) {
  std::lock_guard lock(mutex_);
  for (const LeaseGrant& own : OwnLocked(session, resource)) {
    Slot& slot = grants_.at(own.id);
    if (!Writes(own.mode) || slot.ending) continue;
    ++slot.pins;
    return own.id;
  }
  return 0;
}

void LeaseTable::Unpin(uint64_t id) {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    Slot& slot = grants_.at(id);
    if (--slot.pins == 0 && slot.ending) Erase(id, &waiters);
  }
  SetAll(waiters);
}

bool LeaseTable::BeginRevoke(uint64_t id) {
  std::lock_guard lock(mutex_);
  auto it = grants_.find(id);
  if (it == grants_.end()) return false;
  LeaseGrant& grant = it->second.grant;
  if (!std::exchange(grant.revoking, true)) grant.asked_back = Now();
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

void LeaseTable::End(uint64_t id, std::vector<OneShot<Unit>>* waiters) {
  Slot& slot = grants_.at(id);
  if (slot.pins == 0) return Erase(id, waiters);
  slot.ending = slot.grant.revoking = true;
}

void LeaseTable::Erase(uint64_t id, std::vector<OneShot<Unit>>* waiters) {
  auto it = grants_.find(id);
  const LeaseGrant& grant = it->second.grant;
  auto place = by_resource_.find(grant.resource);
  place->second.grants.erase({grant.session, id});
  place->second.Count(grant.mode, -1);
  if (place->second.grants.empty()) by_resource_.erase(place);
  auto session = by_session_.find(grant.session);
  session->second.erase(id);
  if (session->second.empty()) by_session_.erase(session);
  waiters->insert(waiters->end(), it->second.waiters.begin(), it->second.waiters.end());
  grants_.erase(it);
}

void LeaseTable::Release(SessionId session, uint64_t id) {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    auto it = grants_.find(id);
    if (it == grants_.end() || it->second.grant.session != session) return;
    End(id, &waiters);
  }
  SetAll(waiters);
}

// Whoever is about to change the resource (BeginChange) would have to ask for READ as well.
std::optional<LeaseGrant> LeaseTable::TryKeepRead(SessionId session, uint64_t id, Duration now) {
  std::vector<OneShot<Unit>> waiters;
  std::optional<LeaseGrant> kept;
  {
    std::lock_guard lock(mutex_);
    const auto it = grants_.find(id);
    if (it == grants_.end() || it->second.pins > 0) return std::nullopt;
    const LeaseGrant grant = it->second.grant;
    if (grant.session != session || grant.mode != proto::LEASE_WRITE || grant.late) return std::nullopt;
    if (!MayGrant(grant.resource, proto::LEASE_READ, now)) return std::nullopt;
    Erase(id, &waiters);
    kept = AddLocked(session, grant.resource, proto::LEASE_READ);
  }
  SetAll(waiters);
  return kept;
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
    for (uint64_t id : ids) End(id, &waiters);
  }
  SetAll(waiters);
}

void LeaseTable::EndUnnamed(SessionId session, const std::set<uint64_t>& named) {
  EraseAll(session, [&](const LeaseGrant& grant) { return !named.contains(grant.id); });
}

void LeaseTable::DropSession(SessionId session) {
  EraseAll(session, [](const LeaseGrant&) { return true; });
}

std::map<SessionId, LeaseTable::Counts> LeaseTable::CountBySession() const {
  std::lock_guard lock(mutex_);
  std::map<SessionId, Counts> counts;
  for (const auto& [id, slot] : grants_) {
    Counts& of = counts[slot.grant.session];
    ++of.held;
    if (slot.grant.mode == proto::LEASE_WRITE) ++of.writes;
    if (slot.grant.revoking) ++of.asked_back;
  }
  return counts;
}

LeaseTable::Refused LeaseTable::WhyNot(const Fid& resource) const {
  std::lock_guard lock(mutex_);
  auto it = blocked_.find(resource);
  if (it == blocked_.end()) return {};
  return {it->second.until, it->second.write_until, it->second.changes};
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
