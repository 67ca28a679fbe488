// The right to change what READ leases of directories cover (proto/metadata.proto, Lease).
//
// An operation that changes an inode or an entry first covers the directories whose leases cover it: from
// then on no other session is granted a lease of them, and those that other sessions hold are revoked and
// released before Cover returns. So no client answers from its cache what the change makes untrue, from
// before the commit until the guard is destroyed; a session that is granted a lease after that sees the
// change.
//
// The directories are looked up before the change takes its locks, because no lock is held while clients are
// waited for. A rename may come in between, so the commit looks again (Op::Commit): if a directory is not
// covered, nothing is committed, and the operation begins again with that one covered, too (Guarded).
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
#include "server/metadata/records.h"

namespace nacre::mds {

struct Mds;

// The directory whose lease covers the inode; none covers a file with several links, or without any.
Fid CoveringDirectory(const Inode& inode);
// Those of everything that the mutation will change, as things are now; and the file, if somebody has data of
// it that comes late (late_data.h).
std::vector<Fid> DirectoriesChangedBy(Mds& mds, const proto::MetadataRequest& request);

class ChangeGuard {
 public:
  // `changer`: the session whose own leases stay; 0: the server changes something by itself.
  ChangeGuard(std::shared_ptr<Mds> mds, SessionId changer);
  ~ChangeGuard();
  ChangeGuard(const ChangeGuard&) = delete;
  ChangeGuard& operator=(const ChangeGuard&) = delete;

  // Waits for holders, in bounded time (revocation_deadline.h). A session's change also waits for the end of
  // recovery: who is not back yet may hold a lease. The server's own changes do not, for recovery waits for
  // some of them: sizes that clients knew before the restart, or of writers that are evicted together with
  // everybody who is not back (writer_recovery.h). Fails only when the server is stopping.
  Task<Status> Cover(std::vector<Fid> directories);
  // For who must not wait for a client: false if somebody holds a lease of one of these, and is not asked
  // back.
  bool TryCover(const std::vector<Fid>& directories);

  bool Has(const Fid& directory) const;  // it is covered
  // Whether all of these are covered. Notes those that are not, for CoverMissing.
  bool Covers(const std::vector<Fid>& directories);
  bool lacks() const { return !missing_.empty(); }
  Task<Status> CoverMissing();

 private:
  std::vector<Fid> BlockMissing();

  const std::shared_ptr<Mds> mds_;
  const SessionId changer_;
  std::vector<Fid> covered_, missing_;
};

}  // namespace nacre::mds
