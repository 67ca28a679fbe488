// The open handles of a mount: counts them in their inodes, and sees to it that the MDS knows of those that
// it has to know of. To the MDS handles are alike: it counts them by file, and is told those counts again by
// a Reclaim. It need not know of one that was opened under a lease (Inode::opened_under) as long as that
// lease is held.
//
// Thread-safe. The constructor's arguments must outlive it. A call that waits ends with the MDS's answer,
// with the stream or with the session.
#pragma once

#include <absl/functional/function_ref.h>

#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "client/entrance.h"
#include "client/held_leases.h"
#include "client/metadata_queue.h"

namespace nacre::client {

class Handles {
 public:
  Handles(const Entrance& entrance, DataCache& cache, InodeTable& inodes, const HeldLeases& leases,
          Session& session, MetadataQueue& queue);

  // --- opening ---

  // One that does not count yet.
  HandlePtr New(const Caller& caller, InodePtr inode, int flags);
  // The MDS knows of it, or will when it has answered what is about to be asked. Returns the Inode::named of
  // that moment.
  uint64_t CountTold(FileHandle& handle);
  // The MDS does not hear of it as long as the lease is good that covers the inode: if `may` says so with the
  // inode's mutex held.
  bool CountUntold(FileHandle& handle, absl::FunctionRef<bool(const Inode&)> may);
  // A create was answered, and a Reclaim has gone to the MDS before its handle counted here: the MDS is told
  // again, and until the last close too much rather than too little. If the stream is lost again, the next
  // Reclaim does it.
  Task<void> TellAgain(InodePtr inode);

  // --- telling of those that were opened under a lease ---

  // With the inode's mutex held: whether it has such handles.
  static bool IsUntold(const Inode& inode);
  std::vector<InodePtr> UntoldFiles();
  // Returns when the MDS knows of the handles of these files, or has lost the stream: then the Reclaim that
  // follows tells it.
  Task<void> Tell(uint64_t epoch, std::vector<InodePtr> files);
  // The same of all that were opened under this lease.
  Task<void> TellUnder(uint64_t epoch, uint64_t lease, ScopePtr scope);

  // --- closing ---

  struct Dropped {
    bool file_gone = false;            // nobody can come by the file any more
    bool last_writer = false;          // the file's own lease has no use any more
    uint64_t pages_lease = 0;          // READ of the file, which has none either; 0: there is none
    std::optional<uint32_t> to_close;  // what CloseAtMds is to be called with
  };
  Dropped Drop(FileHandle& handle);
  // `count` handles, 0: all of them.
  Task<void> CloseAtMds(InodePtr inode, uint32_t count, bool write, uint64_t epoch);

  // The session has ended, and all handles with it.
  void Forget();

  // --- errors of changes that have no handle: fsync through any handle of the mount reports them ---

  void NoteError(Status status);
  Status TakeError(FileHandle& handle);

 private:
  static void CountLocked(FileHandle& handle, bool told);
  static void Name(Inode& inode, proto::OpenFile* open);

  const Entrance& entrance_;
  DataCache& cache_;
  InodeTable& inodes_;
  const HeldLeases& leases_;
  Session& session_;
  MetadataQueue& queue_;

  std::mutex mutex_;
  std::set<Fid> untold_;  // with Inode::opened_under; some may have none any more
  ErrorSequence errors_;
};

}  // namespace nacre::client
