// Changes of names and attributes that are answered before the MDS has done them, under WRITE of the
// directories that they touch (docs/decisions/0022-metadata-write-behind.md, 0062-write-leases.md); and the
// order in which they, and all else that is answered early, get into the queue.
//
// Each Try… function decides from what is known here whether the outcome is certain. If so, it changes what
// is known exactly as the MDS will change it, change numbers included, and pushes the mutation; all of that
// with the order held, so that the queue has the order in which the changes were made. If not, it changes
// nothing, and the caller asks the MDS, with what the request touches marked by Settling (settling.h).
//
// Thread-safe. The arguments of the constructor must outlive it, except that the queue, whose answers come in
// here, has to go first.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "client/caller.h"
#include "client/entrance.h"
#include "client/filesystem.h"
#include "client/handles.h"
#include "client/held_leases.h"
#include "client/inode.h"
#include "client/inode_table.h"
#include "client/kernel_cache.h"
#include "client/mdt_room.h"
#include "client/metadata_queue.h"
#include "client/own_fids.h"
#include "client/session.h"

namespace nacre::client {

// A change that waits for the MDS's answer.
struct EarlyChange {
  InodePtr inode;       // was made, removed or changed
  uint64_t number = 0;  // attr.change after it
  InodePtr directory;   // null: no entry changes
  std::string name;
  InodePtr new_directory;  // rename
  std::string new_name;
  InodePtr replaced;
  ScopePtr born;  // of a directory that was made under WRITE of the one around it
};

struct EarlyRename {
  InodePtr from, to;  // directories
  std::string name, new_name;
  InodePtr source, target;  // target null: the new name is free
};

class EarlyChanges {
 public:
  struct Hooks {
    std::function<void(InodePtr directory, ScopePtr scope)> give_back;  // a lease that has ended here
    std::function<void(Inode& inode)> discard;  // data of a file that nobody can come by any more
  };

  EarlyChanges(const Environment& environment, const MdtRoom& room, InodeTable& inodes, HeldLeases& leases,
               const Entrance& entrance, Session& session, MetadataQueue& queue, Handles& handles,
               KernelCache& kernel, Hooks hooks);

  // --- whether there are any ---

  // The MDS has let this client in; `fresh`: in a new session.
  void OnConnected(const proto::ConnectReply& reply, bool fresh, uint64_t epoch);
  // Sessions of earlier epochs have ended.
  void EndBefore(uint64_t epoch);
  // The MDS's word on whether changes may be answered early.
  void Allow(bool allowed) { allowed_ = allowed; }
  // Whether any may be, by that word and by the clock.
  bool MayAnswer() const { return allowed_ && entrance_.LeasesGood(); }

  // --- their order; whoever decides that something may be answered early holds it until that is pushed ---

  using Order = std::unique_lock<std::mutex>;
  // To be locked before any other mutex. Changes that were answered before are in the queue.
  [[nodiscard]] Order TakeOrder() { return Order(order_); }
  // Returns when those who found a lease good before it ended have their changes in the queue.
  void AwaitOrder() { TakeOrder().unlock(); }
  // With the order and the mutex of the inode held: whether a change of it, and of its names, may be answered
  // before the MDS has done it: what is known of it is true, and nothing else changes it.
  bool MayChange(const Inode& inode) const;
  // With the order held: changes at the MDS begin or end in a directory of which it is not known here what
  // the names mean that they change.
  void BeginUnknown(const Fid& directory) { changing_unknown_.insert(directory); }
  void EndUnknown(const Fid& directory) { changing_unknown_.erase(changing_unknown_.find(directory)); }
  // With the order held: pushes what the inode has here already, with this change number. If the MDS counts
  // differently when it has come to it, something is not known here, and it is asked for the attributes
  // again; `then` has the reply.
  void PushTold(const InodePtr& inode, uint64_t change, proto::MetadataRequest request,
                MetadataQueue::Done then);

  // --- changes; null, false: the outcome is not certain, ask the MDS ---

  // `opened`, if not null: a handle of what is made, a file, by the flags that it has.
  InodePtr TryMake(const Caller& caller, const InodePtr& directory, const std::string& name,
                   proto::MetadataRequest request, HandlePtr* opened = nullptr, int flags = 0);
  bool TryRemove(const Caller& caller, const InodePtr& directory, const std::string& name,
                 proto::MetadataRequest request);
  bool TryRename(const Caller& caller, const InodePtr& from, const InodePtr& to,
                 proto::MetadataRequest request);
  bool TrySetattr(const Caller& caller, const InodePtr& inode, const SetAttributes& set,
                  proto::MetadataRequest request);

  // --- for whoever wants to know what has been answered early (Seen) ---

  // MetadataQueue::pushed at the last of them.
  uint64_t answered() const { return answered_; }
  // How often bytes of files were, under leases of directories.
  uint64_t writes() const { return writes_; }
  void CountWrite() { ++writes_; }

 private:
  friend class Settling;
  using Reply = StatusOr<proto::MetadataReply>;

  bool MayChangeEntry(const Inode& directory, const Caller& caller) const;
  static bool MayLoseName(const Inode& inode);
  HandlePtr OpenMade(const Caller& caller, const InodePtr& made, int flags);
  void ForgetRemoved(Inode& directory, Inode& removed);
  std::optional<EarlyRename> FindRename(const InodePtr& from, const InodePtr& to,
                                        const proto::Rename& rename);
  bool MayRename(const Caller& caller, const EarlyRename& rename);
  static void MoveCover(const EarlyRename& rename);
  static bool ApplyRename(const EarlyRename& rename, const proto::Time& now, bool* keep_open);

  void Push(const Caller& caller, proto::MetadataRequest request, EarlyChange change);
  void End(const EarlyChange& change, const Reply& reply);
  void NameBorn(const EarlyChange& change, const Reply& reply);
  void RetireIfGone(Inode& inode);
  void Distrust(const EarlyChange& change, const Status& why);

  const Environment& environment_;
  const MdtRoom& room_;
  InodeTable& inodes_;
  HeldLeases& leases_;
  const Entrance& entrance_;
  Session& session_;
  MetadataQueue& queue_;
  Handles& handles_;
  KernelCache& kernel_;
  const Hooks hooks_;

  std::atomic<bool> allowed_{false};
  std::atomic<uint64_t> answered_{0};
  std::atomic<uint64_t> writes_{0};

  std::mutex order_;  // taken before all others; guards what follows
  OwnFids own_fids_;
  std::multiset<Fid> changing_unknown_;
};

}  // namespace nacre::client
