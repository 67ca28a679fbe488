#include "server/metadata/lease_index.h"

#include <algorithm>

namespace nacre::mds {

uint64_t LeaseIndex::Add(const Place& place) {
  std::lock_guard lock(mutex_);
  while (!places_.try_emplace(next_id_, place).second) ++next_id_;  // one that was restored
  by_session_[place.session].insert(next_id_);
  return next_id_++;
}

bool LeaseIndex::Restore(uint64_t id, const Place& place) {
  std::lock_guard lock(mutex_);
  if (!places_.try_emplace(id, place).second) return false;
  by_session_[place.session].insert(id);
  return true;
}

void LeaseIndex::Remove(uint64_t id) {
  std::lock_guard lock(mutex_);
  const auto place = places_.find(id);
  const auto session = by_session_.find(place->second.session);
  session->second.erase(id);
  if (session->second.empty()) by_session_.erase(session);
  places_.erase(place);
}

std::optional<LeaseIndex::Place> LeaseIndex::Find(uint64_t id) const {
  std::lock_guard lock(mutex_);
  const auto place = places_.find(id);
  if (place == places_.end()) return std::nullopt;
  return place->second;
}

size_t LeaseIndex::HeldBy(SessionId session) const {
  std::lock_guard lock(mutex_);
  const auto held = by_session_.find(session);
  return held == by_session_.end() ? 0 : held->second.size();
}

std::vector<uint64_t> LeaseIndex::IdsOf(SessionId session) const {
  std::vector<uint64_t> ids;
  {
    std::lock_guard lock(mutex_);
    if (const auto held = by_session_.find(session); held != by_session_.end())
      ids.assign(held->second.begin(), held->second.end());
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace nacre::mds
