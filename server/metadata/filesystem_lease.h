// The lease of the whole filesystem: a session that is the only one holds it, for writing. With several
// sessions there are leases of directories (directory_leases.h) and READ of files whose pages a kernel keeps
// (recall.h), over the same LeaseTable. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <set>

#include "common/status.h"
#include "common/task.h"
#include "proto/metadata.pb.h"
#include "server/metadata/session.h"

namespace nacre::mds {

struct Mds;

class FilesystemLease {
 public:
  // New sessions come in one at a time; hold this from MakeWay until the session stands in the table.
  Task<AsyncMutex::Guard> LockAdmission() { return admission_.Lock(); }

  // Takes the lease from whoever has it: asks, waits for the release, evicts after the revocation timeout.
  Task<Status> MakeWay(std::shared_ptr<Mds> mds);

  // Asks for it and waits for so long; nobody is evicted. Whether nobody has it.
  Task<bool> TryMakeWay(std::shared_ptr<Mds> mds, Duration patience);

  // With the admission lock held: the lease if this is the only session, mode NONE otherwise.
  proto::Lease GrantIfAlone(Mds& mds, const SessionPtr& session);

  // Offers the lease to the session that is left alone, if there is one. Takes the admission lock.
  Task<void> OfferToLast(std::shared_ptr<Mds> mds);

  // Also while it is being given back.
  bool HeldBy(const Mds& mds, SessionId session) const;

  // A client that comes back says that it held this lease.
  void Restore(Mds& mds, const SessionPtr& session, const proto::Lease& lease);

  // A client that comes back does not say that it holds the lease: if that is being asked back, it is told so
  // once more, for what said so may be lost with the stream, as the grant.
  void AskUnnamedBack(Mds& mds, const SessionPtr& session, const std::set<uint64_t>& named);

  // A change that goes on whatever becomes of the session that has asked for it (truncation.h). As long as
  // one of these lives nobody else is granted the lease: he would not be told when the change is done. Its
  // end offers the lease to who has been waiting for that.
  class LastingChange {
   public:
    LastingChange(std::shared_ptr<Mds> mds, SessionId of);
    ~LastingChange();
    LastingChange(const LastingChange&) = delete;
    LastingChange& operator=(const LastingChange&) = delete;

   private:
    const std::shared_ptr<Mds> mds_;
    const SessionId of_;
  };

 private:
  bool OthersChange(SessionId than) const;

  AsyncMutex admission_;
  mutable std::mutex mutex_;
  std::multiset<SessionId> changing_;  // one for each LastingChange
};

}  // namespace nacre::mds
