// Chooses which member of an OST a read is sent to: the head, or another one that is in sync.
//
// Reads of what lies together in an object go to the same member each time, for that one has it in its cache,
// and the parts of objects are spread over all members alike. One that has much more to do for this client
// than another is passed over. One that has failed is not asked for a while, which grows with each time in a
// row; then one read at a time finds out whether it is well again. Of an object whose answer did not count,
// for it was being changed, the head alone is asked for a moment.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"

namespace nacre::client {

class MemberChoice {
 public:
  static constexpr uint64_t kStretch = 4 << 20;  // of an object, that lies together
  static constexpr uint64_t kSlack = 8 << 20;    // bytes under way, more than which is much more
  static constexpr Duration kFirstPause = std::chrono::seconds(2);
  static constexpr Duration kLongestPause = std::chrono::seconds(60);
  static constexpr Duration kChangingPause = std::chrono::seconds(1);

  struct Place {
    ObjectId object;
    uint64_t offset = 0;
  };
  enum class Outcome {
    kAnswered,
    kChanged,  // the member's answer did not count: its object is not the head's just now
    kFailed,
  };

  // The addresses of the members in sync beside the head. The figures of those that stay are kept.
  void Set(const std::vector<std::string>& others);
  bool empty() const { return others_.empty(); }  // there is only the head

  // Where a read of so many bytes goes: an address of Set, or the head (empty). End when it is over.
  std::string Begin(const Place& place, uint64_t bytes, Duration now);
  void End(const std::string& member, const Place& place, uint64_t bytes, Outcome outcome, Duration now);

 private:
  struct Member {
    std::string address;  // empty: the head
    uint64_t bytes = 0;   // under way
    int reads = 0;        // likewise
    int failures = 0;     // in a row
    Duration not_before{0};
  };

  static bool MayBeAsked(const Member& member, Duration now);
  Member* Find(const std::string& address);

  Member head_;
  std::vector<Member> others_;
  std::array<Duration, 64> changing_until_{};  // of objects, several of which may share one
};

}  // namespace nacre::client
