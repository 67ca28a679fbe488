// The leases of directories, and WRITE leases of files, that a mount holds, from the grant until they are
// given back; and what may be learned under them from the answers of the MDS (scope.h says when and why).
//
// Thread-safe. Inodes' mutexes are taken inside of its own.
#pragma once

#include <absl/container/flat_hash_set.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "client/inode_table.h"
#include "client/scope.h"
#include "common/clock.h"
#include "proto/metadata.pb.h"

namespace nacre::client {

class HeldLeases {
 public:
  using Ended = std::vector<std::pair<InodePtr, ScopePtr>>;

  // `plant_late_grant`: a planted bug (Options).
  HeldLeases(InodeTable& inodes, Clock& clock, bool plant_late_grant);

  // --- learning ---

  // To be called before a request is sent whose answer is to be learned. Leases that are given up are
  // remembered until the last Learning::present of that time has gone.
  Learning BeginLearning();
  // The lease of the directory, or the file, under which the answer may be learned: it was held when the
  // request was sent, or came with the answer. (A request that was sent after another one may be carried out
  // before it.) Null: none.
  ScopePtr For(const Learning& learning, const Fid& of);
  // The lease that covers an inode with these attributes, if the answer may be learned under it.
  ScopePtr Covering(const Learning& learning, const proto::Attr& learned);
  // The attributes, if they are what is known of the inode, are true as long as the lease that covers them is
  // good.
  void Cover(const Learning& learning, Inode& inode, const proto::Attr& learned);
  // The same under that lease, unless this client has changed the inode after `event`.
  static void CoverSince(uint64_t event, ScopePtr scope, Inode& inode, const proto::Attr& learned);

  // --- taking over ---

  // Takes over the leases that came with an answer; those that are held already stay. Returns those that have
  // ended with it, or are at the MDS already: they are to be given back.
  std::vector<ScopePtr> Take(Learning* learning, const proto::MetadataReply& reply);
  // The MDS has made a directory that was made here under `born`, and calls its lease so; 0: it has granted
  // none. True: there is no lease, which has ended now.
  bool NameBorn(Inode& directory, const ScopePtr& born, uint64_t lease);
  // A lease of a file whose data is late was granted, which goes back by itself. False: a Reclaim that could
  // not name it has ended it, or will.
  bool TakeLate(Inode& file, uint64_t lease, uint64_t reclaims);

  // --- ending ---

  // The MDS wants this lease back. Nothing: it is on its way already. Null: it is READ of a file, or not
  // known.
  std::optional<ScopePtr> EndRevoked(const InodePtr& inode, uint64_t lease);
  // READ of a file was granted. It is not taken if it is on its way back and nothing holds it up any more;
  // the next one will be another.
  static void TakeRead(Inode& file, uint64_t lease);  // with the file's mutex held
  // The kernel has forgotten the file's pages of before. True: READ, which is on its way back, was granted
  // once more meanwhile, so it has to forget again. False: from now on the lease is not taken any more.
  static bool EndReadAgain(Inode& file, uint64_t lease);
  // A handle for writing of the file has gone. Null: it has no lease of its own, or there are other handles.
  ScopePtr EndOfFile(Inode& file);
  // A lease that is not held any more, and may come once more.
  void NoteGivenUp(uint64_t lease);
  Ended EndAll();
  // Those that are SHARED, of which an older MDS knows nothing.
  Ended EndShared();
  // Those of directories that were let go for want of memory. To make room for these others may be let go:
  // all are returned.
  Ended TakeDropped();
  // The lease under which something of what lies in the directory may be here: the one that is held, or the
  // last one. That may have gone with the directory for want of memory, and not be on its way back yet.
  // `moves`: a change begins that takes files out of it: that lease covers none from here on, nor does one
  // that comes while the change is under way (Inode::moves).
  ScopePtr LastOf(Inode& directory, bool moves);

  // --- Reclaims, which end what they do not name ---

  // How many have been begun.
  uint64_t reclaims() const { return reclaims_; }
  void BeginReclaim() { ++reclaims_; }

  // --- changes of this client's own that take away names of which it does not know what they mean ---

  void BeginUnknownMove() { ++*unknown_moves_; }
  void EndUnknownMove() { --*unknown_moves_; }
  uint32_t unknown_moves() const { return *unknown_moves_; }

 private:
  void EndLearning();
  Ended EndWhere(bool (*which)(const Scope&));
  void TakeOne(Learning* learning, const proto::Lease& lease, bool of_file, std::vector<ScopePtr>* ended);

  InodeTable& inodes_;
  Clock& clock_;
  const bool plant_late_grant_;
  std::atomic<uint64_t> reclaims_{0};
  std::atomic<uint64_t> learners_{0};  // Learnings that have not ended
  const std::shared_ptr<std::atomic<uint32_t>> unknown_moves_ = std::make_shared<std::atomic<uint32_t>>(0);

  std::mutex mutex_;
  absl::flat_hash_set<uint64_t> given_up_;  // leases that are not held any more, and may come once more
};

}  // namespace nacre::client
