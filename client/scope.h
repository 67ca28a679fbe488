// Leases of directories, and WRITE and SHARED leases of files, as the client holds them
// (proto/metadata.proto, Lease; held_leases.h, mds_calls.h).
//
// A Scope is one such lease, READ or WRITE, from its grant until it is given back. Knowledge that was gained
// under it points to it (Inode::covered) and is true as long as it is good: one word ends the trust in all of
// it, however much it is. Thread-safe.
//
// An answer of the MDS may be learned under a lease only if nothing has made it untrue on its way:
//  - another client's change: the MDS has the lease revoked first. So the lease must have been held when the
//    request was sent, or have come with the answer, and be good still;
//  - a change of this client's own: none of the inode may have been under way since the request was sent
//    (Inode::own_changes, changed). The answer to such a change says itself what is true afterwards, if no
//    other one of this client has met it there.
// The struct Learning holds what is noted for this before the request is sent.
//
// A change of this client's own does not take its lease, but it may take a file out from under it: a rename
// out of the directory, a removal, a second link. From the moment at which the MDS has done that, nobody
// announces changes of that file, and this client learns which file it was from the answer. So nothing that
// the lease covers is trusted while such a change is under way (BeginMove), be the lease older than the
// change or one that was granted since.
//
// A file's own lease covers that file alone, wherever it goes and whatever names it has. But this client's
// own change of a name of which it does not know what it means may change that file: until the answer says
// so, none that has a lease of its own is trusted (`unknown_moves`).
//
// Under WRITE this client may answer changes of what is covered before the MDS has done them
// (early_changes.h). A directory that it makes so is its own from the beginning: its Scope is there before
// the MDS has heard of the directory, and gets the name of its lease with the answer (Name). Until then the
// lease of the directory around it keeps everybody else out.
//
// SHARED of a file covers none of its attributes: others write to it as well. It says that the file keeps its
// objects, and is at least as long as is known here, and lets this client tell later what it has written.
//
// The kernel may keep answers, too, if they are covered by a lease of a directory that has been held for a
// while: for an eighth of that time, and at most for Options::kernel_cache (Promise). Before the MDS hears
// that a lease has ended, the last of these promises must have run out. So a directory that many clients
// change is never promised, and in one that changes now and then a change waits for an eighth of the time
// since the grant at most.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "proto/metadata.pb.h"

namespace nacre::client {

class Scope {
 public:
  // `since`: when it was taken over, as InodeTable::NextEvent counts. `quiet_since`: the time since when no
  // other client has been here; of a directory that this client makes, in the one around it, where everybody
  // has to come by. `moves`: how many changes that may take files out of the directory are under way
  // (Inode::moves).
  Scope(Fid directory, uint64_t lease_id, uint64_t event, Duration quiet, uint32_t moves)
      : of(directory), since(event), quiet_since(quiet), lease_(lease_id), moves_(moves) {}
  // WRITE of a file. `unknown_moves`: how many changes of this client's own are under way that take away
  // names of which it does not know what they mean.
  Scope(Fid file, uint64_t lease_id, uint64_t event,
        std::shared_ptr<const std::atomic<uint32_t>> unknown_moves)
      : of(file),
        since(event),
        quiet_since(0),
        lease_(lease_id),
        writes_(true),
        unknown_moves_(std::move(unknown_moves)) {}

  const Fid of;
  const uint64_t since;
  const Duration quiet_since;

  bool good() const { return good_; }
  void End() { good_ = false; }

  uint64_t lease() const { return lease_; }  // 0: the MDS has not said yet
  void Name(uint64_t lease_id) { lease_ = lease_id; }

  // Whether it is WRITE.
  bool writes() const { return writes_; }
  void AllowWrites() { writes_ = true; }

  // Whether it is SHARED.
  bool shares() const { return shares_; }
  void Share() {
    shares_ = true;
    writes_ = false;
  }
  proto::LeaseMode mode() const {
    if (shares_) return proto::LEASE_SHARED;
    return writes_ ? proto::LEASE_WRITE : proto::LEASE_READ;
  }

  bool of_file() const { return unknown_moves_ != nullptr; }

  // Whether what was learned of files under it is true.
  bool CoversFiles() const { return good() && !shares_ && (of_file() ? *unknown_moves_ : moves_) == 0; }
  void BeginMove() { moves_.fetch_add(1); }
  void EndMove() { moves_.fetch_sub(1); }

  // Until when the kernel may keep what is answered now: for `most` if it has been quiet here for long
  // enough, 0 in the first `quiet` of that. 0 as well if the lease ends, or a move begins, meanwhile: whoever
  // does that looks at `promised` afterwards, and finds what was promised before. A file's own lease promises
  // nothing: it is there to be given back soon.
  Duration Promise(Duration now, Duration quiet, Duration most);
  // The kernel keeps something that is covered now until then.
  void PromiseUntil(Duration time);
  // When the kernel has forgotten the last of what was promised.
  Duration promised() const { return promised_.load(); }

  // The kernel may have pages of this file as long as the lease is good. False: it has ended.
  bool NotePages(const Fid& fid);
  // Of which files it may.
  std::vector<Fid> paged();

  // Data of this file is cached here, and held back, as long as the lease is good (held_data.h). False: it
  // has ended.
  bool NoteData(const Fid& fid);
  // Of which files there may be some.
  std::vector<Fid> with_data();

  // Takes over what the kernel keeps, and which files have data here, under one that has ended: of a lease
  // that is held all the same, since its directory was forgotten for want of memory, or of an earlier lease
  // of the directory.
  void Inherit(Scope& ended);

 private:
  std::atomic<uint64_t> lease_;
  std::atomic<bool> good_{true};
  std::atomic<bool> writes_{false};
  std::atomic<bool> shares_{false};
  std::atomic<uint32_t> moves_{0};                                    // under way
  const std::shared_ptr<const std::atomic<uint32_t>> unknown_moves_;  // of a file's own lease; else null
  std::atomic<Duration> promised_{Duration(0)};
  std::mutex mutex_;
  std::set<Fid> paged_, with_data_;  // guarded by it
};

using ScopePtr = std::shared_ptr<Scope>;

struct Learning {
  uint64_t event = 0;             // InodeTable::NextEvent before the request was sent
  uint64_t reclaims = 0;          // HeldLeases::reclaims then: a Reclaim that does not name a lease ends it
  std::vector<uint64_t> granted;  // leases that came with the answer
  std::shared_ptr<void> present;  // leases that were given up are remembered as long as there is one of these
};

}  // namespace nacre::client
