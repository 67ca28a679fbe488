// The MDT's tables over a KvStore: typed reads, and transactions that become one batch.
//
// Tables is thread-safe. A Transaction belongs to one coroutine, which holds the locks (fid_locks.h) of every
// inode that it loads for a change, and of the directory of every entry that it touches. Errors: ENOENT for
// what is not there, DATA_LOSS for damaged records, UNAVAILABLE after Close.
#pragma once

#include <absl/functional/any_invocable.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/random.h"
#include "server/kv/kv_pages.h"
#include "server/kv/kv_store.h"
#include "server/kv/record_cache.h"
#include "server/metadata/complete_directories.h"
#include "server/metadata/inode_counter.h"
#include "server/metadata/keys.h"
#include "server/metadata/records.h"

namespace nacre::mds {

class Transaction;

using InodePtr = std::shared_ptr<const Inode>;
using BucketPtr = std::shared_ptr<const Bucket>;

struct Entry {
  std::string name;
  Fid fid;
  uint8_t type = 0;
  uint64_t cookie = 0;
};

// Something that a change changes, by whose leases cover it (change_guard.h).
struct Touched {
  Fid directory;         // whose lease covers it; none does
  Fid file;              // it is this regular file, of which somebody may have WRITE; none
  bool removed = false;  // the file loses its last name
};

// Opened once per process.
class Tables {
 public:
  // Formats an empty store; gives one of an older version the present one. Inodes and names may take
  // `record_bytes` beside the store.
  static Task<StatusOr<std::unique_ptr<Tables>>> Open(KvStore& store, Random& random, WallTime now,
                                                      uint64_t record_bytes);

  StatusOr<InodePtr> GetInode(const Fid& fid);
  // Of the inodes whose FIDs have this sequence; 0: there is none.
  StatusOr<uint64_t> HighestObject(uint64_t sequence);
  StatusOr<BucketPtr> GetBucket(const BucketId& id);  // empty: no entry has the hash
  StatusOr<Entry> FindEntry(const Fid& parent, std::string_view name);
  // Entries behind the cookie in the order of their cookies; fewer than `limit`: the directory's end.
  StatusOr<std::vector<Entry>> ListEntries(const Fid& parent, uint64_t cookie, size_t limit);
  StatusOr<std::string> NameOf(const Fid& parent, uint64_t cookie);
  StatusOr<std::string> Get(std::string_view key);
  StatusOr<std::vector<KvEntry>> Scan(std::string_view from, std::string_view to, size_t limit);

  // The caller keeps its locks until the commit has returned: until then nobody else may commit what the
  // transaction has loaded.
  //
  // Here it is decided what a full MDT still takes, out of the store's reserve: everything that the server
  // does on its own account (sessions, counters, fences, what is half done and to be finished), and what a
  // client asks for if it frees space. Else a full MDT could neither be started nor be emptied.
  enum class For { kServer, kClient };
  void PlantNoReserve() { grants_reserve_ = false; }  // MetadataOptions
  void PlantStaysComplete() { stays_complete_ = true; }
  Task<Status> Commit(Transaction* transaction, For whom = For::kServer);
  Task<Status> CommitBatch(KvBatch batch);  // of what is neither inode nor entry: the server's own
  Task<Status> Sync();
  bool HasUnsynced() const { return unsynced_; }

  const Superblock& superblock() const { return superblock_; }
  uint64_t Hash(std::string_view name) const;
  uint64_t InodeCount() const { return inode_counter_.Sum(); }

  // From now on nothing reaches the store: what still runs fails with UNAVAILABLE.
  void Close() { closed_ = true; }

 private:
  static constexpr size_t kFileBytes = 650;  // some 400 for the inode of a file and 250 for its name

  Tables(KvStore& store, uint64_t record_bytes)
      : store_(store),
        inodes_(record_bytes / kFileBytes),
        buckets_(record_bytes / kFileBytes, BucketHooks()) {}
  RecordCache<BucketId, Bucket>::Hooks BucketHooks();
  Task<Status> Format(Random& random, WallTime now);
  Status Load();
  Task<Status> Upgrade();
  Status CheckOpen() const;
  void BeginWrite(const Transaction& transaction);
  void EndWrite(const Transaction& transaction, bool done);
  Task<Status> CommitCounted(KvBatch batch, int64_t inode_delta);
  Task<Status> CommitToStore(KvBatch batch);

  KvStore& store_;
  bool grants_reserve_ = true;
  bool stays_complete_ = false;
  std::atomic<bool> closed_{false};
  std::atomic<bool> unsynced_{true};  // something may have been committed since the last Sync began
  Superblock superblock_;
  RecordCache<Fid, Inode> inodes_;
  CompleteDirectories complete_;
  RecordCache<BucketId, Bucket> buckets_;
  InodeCounter inode_counter_;
};

class Transaction {
 public:
  explicit Transaction(Tables& tables) : tables_(tables) {}
  Transaction(const Transaction&) = delete;

  // The inode as this transaction has it. The pointer is good as long as the transaction.
  StatusOr<Inode*> Load(const Fid& fid);
  // To be written; its change number rises (once a transaction).
  void Dirty(Inode* inode);
  Inode* Create(Inode inode);
  void Erase(Inode* inode);  // with its xattrs and body

  StatusOr<Entry> Find(const Fid& parent, std::string_view name);
  // The new entry's cookie. The name must be new there.
  StatusOr<uint64_t> AddEntry(const Fid& parent, std::string_view name, const Fid& fid, uint8_t type);
  Status RemoveEntry(const Fid& parent, std::string_view name);

  KvBatch& batch() { return batch_; }

  // Returns the inodes that it changes, with the directories whose leases cover them before the change and
  // after it; none that it makes.
  std::vector<Touched> Changes() const;

  // It takes something away and adds nothing: neither an inode, nor a name, nor bytes of a client's.
  bool FreesSpace() const;

 private:
  friend class Tables;
  struct Loaded {
    Inode inode;
    Fid covered_by;  // CoveringDirectory when it was loaded
    bool dirty = false, created = false, erased = false;
  };
  struct LoadedBucket {
    BucketId id;
    Bucket bucket;
    bool dirty = false, existed = false;
  };

  Loaded* Slot(const Inode* inode);
  StatusOr<LoadedBucket*> LoadBucket(const Fid& parent, uint64_t hash);
  KvBatch TakeBatch();
  int64_t InodesAdded() const;  // below zero: taken away

  Tables& tables_;
  std::vector<std::unique_ptr<Loaded>> inodes_;
  std::vector<std::unique_ptr<LoadedBucket>> buckets_;
  int entries_added_ = 0, entries_removed_ = 0;
  KvBatch batch_;
};

// Works off the records that a crash, or an earlier version of this program, has left in a table. Of each one
// `settle` decides what becomes of it, and adds the changes for that, its removal among them, to the batch;
// those of a page are committed together. Where it returns an error, as for a record that cannot be read,
// nothing of what it added is committed: the error is logged, the record stays, and the others have their
// turn all the same. `what` names a record in the log. Fails with the store alone.
using SettleRecord = absl::AnyInvocable<Task<Status>(const KvEntry& record, KvBatch* batch)>;
Task<Status> SettleRecords(Tables& tables, Table table, std::string what, SettleRecord settle);

}  // namespace nacre::mds
