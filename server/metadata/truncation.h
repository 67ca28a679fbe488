// Truncation of a file that has objects.
//
// To nothing: the file gets a new object sequence and the old objects go to the destroy queue, in one commit.
// No OST is asked, so this takes the file's lock alone and goes past a truncation or a move-out that waits
// for an OST: they find another layout than they began with, and end.
//
// To something smaller: class Truncation, in two commits with the work of the OSTs between them. Nobody else
// changes the file's size meanwhile (Mds::data_locks), and whoever wrote by the old layout is told so by
// UpdateSize. Thread-safe.
#pragma once

#include <memory>

#include "server/metadata/object_io.h"

namespace nacre::mds {

// Waits until no truncation or move-out of the file is under way, then takes its lock.
Task<FidLocks::Guard> LockQuiet(Mds& mds, Fid fid);

// The lock and the inode of an operation that may empty a file.
struct LockedFile {
  FidLocks::Guard guard;
  Inode* inode = nullptr;        // the transaction's
  uint64_t object_sequence = 0;  // for TruncateToZero; 0 unless it was asked for
};

// Takes the file's lock and loads its inode. The new object sequence that emptying it needs comes before the
// lock: now and then one is had only by a commit, which nobody else shall wait for.
Task<StatusOr<LockedFile>> LockFile(Mds& mds, Fid fid, bool may_empty, Transaction* transaction);

// The file is empty afterwards, and inline again where files may be. Not committed. ENODEV: it would need
// other OSTs than those that it was on, and there are none.
Status TruncateToZero(const Op& op, Transaction* transaction, Inode* inode, uint64_t object_sequence);

// Whether a file of this size has objects that must be cut for the new size.
bool NeedsCut(const Inode& inode, uint64_t size);

// One truncation, from the intent to the recorded reply. Owns the file's data lock, the intent and the reply.
//
//   decided   the intent's record is committed, with every other change that the request makes; permission
//             was checked before. From here on the truncation is completed, whatever becomes of the session
//             that asked for it. The record is durable before anything is cut: else a loss of power could
//             bring back the old size without the old data.
//   cut       each object by a coroutine of its own, which tries again for as long as its OST cannot do it.
//   finished  one commit takes the record away and has the new size and the reply. It is durable before
//             anybody is told: else a loss of power could bring the record back, and cut off what was written
//             since.
//
// A restart finds the record: if the file has the layout that it names, the rest is done, and the reply
// recorded, for which a repeat of the request waits; else the file was emptied or got another layout since,
// and the record goes. Destroy and TruncateToZero take the record with them.
class Truncation : public std::enable_shared_from_this<Truncation> {
 public:
  // `data`: the file's data lock, held from before the inode was read. `op` is not kept.
  Truncation(const Op& op, const Inode& inode, uint64_t size, FidLocks::Guard data);
  // A record that a restart has found, of a file to which it still applies.
  Truncation(MdsPtr mds, const Inode& inode, const TruncateRecord& record, FidLocks::Guard data);

  // Adds the intent to the batch that decides.
  void AddIntent(KvBatch* batch) const;

  // Once that is committed: completes the truncation in the background and waits for it. Returns early, after
  // some seconds of attempts, with the error of an OST that answers and cannot cut; the truncation goes on
  // then, and cuts what is written meanwhile. An OST that does not answer is waited for. UNAVAILABLE when the
  // server stops.
  Task<Reply> Complete();

  // The same without a request that waits.
  void CompleteAfterRestart();

 private:
  static Task<void> Work(std::shared_ptr<Truncation> self);
  static Task<uint64_t> CutUntilDone(std::shared_ptr<Truncation> self, Stripe stripe);
  Task<void> MakeDurable();
  Task<uint64_t> CutAll();
  Task<void> Finish(uint64_t blocks);
  Task<Status> Commit(uint64_t blocks, proto::MetadataReply* reply);
  Task<void> RecallPages(proto::MetadataReply reply);
  // Nothing is left to do: the server stops, or the file has another layout or is gone.
  bool IsOver() const;
  Task<void> WaitAfter(Status failure, Duration* pause);
  Task<void> WaitAfter(Status failure, OstIndex ost, Duration* pause);

  const MdsPtr mds_;
  const Fid fid_;
  const Layout layout_;
  const TruncateRecord record_;
  FidLocks::Guard data_;
  SessionPtr session_;      // that has to get the reply; null: none
  const bool resumed_;      // no operation waits, so that we end the mutation ourselves
  OneShot<Reply> outcome_;  // set once: what the operation answers
};

// At the start, before any request: goes on with the truncations that a crash has interrupted, in the
// background. Records that cannot be read are logged and left.
Task<Status> ResumeTruncations(MdsPtr mds);

}  // namespace nacre::mds
