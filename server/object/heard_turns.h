// Which calls of the member before this one are over there, so that a copy of one that comes late is known:
// the network may deliver what was sent again, and answered, once more, behind calls that have followed.
//
// The sender numbers its calls in an epoch (turns) and says with each which of the lower ones it still waits
// for. The lowest of them alone would not do: while one call takes long, nothing behind it would count as
// over.
//
// Not thread-safe.
#pragma once

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <set>

#include "common/status.h"
#include "proto/object.pb.h"

namespace nacre::ost {

class HeardTurns {
 public:
  // A call has come that is not over. EPROTO: it contradicts itself.
  Status Hear(const proto::ObjectRequest& call) {
    const uint64_t turn = call.chain_turn();
    if (call.chain_low_water() > turn) {
      return ErrnoError(EPROTO, absl::StrFormat("request %d of a member of the chain has the low water %d, "
                                                "which lies above itself",
                                                turn, call.chain_low_water()));
    }
    low_water_ = std::max(low_water_, call.chain_low_water());
    under_way_.erase(under_way_.begin(), under_way_.lower_bound(low_water_));
    names_all_ = call.has_chain_under_way();
    if (names_all_) {
      const auto& named = call.chain_under_way().turns();
      const std::set<uint64_t> waited_for(named.begin(), named.end());
      auto is_over = [&](uint64_t one) { return one < turn && !waited_for.contains(one); };
      std::erase_if(under_way_, is_over);
      under_way_.insert(waited_for.upper_bound(newest_), waited_for.lower_bound(turn));
    }
    if (turn > newest_) under_way_.insert(newest_ = turn);
    return OkStatus();
  }

  bool IsOver(uint64_t turn) const {
    if (turn == 0) return false;  // it has none
    return turn < low_water_ || (names_all_ && turn <= newest_ && !under_way_.contains(turn));
  }
  uint64_t low_water() const { return low_water_; }

 private:
  uint64_t newest_ = 0;           // of those that were heard
  uint64_t low_water_ = 0;        // all below are over
  bool names_all_ = false;        // the sender; false: it is of a version that says the lowest alone
  std::set<uint64_t> under_way_;  // not above newest_
};

}  // namespace nacre::ost
