#include "server/metadata/tables.h"

#include <absl/strings/escaping.h>
#include <sys/stat.h>

#include <cerrno>

#include "common/log.h"
#include "server/metadata/change_guard.h"
#include "server/metadata/name_hash.h"

namespace nacre::mds {
namespace {

std::string MakeUuid(Random& random) {
  uint64_t high = (random.Next() & ~uint64_t{0xf000}) | 0x4000;
  uint64_t low = (random.Next() >> 2) | (uint64_t{1} << 63);
  return absl::StrFormat("%08x-%04x-%04x-%04x-%012x", high >> 32, (high >> 16) & 0xffff, high & 0xffff,
                         low >> 48, low & 0xffffffffffffu);
}

Status NoEntry(const Fid& parent, std::string_view name) {
  return ErrnoError(ENOENT, absl::StrFormat("no entry \"%s\" in directory %s",
                                            absl::CHexEscape(AbslView(name)), parent.ToString()));
}

Entry ToEntry(const BucketEntry& entry, uint64_t hash) {
  return {entry.name, entry.fid, entry.type, hash | entry.index};
}

const BucketEntry* FindName(const Bucket& bucket, std::string_view name) {
  for (const BucketEntry& entry : bucket) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

// The lowest index that is free; -1 if there is none.
int FreeIndex(const Bucket& bucket) {
  for (int index = 0; index < 256; ++index) {
    bool taken = false;
    for (const BucketEntry& entry : bucket) taken = taken || entry.index == index;
    if (!taken) return index;
  }
  return -1;
}

}  // namespace

Task<StatusOr<std::unique_ptr<Tables>>> Tables::Open(KvStore& store, Random& random, WallTime now,
                                                     uint64_t record_bytes) {
  std::unique_ptr<Tables> tables(new Tables(store, record_bytes));
  auto first = store.Scan({}, {}, 1);
  CO_RETURN_IF_ERROR(first.status());
  if (first->empty()) CO_RETURN_IF_ERROR(co_await tables->Format(random, now));
  CO_RETURN_IF_ERROR(tables->Load());
  CO_RETURN_IF_ERROR(co_await tables->Upgrade());
  co_return tables;
}

Task<Status> Tables::Format(Random& random, WallTime now) {
  Superblock superblock;
  superblock.version = kFormatVersion;
  superblock.cluster_uuid = MakeUuid(random);
  for (uint64_t& part : superblock.hash_key) part = random.Next();
  Inode root;
  root.mode = S_IFDIR | 0755;
  root.nlink = 2;
  root.atime = root.mtime = root.ctime = root.btime = now;
  root.change = 1;
  root.parent = kRootFid;
  KvBatch batch;
  batch.Put(TableKey(Table::kSuperblock), EncodeSuperblock(superblock));
  batch.Put(FidKey(Table::kInode, kRootFid), EncodeInode(root));
  batch.Put(InodeCountKey(0), EncodeNumber(1));
  co_return co_await store_.Commit(std::move(batch));
}

Status Tables::Load() {
  auto superblock = store_.Get(TableKey(Table::kSuperblock));
  if (absl::IsNotFound(superblock.status())) {
    return absl::DataLossError(
        "the store is not empty but has no superblock: this is no MDT, or a damaged one");
  }
  RETURN_IF_ERROR(superblock.status());
  ASSIGN_OR_RETURN(superblock_, ParseSuperblock(*superblock));
  return inode_counter_.Load(store_);
}

// Records of an older version are read as they are. A program that knows that version alone would not
// understand what is written from now on, so the superblock makes it refuse the MDT.
Task<Status> Tables::Upgrade() {
  if (superblock_.version == kFormatVersion) co_return OkStatus();
  superblock_.version = kFormatVersion;
  KvBatch batch;
  batch.UseReserve();
  batch.Put(TableKey(Table::kSuperblock), EncodeSuperblock(superblock_));
  CO_RETURN_IF_ERROR(co_await store_.Commit(std::move(batch)));
  co_return co_await store_.Sync();
}

Status Tables::CheckOpen() const {
  return closed_ ? absl::UnavailableError("the metadata server is stopping") : OkStatus();
}

uint64_t Tables::Hash(std::string_view name) const { return NameHash(superblock_.hash_key, name); }

StatusOr<std::string> Tables::Get(std::string_view key) {
  RETURN_IF_ERROR(CheckOpen());
  return store_.Get(key);
}

StatusOr<std::vector<KvEntry>> Tables::Scan(std::string_view from, std::string_view to, size_t limit) {
  RETURN_IF_ERROR(CheckOpen());
  return store_.Scan(from, to, limit);
}

StatusOr<InodePtr> Tables::GetInode(const Fid& fid) {
  RETURN_IF_ERROR(CheckOpen());
  uint64_t ticket = 0;
  if (InodePtr cached = inodes_.Find(fid, &ticket)) return cached;
  auto data = store_.Get(FidKey(Table::kInode, fid));
  if (absl::IsNotFound(data.status())) {
    return ErrnoError(ENOENT, absl::StrCat("no inode ", fid.ToString()));
  }
  RETURN_IF_ERROR(data.status());
  ASSIGN_OR_RETURN(Inode inode, ParseInode(fid, *data));
  auto shared = std::make_shared<const Inode>(std::move(inode));
  inodes_.Insert(fid, shared, ticket);
  return shared;
}

StatusOr<uint64_t> Tables::HighestObject(uint64_t sequence) {
  RETURN_IF_ERROR(CheckOpen());
  auto last =
      store_.Last(FidKey(Table::kInode, Fid{sequence, 0, 0}), FidKey(Table::kInode, Fid{sequence + 1, 0, 0}));
  if (absl::IsNotFound(last.status())) return 0;
  RETURN_IF_ERROR(last.status());
  ByteReader key(std::string_view(last->key).substr(1));
  return key.ReadFid().object;
}

RecordCache<BucketId, Bucket>::Hooks Tables::BucketHooks() {
  const auto empty = std::make_shared<const Bucket>();
  RecordCache<BucketId, Bucket>::Hooks hooks;
  hooks.missing = [this, empty](const BucketId& id) { return complete_.Has(id.parent) ? empty : nullptr; };
  hooks.evicted = [this](const BucketId& id) {
    if (!stays_complete_) complete_.Remove(id.parent);
  };
  return hooks;
}

StatusOr<BucketPtr> Tables::GetBucket(const BucketId& id) {
  RETURN_IF_ERROR(CheckOpen());
  uint64_t ticket = 0;
  if (BucketPtr cached = buckets_.Find(id, &ticket)) return cached;
  auto data = store_.Get(EntryKey(id.parent, id.hash));
  auto bucket = std::make_shared<Bucket>();
  if (!absl::IsNotFound(data.status())) {
    RETURN_IF_ERROR(data.status());
    ASSIGN_OR_RETURN(*bucket, ParseBucket(*data));
  }
  buckets_.Insert(id, bucket, ticket);
  return bucket;
}

StatusOr<Entry> Tables::FindEntry(const Fid& parent, std::string_view name) {
  const uint64_t hash = Hash(name);
  ASSIGN_OR_RETURN(BucketPtr bucket, GetBucket({parent, hash}));
  const BucketEntry* entry = FindName(*bucket, name);
  if (entry == nullptr) return NoEntry(parent, name);
  return ToEntry(*entry, hash);
}

StatusOr<std::vector<Entry>> Tables::ListEntries(const Fid& parent, uint64_t cookie, size_t limit) {
  RETURN_IF_ERROR(CheckOpen());
  std::string from = EntryKey(parent, CookieHash(cookie));
  ASSIGN_OR_RETURN(auto found, store_.Scan(from, PrefixEnd(FidKey(Table::kEntry, parent)), limit + 1));
  std::vector<Entry> entries;
  for (const KvEntry& kv : found) {
    ByteReader key(std::string_view(kv.key).substr(17));
    uint64_t hash = key.Big<uint64_t>();
    ASSIGN_OR_RETURN(Bucket bucket, ParseBucket(kv.value));
    std::sort(bucket.begin(), bucket.end(), [](auto& a, auto& b) { return a.index < b.index; });
    for (const BucketEntry& entry : bucket) {
      if (cookie != 0 && (hash | entry.index) <= cookie) continue;
      if (entries.size() == limit) return entries;
      entries.push_back(ToEntry(entry, hash));
    }
  }
  return entries;
}

StatusOr<std::string> Tables::NameOf(const Fid& parent, uint64_t cookie) {
  ASSIGN_OR_RETURN(std::string data, Get(EntryKey(parent, CookieHash(cookie))));
  ASSIGN_OR_RETURN(Bucket bucket, ParseBucket(data));
  for (const BucketEntry& entry : bucket) {
    if (entry.index == CookieIndex(cookie)) return entry.name;
  }
  return ErrnoError(ENOENT,
                    absl::StrFormat("no entry with cookie %x in directory %s", cookie, parent.ToString()));
}

Task<Status> Tables::Sync() {
  CO_RETURN_IF_ERROR(CheckOpen());
  unsynced_ = false;
  Status status = co_await store_.Sync();
  if (!status.ok()) unsynced_ = true;
  co_return status;
}

Task<Status> Tables::CommitBatch(KvBatch batch) {
  if (grants_reserve_) batch.UseReserve();
  co_return co_await CommitToStore(std::move(batch));
}

Task<Status> Tables::CommitToStore(KvBatch batch) {
  CO_RETURN_IF_ERROR(CheckOpen());
  Status status = co_await store_.Commit(std::move(batch));
  unsynced_ = true;  // behind the commit: a Sync that began before it may not have it
  co_return status;
}

Task<Status> Tables::CommitCounted(KvBatch batch, int64_t inode_delta) {
  if (inode_delta == 0) co_return co_await CommitToStore(std::move(batch));
  InodeCounter::Slot slot = co_await inode_counter_.Take();
  const int64_t value = slot.value() + inode_delta;
  batch.Put(InodeCountKey(slot.number()), EncodeNumber(static_cast<uint64_t>(value)));
  Status status = co_await CommitToStore(std::move(batch));
  if (status.ok()) slot.Set(value);
  co_return status;
}

Task<Status> Tables::Commit(Transaction* transaction, For whom) {
  CO_RETURN_IF_ERROR(CheckOpen());
  const bool takes_reserve = whom == For::kServer || transaction->FreesSpace();
  if (takes_reserve && grants_reserve_) transaction->batch().UseReserve();
  BeginWrite(*transaction);
  Status status = co_await CommitCounted(transaction->TakeBatch(), transaction->InodesAdded());
  EndWrite(*transaction, status.ok());
  co_return status;
}

void Tables::BeginWrite(const Transaction& transaction) {
  for (const auto& loaded : transaction.inodes_) {
    if (!loaded->dirty) continue;
    inodes_.BeginWrite(loaded->inode.fid);
    if (loaded->created && S_ISDIR(loaded->inode.mode)) complete_.Add(loaded->inode.fid);
  }
  for (const auto& loaded : transaction.buckets_) {
    if (loaded->dirty) buckets_.BeginWrite(loaded->id);
  }
}

void Tables::EndWrite(const Transaction& transaction, bool done) {
  for (const auto& loaded : transaction.inodes_) {
    if (!loaded->dirty) continue;
    const bool there = done && !loaded->erased;
    if (!there && S_ISDIR(loaded->inode.mode)) complete_.Remove(loaded->inode.fid);
    inodes_.EndWrite(loaded->inode.fid, there ? std::make_shared<const Inode>(loaded->inode) : nullptr);
  }
  for (const auto& loaded : transaction.buckets_) {
    if (!loaded->dirty) continue;
    if (!done) complete_.Remove(loaded->id.parent);  // it may be in the store
    buckets_.EndWrite(loaded->id, done ? std::make_shared<const Bucket>(loaded->bucket) : nullptr);
  }
}

StatusOr<Inode*> Transaction::Load(const Fid& fid) {
  for (auto& loaded : inodes_) {
    if (loaded->inode.fid == fid && !loaded->erased) return &loaded->inode;
  }
  ASSIGN_OR_RETURN(InodePtr inode, tables_.GetInode(fid));
  inodes_.push_back(std::make_unique<Loaded>());
  inodes_.back()->inode = *inode;
  inodes_.back()->covered_by = CoveringDirectory(*inode);
  return &inodes_.back()->inode;
}

Transaction::Loaded* Transaction::Slot(const Inode* inode) {
  for (auto& loaded : inodes_) {
    if (&loaded->inode == inode) return loaded.get();
  }
  LogError("a transaction was given an inode %s that it has not loaded", inode->fid.ToString());
  std::abort();
}

void Transaction::Dirty(Inode* inode) {
  Loaded* loaded = Slot(inode);
  if (loaded->dirty) return;
  loaded->dirty = true;
  ++inode->change;
}

Inode* Transaction::Create(Inode inode) {
  inodes_.push_back(std::make_unique<Loaded>());
  Loaded& loaded = *inodes_.back();
  loaded.inode = std::move(inode);
  loaded.inode.change = 1;
  loaded.dirty = loaded.created = true;
  return &loaded.inode;
}

void Transaction::Erase(Inode* inode) {
  Loaded* loaded = Slot(inode);
  loaded->dirty = loaded->erased = true;
}

StatusOr<Transaction::LoadedBucket*> Transaction::LoadBucket(const Fid& parent, uint64_t hash) {
  const BucketId id{parent, hash};
  for (auto& loaded : buckets_) {
    if (loaded->id == id) return loaded.get();
  }
  ASSIGN_OR_RETURN(BucketPtr bucket, tables_.GetBucket(id));
  auto loaded = std::make_unique<LoadedBucket>();
  loaded->id = id;
  loaded->bucket = *bucket;
  loaded->existed = !bucket->empty();
  buckets_.push_back(std::move(loaded));
  return buckets_.back().get();
}

StatusOr<Entry> Transaction::Find(const Fid& parent, std::string_view name) {
  uint64_t hash = tables_.Hash(name);
  ASSIGN_OR_RETURN(LoadedBucket * loaded, LoadBucket(parent, hash));
  const BucketEntry* entry = FindName(loaded->bucket, name);
  if (entry == nullptr) return NoEntry(parent, name);
  return ToEntry(*entry, hash);
}

StatusOr<uint64_t> Transaction::AddEntry(const Fid& parent, std::string_view name, const Fid& fid,
                                         uint8_t type) {
  uint64_t hash = tables_.Hash(name);
  ASSIGN_OR_RETURN(LoadedBucket * loaded, LoadBucket(parent, hash));
  int index = FreeIndex(loaded->bucket);
  if (index < 0) {
    return ErrnoError(ENOSPC, absl::StrFormat("directory %s has 256 names with the hash of \"%s\" already",
                                              parent.ToString(), absl::CHexEscape(AbslView(name))));
  }
  loaded->bucket.push_back({static_cast<uint8_t>(index), type, fid, std::string(name)});
  loaded->dirty = true;
  ++entries_added_;
  return hash | static_cast<uint64_t>(index);
}

Status Transaction::RemoveEntry(const Fid& parent, std::string_view name) {
  uint64_t hash = tables_.Hash(name);
  ASSIGN_OR_RETURN(LoadedBucket * loaded, LoadBucket(parent, hash));
  size_t removed =
      std::erase_if(loaded->bucket, [&](const BucketEntry& entry) { return entry.name == name; });
  if (removed == 0) return NoEntry(parent, name);
  loaded->dirty = true;
  ++entries_removed_;
  return OkStatus();
}

std::vector<Touched> Transaction::Changes() const {
  std::vector<Touched> changes;
  for (const auto& loaded : inodes_) {
    if (!loaded->dirty || loaded->created) continue;
    const Inode& inode = loaded->inode;
    Touched change{loaded->covered_by, S_ISREG(inode.mode) ? inode.fid : Fid{}, inode.nlink == 0};
    changes.push_back(change);
    change.directory = CoveringDirectory(inode);
    if (change.directory != loaded->covered_by) changes.push_back(change);
  }
  return changes;
}

bool Transaction::FreesSpace() const {
  bool frees = entries_removed_ > 0;
  if (entries_added_ > 0 && entries_added_ >= entries_removed_) return false;
  for (const auto& loaded : inodes_) {
    if (loaded->created && !loaded->erased) return false;
    frees = frees || loaded->erased;
  }
  for (const KvBatch::Op& op : batch_.ops()) {
    const Table table = static_cast<Table>(op.key[0]);
    if (!op.erase && (table == Table::kXattr || table == Table::kBody)) return false;
    frees = frees || op.erase || table == Table::kDestroyAt;
  }
  return frees;
}

KvBatch Transaction::TakeBatch() {
  KvBatch batch = std::move(batch_);
  for (const auto& loaded : inodes_) {
    if (!loaded->dirty) continue;
    std::string key = FidKey(Table::kInode, loaded->inode.fid);
    if (!loaded->erased) {
      batch.Put(std::move(key), EncodeInode(loaded->inode));
    } else if (!loaded->created) {
      batch.Erase(std::move(key));
    }
  }
  for (auto& loaded : buckets_) {
    if (!loaded->dirty) continue;
    std::string key = EntryKey(loaded->id.parent, loaded->id.hash);
    if (!loaded->bucket.empty()) {
      batch.Put(std::move(key), EncodeBucket(loaded->bucket));
    } else if (loaded->existed) {
      batch.Erase(std::move(key));
    }
  }
  return batch;
}

int64_t Transaction::InodesAdded() const {
  int64_t added = 0;
  for (const auto& loaded : inodes_) {
    if (loaded->dirty && loaded->created != loaded->erased) added += loaded->created ? 1 : -1;
  }
  return added;
}

Task<Status> SettleRecords(Tables& tables, Table table, std::string what, SettleRecord settle) {
  for (KvPages<Tables> pages(tables, TableKey(table)); pages.more();) {
    CO_ASSIGN_OR_RETURN(std::vector<KvEntry> page, pages.Next());
    KvBatch batch;
    for (const KvEntry& record : page) {
      KvBatch changes;
      Status settled = co_await settle(record, &changes);
      if (settled.ok())
        batch.Append(std::move(changes));
      else
        LogError("%s %s stays: %s; run nacre doctor", what,
                 absl::BytesToHexString(AbslView(record.key).substr(1)), std::string(settled.message()));
    }
    if (!batch.empty()) CO_RETURN_IF_ERROR(co_await tables.CommitBatch(std::move(batch)));
  }
  co_return OkStatus();
}

}  // namespace nacre::mds
