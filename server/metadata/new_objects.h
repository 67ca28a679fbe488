// Objects that are written before any file has them: what a change of two commits, with an OST's work between
// them, leaves at the OSTs if it does not come to its end (move_out.h, migration.h).
//
//   intended   a record says which new objects are about to be written (Table::kNewObjects).
//   taken      the commit that gives them to a file takes the record away; or
//   withdrawn  one commit turns the record into some of the destroy queue.
//
// A restart withdraws what it finds: who wanted the change repeats it, or has no use for the objects.
//
// Belongs to one coroutine. One that is destroyed with its record in the store leaves that to Withdraw, which
// must have been called, or to the next start.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

class NewObjects {
 public:
  // Stripes 0 to groups.size() - 1 of the sequence, of which stripe n lies at groups[n].
  NewObjects(MdsPtr mds, uint64_t sequence, std::vector<uint32_t> groups)
      : mds_(std::move(mds)), sequence_(sequence), groups_(std::move(groups)) {}

  Task<Status> Intend();

  // For the batch with the file's new layout; Taken once that is committed.
  void AddTaking(KvBatch* batch) const;
  void Taken() { intended_ = false; }

  // If they are intended and not taken: in the background, until the store has it.
  void Withdraw();

  // At the start, before any request: withdraws all that a crash has left.
  static Task<Status> WithdrawAll(MdsPtr mds);

 private:
  const MdsPtr mds_;
  const uint64_t sequence_;
  const std::vector<uint32_t> groups_;
  bool intended_ = false;  // there is a record in the store
};

}  // namespace nacre::mds
