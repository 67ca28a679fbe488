// The checker of a stopped MDT, and of an MDT against the objects of its OSTs. Used by `nacre doctor` and the
// simulation.
//
// Finds: damaged records, entries without inode, inodes without entry, wrong link and entry counts, loops and
// cut-off directories, wrong counters, wrong reverse links, attributes and data of inodes that are gone,
// orphans that are none, objects in the destroy queue that are still in use. Repair drops what is useless and
// corrects what can be derived; an inode without a name gets one in the root ("lost+found.<fid>"). Memory
// grows with the number of inodes (about 100 bytes each). Not thread-safe; the store must not be in use.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "proto/object.pb.h"
#include "server/kv/kv_store.h"
#include "server/metadata/records.h"

namespace nacre::mds {

struct CheckReport {
  std::vector<std::string> problems;  // each names the place; the first kMaxListed
  uint64_t problem_count = 0;
  uint64_t repaired = 0;
  uint64_t inodes = 0;
  uint64_t entries = 0;

  static constexpr size_t kMaxListed = 1000;
  void Add(std::string problem);
  bool clean() const { return problem_count == 0; }
};

// Errors: the store's, and FAILED_PRECONDITION or DATA_LOSS if it is no MDT of this version. Records that are
// merely wrong are in the report.
Task<StatusOr<CheckReport>> CheckMdt(KvStore& store, bool repair);

// Compares an MDT with what the OSTs hold. Call AddOst for each OST, AddObject for each object of it, then
// Finish. Objects that belong to no file are orphans (repair: into the destroy queue). A file that counts
// blocks without having an object has lost them: after a restore of the MDT this is one that was removed or
// emptied since the backup. It would read as zeros of its old length; repair makes it empty, where each of
// its OSTs has been looked at, so that everybody sees that its bytes are gone.
class ObjectCheck {
 public:
  explicit ObjectCheck(KvStore& store) : store_(store) {}
  // All of its objects are shown. One whose uuid is not that of the OST that the MDT knows does not count.
  // Objects on one that has been removed from the cluster are nobody's, and not looked at.
  Status AddOst(OstIndex ost, const std::string& uuid);
  Status AddObject(OstIndex ost, const proto::ListedObject& object);
  Task<StatusOr<CheckReport>> Finish(bool repair);

 private:
  bool IsLeaving(OstIndex ost, const ObjectId& id);
  StatusOr<std::string> Judge(OstIndex ost, const proto::ListedObject& object);  // empty: all is well
  Task<Status> QueueOrphans(bool repair);
  bool AllLookedAt(const Inode& inode) const;
  std::string PathOf(Inode inode);
  void NoteLost(Inode inode, bool repair, KvBatch* fixes);

  KvStore& store_;
  CheckReport report_;
  std::set<OstIndex> looked_at_;
  std::set<OstIndex> gone_;
  absl::flat_hash_map<Fid, bool> seen_;  // files of which an object was found
  std::map<uint64_t, std::map<OstIndex, std::vector<uint32_t>>> orphans_;  // sequence -> OST -> stripes
};

}  // namespace nacre::mds
