// One copy of the MDT: a local store with its position in the history, and what it knows of itself. The
// records of this class are under keys that begin with kOwnPrefix; everything else is the MDT's.
//
// The position and the history lie in the same batch as the change that they speak of, so whatever a crash or
// a loss of power takes, they say what is left. The store's own record (StoreRecord in proto/copies.proto) is
// on stable storage before anything relies on it.
//
// Thread-safe, but for this: one Apply, Install or Begin at a time.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "common/task.h"
#include "proto/copies.pb.h"
#include "server/kv/kv_store.h"
#include "server/replication/group_log.h"
#include "server/replication/position.h"

namespace nacre::replication {

inline constexpr char kOwnPrefix[] = "\xff";
inline constexpr char kPositionKey[] = "\xffposition";
inline constexpr char kHistoryKey[] = "\xffhistory";
inline constexpr char kStoreKey[] = "\xffstore";  // not copied to others

class StoreCopy {
 public:
  // `boot` names this boot of the machine. DATA_LOSS, FAILED_PRECONDITION: the records are damaged, or of a
  // later version.
  static Task<StatusOr<std::unique_ptr<StoreCopy>>> Open(KvStore* store, std::string boot,
                                                         uint64_t log_bytes);

  // FAILED_PRECONDITION: there is something in the store already.
  static Task<Status> MarkBlank(KvStore* store);

  // Zero while the content is a mixture of two states.
  Position position() const;
  History history() const;
  // The filesystem whose MDT this is; empty: none yet.
  std::string filesystem() const;
  // Whether there is nothing of an MDT in it, and whether it was made to be filled by others.
  StatusOr<bool> Empty() const;
  bool made_blank() const;
  bool installing() const;
  // Whether a loss of power may have taken what it had said it has.
  bool may_lack() const;

  KvStore& store() { return store_; }
  GroupLog& log() { return log_; }

  // Makes the changes of a group; its previous position is the store's.
  Task<Status> Apply(GroupPtr group);

  // The first group of a new epoch, which has the history with it and nothing else.
  GroupPtr FirstOf(uint64_t epoch) const;

  // A part of another store's content (InstallPart in proto/copies.proto), in their order;
  // FAILED_PRECONDITION: another one is expected. A repeated one is done again.
  Task<Status> Install(proto::InstallPart part, std::string filesystem);

  Task<Status> Sync() { return store_.Sync(); }

  // The store belongs to this filesystem from now on; empty: to none.
  Task<Status> NoteFilesystem(std::string filesystem);
  // And it has everything that it is said to have.
  Task<Status> NoteWhole(std::string filesystem);
  // At the end, after which nothing is applied.
  Task<Status> EndClean();

 private:
  StoreCopy(KvStore& store, std::string boot, uint64_t log_bytes)
      : store_(store), boot_(std::move(boot)), log_(log_bytes) {}

  Status Load();
  proto::StoreRecord own() const;
  Task<Status> StoreOwn(proto::StoreRecord record);
  Status CheckPart(const proto::InstallPart& part) const;  // mutex_ held
  Task<Status> Replace(std::string from, std::string to, proto::InstallPart part);
  Task<Status> FinishInstall(std::string filesystem);

  KvStore& store_;
  const std::string boot_;
  GroupLog log_;

  mutable std::mutex mutex_;
  Position position_;
  History history_;
  proto::StoreRecord own_;
  bool may_lack_ = false;
  uint64_t installing_ = 0;  // the number of the copy of which parts are expected
  std::string installed_;    // up to this key; what the next part begins with
  std::string part_;         // what the newest one began with
};

// The content of a store, in parts that Install takes, as it is when this is made.
class StoreParts {
 public:
  // `copy`: a number that no other copy has. `instead_of`: the position of the store that takes the parts.
  static StatusOr<std::unique_ptr<StoreParts>> Take(KvStore& store, uint64_t copy, Position instead_of);

  // The next part; after the last one, nothing more is asked for.
  StatusOr<proto::InstallPart> Next();
  Position position() const { return position_; }

 private:
  StoreParts(std::unique_ptr<KvSnapshot> snapshot, uint64_t copy, Position instead_of)
      : snapshot_(std::move(snapshot)), copy_(copy), instead_of_(instead_of) {}

  const std::unique_ptr<KvSnapshot> snapshot_;
  const uint64_t copy_;
  const Position instead_of_;
  Position position_;
  std::string next_;
  bool first_ = true;
};

}  // namespace nacre::replication
