// Which objects a member of a chain may have changed that the member before it has not: a change is made by
// the last member first, and those before it may end in between (server/object/chain.h). A new head asks the
// one behind it for these, and compares.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "common/ids.h"

namespace nacre::ost {

class InDoubt {
 public:
  // A change of the object has come from the member before this one, as call number `turn` of the epoch; what
  // the calls below `low_water` are about has been made there.
  void Note(uint64_t turn, uint64_t low_water, const ObjectId& object) {
    under_way_.erase(under_way_.begin(), under_way_.lower_bound(low_water));
    under_way_.insert_or_assign(turn, object);
  }
  // Another epoch begins, with numbers of its own.
  void BeginEpoch() {
    for (const auto& [turn, object] : under_way_) left_.insert(object);
    under_way_.clear();
  }
  void Clear() {
    under_way_.clear();
    left_.clear();
  }

  std::set<ObjectId> List() const {
    std::set<ObjectId> all = left_;
    for (const auto& [turn, object] : under_way_) all.insert(object);
    return all;
  }

 private:
  std::map<uint64_t, ObjectId> under_way_;  // by their turns
  std::set<ObjectId> left_;                 // by earlier epochs
};

}  // namespace nacre::ost
