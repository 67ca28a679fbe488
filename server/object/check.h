// The checker of a stopped OST (`nacre doctor`): records that parse, extents that do not overlap, accounts
// that add up, data that matches its checksums; and the list of objects with their files, for the comparison
// with the MDT.
//
// Never changes anything unless told to repair; a repair first deals with undo records as a server's start
// would: it takes changes back only where a loss of power may have torn them. Call it only when no server has
// the OST open (or, in the simulation, when nothing changes).
#pragma once

#include <absl/functional/any_invocable.h>

#include <string>
#include <vector>

#include "common/task.h"
#include "server/object/format.h"
#include "server/object/object_server.h"

namespace nacre::ost {

struct CheckedObject {
  ObjectId id;
  Fid parent;
  uint64_t size = 0;
  uint64_t blocks = 0;
};

struct CheckProblem {
  enum class Kind {
    kMalformed,     // a record that does not parse
    kOrphanExtent,  // an extent record without its object
    kOverlap,       // a block that two places use
    kOutside,       // a block beyond the device
    kAccounts,      // an object's number of blocks is wrong
    kBeyondEnd,     // written blocks behind the object's size
    kChecksum,      // data that does not match
    kUnreadable,
    kSuperblock,
  };
  Kind kind;
  ObjectId object;
  std::string text;
  bool repaired = false;
};

struct CheckOptions {
  bool verify_data = false;  // read every block
  // Repair: accounts are corrected; extents without an object get one (without a file: the comparison with
  // the MDT tells what becomes of it); a block used twice is copied, so that each place has its own; blocks
  // behind the end are dropped; what a malformed extent record mapped is lost and reads as zeros. Bad data
  // stays: reading it fails with EIO.
  bool repair = false;
  std::string boot;  // names this boot of the machine (server/kv/losses.h); empty: not known
  absl::AnyInvocable<void(const CheckedObject&)> on_object;  // in the order of their ids
  absl::AnyInvocable<void(uint64_t records)> on_progress;    // extent records looked at so far
};

struct CheckReport {
  Superblock superblock;
  uint64_t objects = 0;
  uint64_t blocks = 0;  // in use
  uint64_t verified_blocks = 0;
  uint64_t undo_records = 0;           // left by a crash: the next start (or a repair) deals with them
  std::vector<CheckProblem> problems;  // the first kMaxProblems
  uint64_t problem_count = 0;
};

inline constexpr size_t kMaxProblems = 1000;

// An error: the check could not be made (no OST here, another version, the store cannot be read).
Task<StatusOr<CheckReport>> CheckOst(OstDevices devices, CheckOptions options);

}  // namespace nacre::ost
