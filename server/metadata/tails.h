// Bytes that were appended to files with objects, and lie in the MDT until they are written to the objects.
//
// Where several mounts append to one file, each brings its bytes along (ops/append.cc). One commit puts them
// into the MDT (Table::kTail) behind all that the file has, and makes the file longer: so an append takes its
// client one round trip, and is there or not, whoever dies. They are the file's tail.
//
// A tail is written to the objects before anybody is given the file's layout, and in any case after a while,
// or when it is long. Then its records go. So nobody but the MDS knows of it: whoever has a layout finds all
// of the file in the objects.
//
// What may come in between:
//  - A client knows the layout from before. The first append to a file without a tail gives its layout a new
//    generation, so what is written by the old one is refused (UpdateSize: ESTALE), and the client asks for
//    the layout, behind the tail, and writes again. A holder of a lease of the file or its directory has told
//    everything and given it back by then (change_guard.h).
//  - The MDS dies. The records are the intent: a restart finds them, and writes the bytes again.
//  - Loss of power. The objects have the bytes durably before the records go, and the commit that takes them
//    is durable before the layout is given out: records that came back would be written over what others have
//    written since.
//  - An OST is down or full: then appends are not stored (MayStoreTail), and the client writes them itself.
//    What is stored already waits for the OST, and whoever wants the layout with it. Objects of an OST that
//    was lost get nothing any more.
//  - The file is emptied or removed: that commit takes the records. Writes that are under way make objects
//    anew, perhaps after they were destroyed: they are dropped once more (left_objects.h).
//
// Tails is thread-safe. The functions may run beside each other; `mds` is kept alive by their tasks.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <mutex>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"
#include "common/task.h"
#include "server/metadata/fid_locks.h"
#include "server/metadata/session.h"
#include "server/metadata/tables.h"

namespace nacre::mds {

struct Mds;

inline constexpr uint64_t kMostOfAppend = 1 << 20;  // bytes of one

// Which files have a tail: what Table::kTail has, in memory. A file is named here from before its first
// record is committed until its last one has gone durably.
class Tails {
 public:
  bool Has(const Fid& file) const;
  // Whether its tail has become long by these bytes, which come next.
  bool IsFull(const Fid& file, uint64_t bytes) const;
  // Whether it has one that began after the layout of this generation was made.
  bool HasSince(const Fid& file, uint32_t generation) const;

  // With the file's lock held: bytes are about to be committed. `generation`: of the layout, with them.
  void Note(const Fid& file, uint32_t generation, uint64_t bytes, Duration now);
  void Forget(const Fid& file);

  // Those that have lain for long. Each is named again after a while.
  std::vector<Fid> TakeDue(Duration now);

 private:
  struct Tail {
    uint32_t generation = 0;  // 0: not known
    uint64_t bytes = 0;
    uint32_t records = 0;
    Duration due{0};
  };

  mutable std::mutex mutex_;
  absl::flat_hash_map<Fid, Tail> tails_;
};

// Whether bytes that come to the end of the file may be stored in the MDT: each OST that is to get them is up
// and has room.
bool MayStoreTail(const Mds& mds, const Inode& inode, uint64_t length);
// Adds the bytes to the end of the file, which is locked. To be committed next.
void AddTail(Mds& mds, Transaction* transaction, Inode* inode, std::string data);
// Takes the records of a file that goes or becomes empty. It is locked.
Status DropTail(Mds& mds, const Fid& file, KvBatch* batch);

// Writes the tail, if there is one, to the objects: one attempt. The file's data lock is held, and its lock
// is not. UNAVAILABLE: an OST has not answered for 30 s, or the server stops; else the OST's error.
Task<Status> SettleTail(std::shared_ptr<Mds> mds, Fid file);
// The same for a request of the session: waits for an OST that is away. EIO: the OST has refused the tail for
// some seconds; ESTALE: the session has ended.
Task<Status> SettleTailFor(std::shared_ptr<Mds> mds, SessionPtr session, Fid file);
// Takes the file's lock when it has no tail any more. Errors as above.
Task<StatusOr<FidLocks::Guard>> LockSettled(std::shared_ptr<Mds> mds, SessionPtr session, Fid file);

// At the start, before any request.
Task<Status> ResumeTails(std::shared_ptr<Mds> mds);
// In the background, as long as the MDS runs: writes tails that have lain for long.
Task<void> SettleTails(std::shared_ptr<Mds> mds);

}  // namespace nacre::mds
