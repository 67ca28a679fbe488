// The right to change what leases of directories and files cover (proto/metadata.proto, Lease).
//
// An operation that changes an inode or an entry first covers the directories whose leases cover it: from
// then on no other session is granted a lease of them, and those that other sessions hold are revoked and
// released before Cover returns. So no client answers from its cache what the change makes untrue, from
// before the commit until the guard is destroyed; a session that is granted a lease after that sees the
// change.
//
// A file that changes is covered, too: another session may have WRITE of it alone (file_leases.h), or get it.
// READ of a file is revoked after the commit (recall.h).
//
// The inodes that a change touches are looked up before it takes its locks, for no lock is held while clients
// are waited for. A rename may come in between, so the commit looks again (Op::Commit): if something is not
// covered, nothing is committed, and the operation begins again with that covered, too (Guarded).
//
// A client with WRITE of the file that it changes need not wait for those who have the directory: they do not
// know the file (file_leases.h). If it did, it could wait for a client that waits for it to give that lease
// back, or whose own such changes wait for this one. The lease stays until the change is committed
// (LeaseTable::Pin).
//
// A directory that does not exist is not covered: its maker may not have told the MDS of it yet, and then has
// its lease from the beginning (GrantBorn), even if others wait to change it.
//
// Belongs to one operation. Must not outlive the Mds.
#pragma once

#include <absl/functional/function_ref.h>

#include <vector>

#include "common/ids.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/metadata.pb.h"
#include "server/metadata/lease_table.h"
#include "server/metadata/records.h"
#include "server/metadata/tables.h"

namespace nacre::mds {

struct Mds;

// The directory whose lease covers the inode; none covers a file with several links, or without any.
Fid CoveringDirectory(const Inode& inode);
// Everything that the mutation will change, as things are now.
std::vector<Touched> TouchedBy(Mds& mds, const proto::MetadataRequest& request);

class ChangeGuard {
 public:
  // The server, by itself or to finish what was asked for, does not wait for data of files that comes late
  // (late_data.h). A session that writes beside those that share a file (UpdateSize.beside) leaves them their
  // leases. A size that a writer has left behind (writer_recovery.h) does not wait for sessions that are
  // outlived: the end of these waits for such sizes.
  enum class For { kRequest, kBeside, kServer, kSizeLeftBehind };

  // `changer`: the session whose own leases stay; 0: none.
  ChangeGuard(std::shared_ptr<Mds> mds, SessionId changer, For whom);
  ~ChangeGuard();
  ChangeGuard(const ChangeGuard&) = delete;
  ChangeGuard& operator=(const ChangeGuard&) = delete;

  // Waits for holders, in bounded time (revocation_deadline.h). A session's change also waits for the end of
  // recovery: who is not back yet may hold a lease. The server's own changes do not, for recovery waits for
  // some of them: sizes that clients knew before the restart, or of writers that are evicted together with
  // everybody who is not back (writer_recovery.h). Fails only when the server is stopping.
  Task<Status> Cover(const std::vector<Touched>& changes);
  // For who must not wait for a client: false if somebody holds a lease of one of these, and is not asked
  // back.
  bool TryCover(const std::vector<Touched>& changes);

  bool Has(const Fid& inode) const;  // it is covered
  // Whether everything is covered that the transaction changes; it stays so until the guard is destroyed, or
  // Unpin. Notes what is not, for CoverMissing.
  bool CoversAll(const Transaction& transaction);
  // Whether others shared a file of such a transaction: they may have changed it again since, for they ask
  // nobody for a lease.
  bool was_beside_others() const { return was_beside_others_; }
  // It is committed, and the operation is not over: it may wait for servers.
  void Unpin();
  // The same of a file that is not to be changed, but looked at under its lock.
  bool CoversFile(const Fid& file);
  bool lacks() const { return !missing_.empty(); }
  Task<Status> CoverMissing();

 private:
  struct Covered {
    Fid inode;
    bool file = false;  // else a directory
    bool late = false;  // of a file: data of it that comes late has been waited for
  };
  void Need(const Covered& wanted);
  void NeedDirectory(const Fid& directory);
  void NeedFile(const Fid& file, bool removed);
  void NeedAll(const std::vector<Touched>& changes);
  std::vector<LeaseGrant> ConflictsOf(const Covered& covered) const;
  std::vector<Covered> BlockMissing();
  bool IsBeside(const Covered& covered) const;
  bool WaitsForLateData() const { return whom_ == For::kRequest || whom_ == For::kBeside; }
  bool HasOutlived(const LeaseGrant& grant) const;
  bool PinOwn(const Fid& file);

  const std::shared_ptr<Mds> mds_;
  const SessionId changer_;
  const For whom_;
  std::vector<Covered> covered_, missing_;
  std::vector<LeaseGrant> pinned_;  // of the changer
  bool was_beside_others_ = false;
};

}  // namespace nacre::mds
