// The MGS's record of an OST (proto/FORMAT.md, "OST record"): its members and, if it is to have several, the
// chain that they form (docs/decisions/0064-chains-of-osts.md). Plain values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "common/status.h"

namespace nacre::cluster {

inline constexpr uint32_t kMaxOsts = 65536;
inline constexpr uint32_t kMaxCopies = 3;

struct OstMember {
  enum class State : uint8_t {
    kAway = 0,     // has a part of the objects, or none
    kInSync = 1,   // has everything that was acknowledged
    kJoining = 2,  // is being filled by the head
  };

  std::string uuid;
  std::string address;  // where it was last
  uint64_t total_bytes = 0;
  uint64_t instance = 0;  // of the OSS process since whose start it has been in its state; 0: not known
  State state = State::kInSync;
  bool in_sync() const { return state == State::kInSync; }
  bool operator==(const OstMember&) const = default;
};

// Whether the cluster uses an OST, drains it, or has removed it.
enum class OstUse : uint8_t {
  kActive = 0,
  kDraining = 1,  // takes no new files
  kRemoved = 2,   // in the cluster no more, and no layout names it. The record keeps its index from others
  kLost = 3,      // the same, but layouts may name it: what they have there is gone
};
inline bool IsGone(OstUse use) { return use == OstUse::kRemoved || use == OstUse::kLost; }

// Of an OST with copies 1: one member in sync, epoch 0.
struct OstRecord {
  OstUse use = OstUse::kActive;
  uint32_t epoch = 0;  // of the chain
  uint32_t copies = 1;
  std::vector<OstMember> members;  // those in sync first, in the chain's order, then those that join

  const OstMember* Find(std::string_view uuid) const;
  const OstMember& head() const { return members.front(); }
  bool operator==(const OstRecord&) const = default;
};

inline constexpr char kOstTable = 0x40;
std::string OstKey(OstIndex index);
std::string EncodeOst(const OstRecord& record);
// DATA_LOSS for one that is damaged.
StatusOr<OstRecord> ParseOst(std::string_view data);

}  // namespace nacre::cluster
