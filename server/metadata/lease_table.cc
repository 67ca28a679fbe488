#include "server/metadata/lease_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "rpc/convert.h"

namespace nacre::mds {
namespace {

// A client that uses more directories than this works without leases in the rest. Calls at the same time may
// each grant it one more.
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

// --- what a shard knows ---

template <typename Which>
LeaseTable::Slot* LeaseTable::FindOwn(Shard& shard, SessionId session, const Fid& resource, Which which) {
  const auto held = shard.held.find(resource);
  if (held == shard.held.end()) return nullptr;
  auto& all = held->second.grants;
  for (auto one = all.lower_bound({session, 0}); one != all.end() && one->first.first == session; ++one) {
    if (which(one->second)) return &one->second;
  }
  return nullptr;
}

LeaseTable::Slot* LeaseTable::FindSlot(Shard& shard, uint64_t id, const LeaseIndex::Place& place) {
  const auto held = shard.held.find(place.resource);
  if (held == shard.held.end()) return nullptr;
  const auto slot = held->second.grants.find({place.session, id});
  return slot == held->second.grants.end() ? nullptr : &slot->second;
}

// The lease may end between the two looks.
template <typename Act>
bool LeaseTable::WithSlot(uint64_t id, Act act) const {
  const auto place = index_.Find(id);
  if (!place) return false;
  Shard& shard = ShardOf(place->resource);
  std::lock_guard lock(shard.mutex);
  Slot* const slot = FindSlot(shard, id, *place);
  if (slot != nullptr) act(shard, slot);
  return slot != nullptr;
}

// Grants of other sessions.
bool LeaseTable::HasConflict(Shard& shard, const Fid& resource, SessionId session, proto::LeaseMode mode) {
  const auto held = shard.held.find(resource);
  if (held == shard.held.end()) return false;
  const Holders& holders = held->second;
  if (mode == proto::LEASE_WRITE) {
    return holders.grants.begin()->first.first != session || holders.grants.rbegin()->first.first != session;
  }
  const size_t alike = mode == proto::LEASE_SHARED ? holders.sharers : holders.readers;
  return alike < holders.grants.size() && std::ranges::any_of(holders.grants, [&](const auto& one) {
           return one.first.first != session && Conflict(one.second.grant.mode, mode);
         });
}

bool LeaseTable::OthersHold(Shard& shard, SessionId than, const Fid& resource) {
  return HasConflict(shard, resource, than, proto::LEASE_WRITE) ||
         FindOwn(shard, than, resource, [](const Slot& own) { return own.grant.revoking; }) != nullptr;
}

bool LeaseTable::MayGrant(Shard& shard, const Fid& resource, proto::LeaseMode mode, Duration now,
                          SessionId changer) {
  while (!shard.quiet.empty() && shard.quiet.front().first <= now) {
    auto it = shard.blocked.find(shard.quiet.front().second);
    if (it != shard.blocked.end() && it->second.write_until <= now) {
      // A change that is under way keeps the entry, and the end of it finds nothing else to keep it for.
      it->second.until = it->second.write_until = Duration{0};
      if (it->second.changes == 0) shard.blocked.erase(it);
    }
    shard.quiet.pop_front();
  }
  auto it = shard.blocked.find(resource);
  if (it == shard.blocked.end()) return true;
  const Blocked& blocked = it->second;
  const Duration until = mode == proto::LEASE_WRITE ? blocked.write_until : blocked.until;
  const bool own = changer != 0 && blocked.changer == changer && !blocked.mixed;
  return until <= now && (blocked.changes == 0 || own);
}

bool LeaseTable::MayGrantWrite(Shard& shard, SessionId session, const Fid& resource, Duration now,
                               bool changing) {
  return MayGrant(shard, resource, proto::LEASE_WRITE, now, changing ? session : 0) &&
         !OthersHold(shard, session, resource) && index_.HeldBy(session) < kMostOfSession;
}

// --- granting ---

LeaseGrant LeaseTable::Grant(SessionId session, const Fid& resource, proto::LeaseMode mode) {
  Shard& shard = ShardOf(resource);
  std::lock_guard lock(shard.mutex);
  return Grant(shard, session, resource, mode);
}

LeaseGrant LeaseTable::Grant(Shard& shard, SessionId session, const Fid& resource, proto::LeaseMode mode) {
  Slot* const own = FindOwn(shard, session, resource, [mode](const Slot& one) {
    return !one.grant.revoking && !(Writes(one.grant.mode) && mode == proto::LEASE_READ);
  });
  if (own == nullptr) return Add(shard, session, resource, mode);
  SetMode(shard, &own->grant, mode);
  return own->grant;
}

LeaseGrant LeaseTable::Add(Shard& shard, SessionId session, const Fid& resource, proto::LeaseMode mode,
                           bool late) {
  const LeaseGrant grant{index_.Add({resource, session}), resource, session, mode, false, late, Now(), {}};
  Enter(shard, grant);
  return grant;
}

void LeaseTable::Enter(Shard& shard, const LeaseGrant& grant) {
  Holders& holders = shard.held[grant.resource];
  holders.Count(grant.mode, 1);
  holders.grants[{grant.session, grant.id}].grant = grant;
}

void LeaseTable::SetMode(Shard& shard, LeaseGrant* grant, proto::LeaseMode mode) {
  Holders& holders = shard.held.at(grant->resource);
  holders.Count(grant->mode, -1);
  holders.Count(mode, 1);
  grant->mode = mode;
}

std::optional<LeaseGrant> LeaseTable::TryGrantFileRead(SessionId session, const Fid& file) {
  Shard& shard = ShardOf(file);
  std::lock_guard lock(shard.mutex);
  if (HasConflict(shard, file, session, proto::LEASE_READ)) return std::nullopt;
  return Grant(shard, session, file, proto::LEASE_READ);
}

LeaseGrant LeaseTable::GrantLate(SessionId session, const Fid& file) {
  Shard& shard = ShardOf(file);
  std::lock_guard lock(shard.mutex);
  return Add(shard, session, file, proto::LEASE_WRITE, /*late=*/true);
}

std::optional<LeaseGrant> LeaseTable::TryGrantRead(SessionId session, const Fid& resource, Duration now) {
  Shard& shard = ShardOf(resource);
  std::lock_guard lock(shard.mutex);
  if (!MayGrant(shard, resource, proto::LEASE_READ, now) ||
      HasConflict(shard, resource, session, proto::LEASE_READ) || index_.HeldBy(session) >= kMostOfSession) {
    return std::nullopt;
  }
  const Slot* const own =
      FindOwn(shard, session, resource, [](const Slot& one) { return one.grant.mode == proto::LEASE_WRITE; });
  if (own == nullptr) return Grant(shard, session, resource, proto::LEASE_READ);
  if (own->grant.revoking) return std::nullopt;
  return own->grant;
}

std::optional<LeaseGrant> LeaseTable::TryGrantWrite(SessionId session, const Fid& resource, Duration now,
                                                    bool changing) {
  Shard& shard = ShardOf(resource);
  std::lock_guard lock(shard.mutex);
  if (!MayGrantWrite(shard, session, resource, now, changing)) return std::nullopt;
  return Grant(shard, session, resource, proto::LEASE_WRITE);
}

std::optional<LeaseGrant> LeaseTable::TryGrantFileWrite(SessionId session, const Fid& file, Duration now) {
  Shard& shard = ShardOf(file);
  std::lock_guard lock(shard.mutex);
  if (!MayGrantWrite(shard, session, file, now, /*changing=*/true)) return std::nullopt;
  const Slot* const own =
      FindOwn(shard, session, file, [](const Slot& one) { return one.grant.late || Writes(one.grant.mode); });
  if (own == nullptr) return Add(shard, session, file, proto::LEASE_WRITE);
  if (own->grant.late) return std::nullopt;
  return own->grant;
}

std::optional<LeaseGrant> LeaseTable::TryGrantShared(SessionId session, const Fid& file) {
  Shard& shard = ShardOf(file);
  std::lock_guard lock(shard.mutex);
  const auto blocked = shard.blocked.find(file);
  if (blocked != shard.blocked.end() && blocked->second.changes > blocked->second.beside) return std::nullopt;
  if (HasConflict(shard, file, session, proto::LEASE_SHARED) || index_.HeldBy(session) >= kMostOfSession)
    return std::nullopt;
  const Slot* const own = FindOwn(shard, session, file, [](const Slot& one) {
    return one.grant.revoking || one.grant.late || Writes(one.grant.mode);
  });
  if (own == nullptr) return Add(shard, session, file, proto::LEASE_SHARED);
  if (own->grant.revoking || own->grant.late) return std::nullopt;
  return own->grant;
}

bool LeaseTable::MayGetWrite(SessionId changer, const Fid& resource, Duration now) {
  Shard& shard = ShardOf(resource);
  std::lock_guard lock(shard.mutex);
  return MayGrantWrite(shard, changer, resource, now, /*changing=*/true);
}

bool LeaseTable::HasAmpleRoom(SessionId session) const {
  return index_.HeldBy(session) < kMostOfSession - kSpare;
}

void LeaseTable::BeginChange(const Fid& resource, SessionId changer, bool beside) {
  Shard& shard = ShardOf(resource);
  std::lock_guard lock(shard.mutex);
  Blocked& blocked = shard.blocked[resource];
  blocked.beside += beside ? 1 : 0;
  if (blocked.changes++ == 0) {
    blocked.changer = changer;
    blocked.mixed = false;
  }
  blocked.mixed |= blocked.changer != changer;
}

void LeaseTable::EndChange(const Fid& resource, bool beside) {
  Shard& shard = ShardOf(resource);
  std::lock_guard lock(shard.mutex);
  auto it = shard.blocked.find(resource);
  it->second.beside -= beside ? 1 : 0;
  if (--it->second.changes == 0 && it->second.write_until == Duration{0}) shard.blocked.erase(it);
}

// Times of a resource only rise.
void LeaseTable::GrantNoneUntil(const Fid& resource, proto::LeaseMode mode, Duration time) {
  Shard& shard = ShardOf(resource);
  std::lock_guard lock(shard.mutex);
  Blocked& blocked = shard.blocked[resource];
  if (mode == proto::LEASE_READ) blocked.until = time;
  blocked.write_until = time;
  shard.quiet.emplace_back(time, resource);
}

bool LeaseTable::Restore(SessionId session, const proto::Lease& lease) {
  const LeaseIndex::Place place{FromProto(lease.resource()), session};
  Shard& shard = ShardOf(place.resource);
  std::lock_guard lock(shard.mutex);
  if (HasConflict(shard, place.resource, session, lease.mode())) return false;
  if (Slot* const held = FindSlot(shard, lease.id(), place)) {
    SetMode(shard, &held->grant, lease.mode());
    return true;
  }
  if (!index_.Restore(lease.id(), place)) return false;
  Enter(shard, {lease.id(), place.resource, session, lease.mode(), false, lease.late(), Now(), {}});
  return true;
}

// --- looking ---

template <typename Which>
std::vector<LeaseGrant> LeaseTable::GrantsOf(const Fid& resource, Which which) const {
  std::vector<LeaseGrant> grants;
  Shard& shard = ShardOf(resource);
  std::lock_guard lock(shard.mutex);
  const auto held = shard.held.find(resource);
  if (held == shard.held.end()) return grants;
  for (const auto& [key, slot] : held->second.grants) {
    if (which(slot.grant)) grants.push_back(slot.grant);
  }
  return grants;
}

std::vector<LeaseGrant> LeaseTable::HoldersOf(const Fid& resource) const {
  return GrantsOf(resource, [](const LeaseGrant&) { return true; });
}

std::vector<LeaseGrant> LeaseTable::Conflicts(const Fid& resource, SessionId session,
                                              proto::LeaseMode mode) const {
  return GrantsOf(resource, [&](const LeaseGrant& grant) {
    return grant.session != session && Conflict(grant.mode, mode);
  });
}

bool LeaseTable::HasConflict(const Fid& resource, SessionId session, proto::LeaseMode mode) const {
  Shard& shard = ShardOf(resource);
  std::lock_guard lock(shard.mutex);
  return HasConflict(shard, resource, session, mode);
}

template <typename Act>
void LeaseTable::ForEach(Act act) const {
  for (Shard& shard : *shards_) {
    std::lock_guard lock(shard.mutex);
    for (const auto& [resource, holders] : shard.held) {
      for (const auto& [key, slot] : holders.grants) act(slot.grant);
    }
  }
}

// In the same order in every run of a simulation.
std::vector<LeaseGrant> LeaseTable::ReadersBut(SessionId session) const {
  std::vector<LeaseGrant> readers;
  ForEach([&](const LeaseGrant& grant) {
    if (grant.session != session && grant.mode == proto::LEASE_READ) readers.push_back(grant);
  });
  std::ranges::sort(readers, {}, &LeaseGrant::id);
  return readers;
}

template <typename Which>
std::optional<LeaseGrant> LeaseTable::OwnOf(SessionId session, const Fid& resource, Which which) const {
  Shard& shard = ShardOf(resource);
  std::lock_guard lock(shard.mutex);
  const Slot* const own =
      FindOwn(shard, session, resource, [&](const Slot& one) { return which(one.grant); });
  if (own == nullptr) return std::nullopt;
  return own->grant;
}

bool LeaseTable::HoldsWrite(SessionId session, const Fid& resource) const {
  return OwnOf(session, resource, [](const LeaseGrant& own) { return Writes(own.mode); }).has_value();
}

bool LeaseTable::MayHoldBack(SessionId session, const Fid& resource) const {
  return OwnOf(session, resource,
               [](const LeaseGrant& own) { return own.mode == proto::LEASE_WRITE && !own.late; })
      .has_value();
}

uint64_t LeaseTable::GoodWrite(SessionId session, const Fid& resource) const {
  const auto good = OwnOf(session, resource, [](const LeaseGrant& own) {
    return own.mode == proto::LEASE_WRITE && !own.revoking && !own.late;
  });
  return good ? good->id : 0;
}

std::map<SessionId, LeaseTable::Counts> LeaseTable::CountBySession() const {
  std::map<SessionId, Counts> counts;
  ForEach([&](const LeaseGrant& grant) {
    Counts& of = counts[grant.session];
    ++of.held;
    if (grant.mode == proto::LEASE_WRITE) ++of.writes;
    if (grant.revoking) ++of.asked_back;
  });
  return counts;
}

LeaseTable::Refused LeaseTable::WhyNot(const Fid& resource) const {
  Shard& shard = ShardOf(resource);
  std::lock_guard lock(shard.mutex);
  auto it = shard.blocked.find(resource);
  if (it == shard.blocked.end()) return {};
  return {it->second.until, it->second.write_until, it->second.changes};
}

// In the same order in every run of a simulation.
std::vector<Fid> LeaseTable::WrittenBy(SessionId session) const {
  std::vector<Fid> written;
  for (const uint64_t id : index_.IdsOf(session)) {
    WithSlot(id, [&](Shard&, const Slot* slot) {
      if (slot->grant.mode == proto::LEASE_WRITE) written.push_back(slot->grant.resource);
    });
  }
  std::sort(written.begin(), written.end());
  return written;
}

// --- ending ---

std::optional<LeaseGrant> LeaseTable::Pin(SessionId session, const Fid& resource) {
  Shard& shard = ShardOf(resource);
  std::lock_guard lock(shard.mutex);
  Slot* const own = FindOwn(shard, session, resource,
                            [](const Slot& one) { return Writes(one.grant.mode) && !one.ending; });
  if (own == nullptr) return std::nullopt;
  ++own->pins;
  return own->grant;
}

void LeaseTable::Unpin(const LeaseGrant& pinned) {
  Waiters waiters;
  {
    Shard& shard = ShardOf(pinned.resource);
    std::lock_guard lock(shard.mutex);
    Slot* const slot = FindSlot(shard, pinned.id, {pinned.resource, pinned.session});
    if (--slot->pins == 0 && slot->ending) Erase(shard, slot, &waiters);
  }
  SetAll(waiters);
}

bool LeaseTable::BeginRevoke(uint64_t id) {
  return WithSlot(id, [&](Shard&, Slot* slot) {
    if (!std::exchange(slot->grant.revoking, true)) slot->grant.asked_back = Now();
  });
}

OneShot<Unit> LeaseTable::Released(uint64_t id) {
  OneShot<Unit> released;
  const bool held = WithSlot(id, [&](Shard&, Slot* slot) { slot->waiters.push_back(released); });
  if (!held) released.Set({});
  return released;
}

void LeaseTable::End(Shard& shard, Slot* slot, Waiters* waiters) {
  if (slot->pins == 0) return Erase(shard, slot, waiters);
  slot->ending = slot->grant.revoking = true;
}

void LeaseTable::Erase(Shard& shard, Slot* slot, Waiters* waiters) {
  std::ranges::move(slot->waiters, std::back_inserter(*waiters));
  const LeaseGrant grant = slot->grant;
  const auto held = shard.held.find(grant.resource);
  held->second.Count(grant.mode, -1);
  held->second.grants.erase({grant.session, grant.id});
  if (held->second.grants.empty()) shard.held.erase(held);
  index_.Remove(grant.id);
}

void LeaseTable::Release(SessionId session, uint64_t id) {
  Waiters waiters;
  WithSlot(id, [&](Shard& shard, Slot* slot) {
    if (slot->grant.session == session) End(shard, slot, &waiters);
  });
  SetAll(waiters);
}

// A session that is about to change the resource (BeginChange) would have to ask for READ as well.
std::optional<LeaseGrant> LeaseTable::TryKeepRead(SessionId session, uint64_t id, Duration now) {
  Waiters waiters;
  std::optional<LeaseGrant> kept;
  WithSlot(id, [&](Shard& shard, Slot* slot) {
    const LeaseGrant grant = slot->grant;
    if (grant.session != session || grant.mode != proto::LEASE_WRITE || grant.late || slot->pins > 0) return;
    if (!MayGrant(shard, grant.resource, proto::LEASE_READ, now)) return;
    Erase(shard, slot, &waiters);
    kept = Add(shard, session, grant.resource, proto::LEASE_READ);
  });
  SetAll(waiters);
  return kept;
}

// Those who wait go on in the same order in every run of a simulation.
template <typename Which>
void LeaseTable::EndAll(SessionId session, Which which) {
  Waiters waiters;
  for (const uint64_t id : index_.IdsOf(session)) {
    WithSlot(id, [&](Shard& shard, Slot* slot) {
      if (which(slot->grant)) End(shard, slot, &waiters);
    });
  }
  SetAll(waiters);
}

void LeaseTable::EndUnnamed(SessionId session, const std::set<uint64_t>& named) {
  EndAll(session, [&](const LeaseGrant& grant) { return !named.contains(grant.id); });
}

void LeaseTable::DropSession(SessionId session) {
  EndAll(session, [](const LeaseGrant&) { return true; });
}

}  // namespace nacre::mds
