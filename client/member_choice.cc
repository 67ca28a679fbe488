#include "client/member_choice.h"

#include <algorithm>

namespace nacre::client {
namespace {

uint64_t Mix(uint64_t x) {  // splitmix64's end
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t HashOf(const ObjectId& object) { return Mix(object.sequence * 0x9e3779b97f4a7c15 + object.stripe); }

}  // namespace

void MemberChoice::Set(const std::vector<std::string>& others) {
  std::vector<Member> next;
  for (const std::string& address : others) {
    const Member* known = Find(address);
    next.push_back(known != nullptr ? *known : Member{address});
  }
  others_ = std::move(next);
}

MemberChoice::Member* MemberChoice::Find(const std::string& address) {
  if (address.empty()) return &head_;
  auto found = std::ranges::find(others_, address, &Member::address);
  return found == others_.end() ? nullptr : &*found;
}

bool MemberChoice::MayBeAsked(const Member& member, Duration now) {
  return member.failures == 0 || (now >= member.not_before && member.reads == 0);
}

std::string MemberChoice::Begin(const Place& place, uint64_t bytes, Duration now) {
  Member* chosen = &head_;
  const uint64_t hash = HashOf(place.object);
  if (now >= changing_until_[hash % changing_until_.size()]) {
    const uint64_t turn = Mix(hash + place.offset / kStretch) % (others_.size() + 1);
    if (turn > 0 && MayBeAsked(others_[turn - 1], now)) chosen = &others_[turn - 1];
    Member* least = &head_;
    for (Member& other : others_) {
      if (MayBeAsked(other, now) && other.bytes < least->bytes) least = &other;
    }
    if (chosen->bytes > least->bytes + kSlack) chosen = least;
  }
  chosen->bytes += bytes;
  ++chosen->reads;
  return chosen->address;
}

void MemberChoice::End(const std::string& address, const Place& place, uint64_t bytes, Outcome outcome,
                       Duration now) {
  if (outcome == Outcome::kChanged)
    changing_until_[HashOf(place.object) % changing_until_.size()] = now + kChangingPause;
  Member* member = Find(address);
  if (member == nullptr) return;  // it has left meanwhile
  member->bytes -= std::min(member->bytes, bytes);
  member->reads -= std::min(member->reads, 1);  // it may have left, and come back
  if (outcome != Outcome::kFailed) {
    member->failures = 0;
    return;
  }
  const bool known = now < member->not_before;  // of reads that were under way together the first one counts
  if (known) return;
  member->not_before = now + std::min(kLongestPause, kFirstPause * (1 << std::min(member->failures, 5)));
  ++member->failures;
}

}  // namespace nacre::client
