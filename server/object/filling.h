// Brings a joining member of an OST's chain up to what this store, the head, has: walks through all objects
// in the order of their ids, and copies those that the member has in another version.
//
// While it does so the store goes on changing. Objects that the walk has passed are *covered*: their changes
// are handed on to the member as to any other. Those that it has yet to come to are not. Of the object that
// is being copied the changes of those blocks are handed on that have been copied. An object that comes into
// being is covered from its first change on. All this is decided, and the walk moves on, while no change of
// the object is being committed (Journal::HoldChanges).
//
// Interrupted by another epoch of the chain, in which the member joins still, it goes through the objects
// again, but those that are covered stay so. Where the member has gone and comes again, another one begins
// anew, and finds that most versions agree. Thread-safe.
#pragma once

#include <absl/container/flat_hash_set.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "server/object/chain.h"

namespace nacre::ost {

class Filling : public std::enable_shared_from_this<Filling> {
 public:
  Filling(ServerCore* core, ObjectStore* store, Sessions* sessions, Chain* chain,
          std::shared_ptr<ChainLink> link, proto::ChainMember member)
      : core_(core),
        store_(store),
        sessions_(sessions),
        chain_(chain),
        link_(std::move(link)),
        member_(std::move(member)) {}

  const std::shared_ptr<ChainLink>& link() const { return link_; }
  const proto::ChainMember& member() const { return member_; }

  // Runs until the member is in sync, has been given up, or does not join any more.
  static Task<void> Run(std::shared_ptr<ServerCore> core, std::shared_ptr<Filling> filling);

  // Whether changes are handed on to the member: not before it has been reached, so that nobody waits for one
  // that cannot be. Becomes true while no change is under way.
  bool takes_changes() const { return takes_changes_; }

  // How much of an object's changes the member gets. To be asked while the object's changes are held;
  // `made`: this one brings it into being.
  struct Covered {
    bool all = false;
    bool partly = false;
    uint64_t blocks = 0;  // partly: those before this one
  };
  Covered CoverageOf(const ObjectId& id, bool made);

 private:
  using Listed = std::deque<proto::ListedObject>;  // the member's objects that the walk has yet to come to

  Task<Status> Fill();
  Task<Status> Join();
  Task<Status> Begin();
  Task<Status> TeachSessions();
  Task<Status> TeachGrowth();
  Task<Status> Walk();
  Task<Status> Visit(ObjectId id, std::optional<ObjectVersion> there);
  // Null: there is nothing to copy (any more).
  Task<StatusOr<std::shared_ptr<ObjectState>>> BeginCopy(ObjectId id, std::optional<ObjectVersion> there);
  Task<Status> CopyBlocks(ObjectState* object, uint64_t from, uint64_t first, uint64_t to,
                          ObjectStore::BadBlocks bad);
  Task<StatusOr<bool>> FinishCopy(ObjectState* object, uint64_t copied);
  Task<Status> Remove(ObjectId id);
  Task<StatusOr<Listed>> ListThere(std::optional<ObjectId> after, bool* end);
  Task<StatusOr<proto::ObjectReply>> Send(proto::ObjectRequest request, std::vector<MemorySpan> memory = {});
  Task<Status> KeepToRate(uint64_t bytes);
  void Pass(const ObjectId& id);
  bool Covers(const ObjectId& id) const;   // mutex_ held
  bool Follows(const ObjectId& id) const;  // Covers
  bool Ahead(const ObjectId& id) const;

  ServerCore* const core_;
  ObjectStore* const store_;
  Sessions* const sessions_;
  Chain* const chain_;
  const std::shared_ptr<ChainLink> link_;
  const proto::ChainMember member_;
  std::atomic<bool> takes_changes_ = false;
  Duration began_{0};
  uint64_t copied_bytes_ = 0;

  mutable std::mutex mutex_;
  std::optional<ObjectId> passed_;  // this one and all before it are covered
  bool passed_all_ = false;
  absl::flat_hash_set<ObjectId> ahead_;  // covered though the walk has yet to come to them
  std::optional<ObjectId> copying_;
  uint64_t copied_ = 0;  // of that one: the blocks before this one
};

}  // namespace nacre::ost
