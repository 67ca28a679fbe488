// Bytes of files, as they go from a writer into the cache, from there to the OSTs, or past it; and the space
// that objects take.
//
// A byte that is dirty in the cache has its space at the OST reserved (targets.h), so sending it does not
// fail for want of that. Inode::pending keeps what the MDS has to be told of it. Errors of what is sent out
// of the cache are noted in the inode (NoteError).
//
// Thread-safe. The state lies in the inodes and in the cache. The arguments of the constructor must outlive
// it. A wait for a server ends with its answer or with the session, a wait for memory when others have let go
// of theirs.
#pragma once

#include <map>
#include <memory>
#include <span>

#include "client/background.h"
#include "client/data_cache.h"
#include "client/durability.h"
#include "client/entrance.h"
#include "client/inode.h"
#include "client/mdt_room.h"
#include "client/object_io.h"
#include "client/space_change.h"
#include "client/targets.h"

namespace nacre::client {

// The bytes that a program writes, in the order of the file.
using Pieces = std::span<const std::span<const std::byte>>;

enum class MayGiveUp { kNo, kYes };  // when it is cancelled before it has begun

// Locks a part of the file for one who changes it. Empty: nobody waits for the operation any more.
inline Task<RangeLock::Guard> LockForWriting(Inode& inode, uint64_t begin, uint64_t end, MayGiveUp may) {
  if (may == MayGiveUp::kYes) return inode.range.LockUnlessCancelled(begin, end, true);
  return inode.range.Lock(begin, end, true);
}

class FileData {
 public:
  static constexpr uint64_t kWindow = 1 << 20;  // bytes of one WriteCached

  FileData(std::shared_ptr<DataCache> cache, Targets& targets, ObjectIo& io, Durability& durability,
           MdtRoom& room, const Entrance& entrance, Background& background);

  // --- into the cache; the range is locked ---

  // Writes at most kWindow bytes that begin `skip` bytes into the pieces. If no space can be reserved for
  // them they go to the OSTs at once, which decide whether there is any. `space`, if not null: has been
  // reserved for them, and what is used of that is taken off.
  Task<Status> WriteCached(InodePtr inode, LayoutPtr layout, uint64_t offset, Pieces pieces, uint64_t skip,
                           uint64_t size, std::map<OstIndex, uint64_t>* space = nullptr);
  // Takes out of the cache what it has of the range, dirty or not.
  void Drop(Inode& inode, uint64_t begin, uint64_t end);
  // Drops everything that is held back of a file that is going away, inline bytes and what the MDS was to be
  // told among it.
  void Discard(Inode& inode);

  // --- out of the cache ---

  // Sends what is dirty in the range now, and waits for what is under way there.
  Task<Status> Send(InodePtr inode, uint64_t begin, uint64_t end);
  // Sends in the background those chunks that are dirty from end to end, if they make a window together.
  // Writers of a stream will not come back to them. False: they do not.
  bool SendFull(const InodePtr& inode);
  // Sends in the background what an O_DIRECT write has left in the cache, at once, by a few tasks. While all
  // are busy more comes together, and goes in fewer requests.
  void SendDirect(const InodePtr& inode);

  // --- past the cache; the range is locked ---

  // Writes to the objects; `sent` gets what the MDS must be told. Nothing of the range is dirty.
  Task<Status> WriteThrough(InodePtr inode, LayoutPtr layout, uint64_t offset, Pieces pieces, uint64_t skip,
                            uint64_t size, Pending* sent);
  // Makes holes, or reserves space; `sent`: as before. EBUSY: the layout is null, the file has been
  // truncated.
  Task<Status> ChangeSpace(InodePtr inode, LayoutPtr layout, SpaceChange change, Pending* sent);

 private:
  Task<Status> SendFlight(InodePtr inode, DataCache::Flight flight);
  Task<void> SendFullChunks(InodePtr inode);
  Task<void> SendLeftByDirect(InodePtr inode);
  Task<Status> SendToObjects(InodePtr inode, std::vector<proto::ObjectRequest> requests, Pending* sent);

  const std::shared_ptr<DataCache> cache_;
  Targets& targets_;
  ObjectIo& io_;
  Durability& durability_;
  MdtRoom& room_;
  const Entrance& entrance_;
  Background& background_;
};

}  // namespace nacre::client
