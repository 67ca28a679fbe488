#include "server/kv/rocks_kv.h"

#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/perf_level.h>
#include <rocksdb/write_batch.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>

#include "common/clock.h"
#include "common/log.h"
#include "server/kv/commit_queue.h"
#include "server/kv/flusher.h"
#include "server/kv/own_thread.h"
#include "server/kv/rocks_options.h"

namespace nacre {
namespace {

// Between two looks at the filesystem's free space while there is plenty: others may fill the disk as well.
constexpr std::chrono::milliseconds kSpaceCheckEvery{1};
constexpr uint64_t kToldAtMost = 1 << 20;  // bytes of changes that clients may think are done
constexpr std::chrono::seconds kReopenEvery{1};
constexpr uint64_t kLowSpace = 4 << 20;  // beyond the reserve: from here on every commit looks
constexpr uint64_t kMuch = 32 << 10;     // bytes of one write

rocksdb::Slice ToSlice(std::string_view text) { return {text.data(), text.size()}; }

uint64_t FreeBytes(const struct statvfs& fs) { return uint64_t{fs.f_bavail} * fs.f_frsize; }

bool Mentions(const std::string& text, std::string_view what) { return text.find(what) != std::string::npos; }

// RocksDB counts every comparison of two keys, in variables of the thread that nobody here reads: a twentieth
// of all that a commit takes. This is for the thread that calls.
void CountNothing() { rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable); }

// RocksDB reports errno only inside its messages.
Status FromRocks(const rocksdb::Status& status, const std::string& directory) {
  if (status.ok()) return OkStatus();
  if (status.IsNotFound()) return ErrnoError(ENOENT, "no such key");
  std::string text = status.ToString();
  if (status.IsCorruption()) {
    return absl::DataLossError(absl::StrCat("the database in ", directory, " is damaged: ", text,
                                            "; restore the named file from a copy of the directory"));
  }
  if (status.IsNoSpace() || Mentions(text, "No space left")) {
    return ErrnoError(ENOSPC, absl::StrCat("the disk under ", directory, " is full: ", text));
  }
  if (Mentions(text, "lock hold by current process") || Mentions(text, "While lock file")) {
    return ErrnoError(EBUSY,
                      absl::StrCat("the database in ", directory,
                                   " is open in another process; only one server may use a directory"));
  }
  if (Mentions(text, "Read-only file system")) {
    return ErrnoError(EROFS, absl::StrCat("the disk under ", directory, " is mounted read-only: ", text));
  }
  if (Mentions(text, "Permission denied")) {
    return ErrnoError(EACCES, absl::StrCat("no permission in ", directory, ": ", text));
  }
  return ErrnoError(EIO, absl::StrCat("database in ", directory, ": ", text));
}

// A snapshot that RocksDB has given out. Null once it has been given back, which is before the database
// closes.
struct HeldSnapshot {
  std::atomic<const rocksdb::Snapshot*> at{nullptr};
};

// RocksDB's own ways out of an error are not used: they may wait for ever for a flush that has failed, and
// they may go on with a log that could not be written, which ends the process. After an error the database is
// only read; once the disk has room it is closed and opened again.
class RocksKv : public KvStore {
 public:
  RocksKv(std::string directory, RocksKvOptions options)
      : directory_(std::move(directory)), options_(options) {}

  Status Open() {
    std::unique_lock open(open_);
    RETURN_IF_ERROR(OpenLocked());
    if (!options_.read_only) flusher_ = std::make_unique<Flusher>([this] { return SyncLog(); });
    return OkStatus();
  }

  ~RocksKv() override {
    writer_.reset();
    flusher_.reset();
    CloseLocked();
  }

  StatusOr<std::string> Get(std::string_view key) override {
    std::shared_lock open(open_);
    RETURN_IF_ERROR(CheckOpen());
    CountNothing();
    std::string value;
    rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), ToSlice(key), &value);
    if (!status.ok()) return FromRocks(status, directory_);
    return value;
  }

  StatusOr<std::vector<KvEntry>> Scan(std::string_view from, std::string_view to, size_t limit) override {
    std::shared_lock open(open_);
    RETURN_IF_ERROR(CheckOpen());
    rocksdb::ReadOptions read;
    rocksdb::Slice end = ToSlice(to);
    if (!to.empty()) read.iterate_upper_bound = &end;
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(read));
    std::vector<KvEntry> entries;
    for (it->Seek(ToSlice(from)); it->Valid() && entries.size() < limit; it->Next()) {
      entries.push_back({it->key().ToString(), it->value().ToString()});
    }
    RETURN_IF_ERROR(FromRocks(it->status(), directory_));
    return entries;
  }

  StatusOr<KvEntry> Last(std::string_view from, std::string_view to) override {
    std::shared_lock open(open_);
    RETURN_IF_ERROR(CheckOpen());
    rocksdb::ReadOptions read;
    const rocksdb::Slice begin = ToSlice(from), end = ToSlice(to);
    read.iterate_lower_bound = &begin;  // else it would wade through the traces of what was removed before it
    if (!to.empty()) read.iterate_upper_bound = &end;
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(read));
    it->SeekToLast();
    RETURN_IF_ERROR(FromRocks(it->status(), directory_));
    if (!it->Valid()) return ErrnoError(ENOENT, "no key in this range");
    return KvEntry{it->key().ToString(), it->value().ToString()};
  }

  StatusOr<std::unique_ptr<KvSnapshot>> Snapshot() override {
    std::shared_lock open(open_);
    RETURN_IF_ERROR(CheckOpen());
    auto held = std::make_shared<HeldSnapshot>();
    std::lock_guard lock(snapshots_mutex_);
    held->at = db_->GetSnapshot();
    snapshots_.insert(held);
    return std::make_unique<RocksSnapshot>(this, std::move(held));
  }

  Status Admit(KvBatch* batch) override {
    RETURN_IF_ERROR(CheckSpace(batch->bytes(), batch->uses_reserve()));
    batch->SetAdmitted();
    return OkStatus();
  }

  Task<Status> Commit(KvBatch batch) override {
    if (options_.read_only) co_return ErrnoError(EROFS, absl::StrCat(directory_, " was opened read-only"));
    co_return co_await commits_.Commit(std::move(batch));
  }

  Task<Status> Sync() override {
    if (flusher_ == nullptr) co_return OkStatus();
    OneShot<Status> done;
    flusher_->Add(done);
    co_return co_await done.Wait();
  }

  Space GetSpace() override {
    Space space;
    struct statvfs fs;
    if (statvfs(directory_.c_str(), &fs) == 0) {
      const uint64_t free = FreeBytes(fs);
      space.total_bytes = uint64_t{fs.f_blocks} * fs.f_frsize;
      space.free_bytes = free > options_.reserve_bytes ? free - options_.reserve_bytes : 0;
    }
    std::shared_lock open(open_);
    if (db_ == nullptr) return space;
    uint64_t tables = 0;
    db_->GetIntProperty(rocksdb::DB::Properties::kCurSizeAllMemTables, &tables);
    space.memory_bytes = cache_->GetUsage() + tables;
    return space;
  }

  uint64_t UsedBytes() override {
    uint64_t used = 0;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory_, error)) {
      struct stat file;
      if (::stat(entry.path().c_str(), &file) == 0) used += static_cast<uint64_t>(file.st_blocks) * 512;
    }
    return used;
  }

 private:
  class RocksSnapshot : public KvSnapshot {
   public:
    RocksSnapshot(RocksKv* store, std::shared_ptr<HeldSnapshot> held)
        : store_(store), held_(std::move(held)) {}
    ~RocksSnapshot() override {
      if (held_->at != nullptr) store_->Release(held_);
    }
    StatusOr<std::vector<KvEntry>> Read(std::string_view from, size_t max_bytes) override {
      return store_->ReadAt(*held_, from, max_bytes);
    }

   private:
    RocksKv* const store_;
    const std::shared_ptr<HeldSnapshot> held_;
  };

  StatusOr<std::vector<KvEntry>> ReadAt(const HeldSnapshot& held, std::string_view from, size_t max_bytes) {
    std::shared_lock open(open_);  // snapshots are taken away with open_ held alone
    RETURN_IF_ERROR(CheckOpen());
    if (held.at == nullptr) {
      return absl::UnavailableError(
          absl::StrCat("the database in ", directory_, " was opened anew meanwhile: begin again"));
    }
    rocksdb::ReadOptions read;
    read.snapshot = held.at;
    read.fill_cache = false;  // everything is read once: what others use stays in the cache
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(read));
    std::vector<KvEntry> entries;
    size_t bytes = 0;
    for (it->Seek(ToSlice(from)); it->Valid() && bytes < max_bytes; it->Next()) {
      entries.push_back({it->key().ToString(), it->value().ToString()});
      bytes += it->key().size() + it->value().size();
    }
    RETURN_IF_ERROR(FromRocks(it->status(), directory_));
    return entries;
  }

  void Release(const std::shared_ptr<HeldSnapshot>& held) {
    std::shared_lock open(open_);
    std::lock_guard lock(snapshots_mutex_);
    snapshots_.erase(held);
    const rocksdb::Snapshot* at = held->at.exchange(nullptr);
    if (at != nullptr) db_->ReleaseSnapshot(at);
  }

  // Much takes longer than a change of threads, and the caller's thread has other requests to carry out: for
  // one, what somebody begins who waited for the place of a batch only.
  Task<void> WriteSomewhere(const CommitQueue::Group& group) {
    uint64_t bytes = 0;
    bool followed = false;
    for (const CommitQueue::Commitment* one : group) {
      bytes += one->bytes;
      followed = followed || one->batch.placed();
    }
    if (bytes < kMuch && !followed) {
      WriteGroup(group);
    } else {
      co_await writer_->Run([this, &group] { WriteGroup(group); });
    }
  }

  void WriteGroup(const CommitQueue::Group& group) {
    rocksdb::WriteBatch out;
    CommitQueue::Group together;
    for (CommitQueue::Commitment* one : group) {
      if (!one->batch.admitted()) one->status = CheckSpace(one->bytes, one->batch.uses_reserve());
      if (one->status.ok()) one->status = Append(one->batch, &out);
      if (one->status.ok()) together.push_back(one);
    }
    if (together.empty()) return;
    const Status status = Write(&out);
    for (CommitQueue::Commitment* one : together) one->status = status;
    if (status.ok() || together.size() == 1) return;
    // A small batch may still find room where all together found none.
    for (CommitQueue::Commitment* one : together) {
      rocksdb::WriteBatch alone;
      one->status = Append(one->batch, &alone);
      if (one->status.ok()) one->status = Write(&alone);
    }
  }

  // All of the batch, or nothing of it.
  Status Append(const KvBatch& batch, rocksdb::WriteBatch* out) {
    out->SetSavePoint();
    rocksdb::Status status;
    for (const KvBatch::Op& op : batch.ops()) {
      status = op.erase ? out->Delete(op.key) : out->Put(op.key, op.value);
      if (!status.ok()) break;
    }
    rocksdb::Status settled = status.ok() ? out->PopSavePoint() : out->RollbackToSavePoint();
    settled.PermitUncheckedError();  // there is a save point
    return FromRocks(status, directory_);
  }

  Status Write(rocksdb::WriteBatch* batch) {
    std::unique_lock log(log_, std::defer_lock);
    if (low_ || failed_) log.lock();
    Status status = TryWrite(batch);
    if (status.ok() || !failed_) return status;
    if (!log) log.lock();
    return !failed_ || Reopen() ? TryWrite(batch) : status;  // a sync may have opened it again meanwhile
  }

  Status TryWrite(rocksdb::WriteBatch* batch) {
    std::shared_lock open(open_);
    RETURN_IF_ERROR(CheckOpen());
    if (failed_) return Failure();
    CountNothing();
    rocksdb::Status status = db_->Write(rocksdb::WriteOptions(), batch);
    if (!status.ok()) return Fail(FromRocks(status, directory_));
    committed_.fetch_add(1, std::memory_order_release);
    return OkStatus();
  }

  Status SyncLog() {
    uint64_t upto = committed_.load(std::memory_order_acquire);
    if (upto == synced_) return OkStatus();
    std::unique_lock log(log_, std::defer_lock);
    if (low_ || failed_) log.lock();
    if (failed_ && log) Reopen();
    std::shared_lock open(open_);
    RETURN_IF_ERROR(CheckOpen());
    if (failed_) return Failure();
    rocksdb::Status status = db_->SyncWAL();
    if (!status.ok()) return Fail(FromRocks(status, directory_));
    synced_ = upto;
    return OkStatus();
  }

  // From here on the database is only read. Called by whoever writes or syncs, with log_ or before failed_ is
  // set.
  Status Fail(Status status) {
    std::lock_guard lock(failure_mutex_);
    if (failed_) return failure_;
    LogError("%s; it is only read until there is room and it has been opened again",
             std::string(status.message()));
    failure_ = std::move(status);
    failed_ = true;
    return failure_;
  }

  // Looks at the filesystem now and then while there is plenty, at every commit while there is not. When
  // others have filled the disk all of a sudden, a little more is taken: clients have been told of changes
  // that they are done, and the next reply tells them that there is no room.
  Status CheckSpace(uint64_t bytes, bool use_reserve) {
    std::lock_guard lock(space_mutex_);
    const Duration now = RealClock().Now();
    if (!low_ && now - checked_ < kSpaceCheckEvery) return OkStatus();
    struct statvfs fs;
    if (statvfs(directory_.c_str(), &fs) != 0) return OkStatus();
    const uint64_t free = FreeBytes(fs);
    low_ = free < options_.reserve_bytes + kLowSpace;
    checked_ = now;
    if (!low_) told_ = kToldAtMost;
    if (free >= (use_reserve ? options_.reserve_bytes / 4 : options_.reserve_bytes)) return OkStatus();
    if (bytes <= told_) {
      told_ -= bytes;
      return OkStatus();
    }
    return ErrnoError(ENOSPC, absl::StrCat("the disk under ", directory_, " has ", free, " bytes left; ",
                                           options_.reserve_bytes, " are kept in reserve. Make room there"));
  }

  // The caller holds open_.
  Status CheckOpen() const { return db_ == nullptr ? Failure() : OkStatus(); }

  Status Failure() const {
    std::lock_guard lock(failure_mutex_);
    return failure_;
  }

  // The caller holds open_ alone, as for the next.
  Status OpenLocked() {
    cache_ = NewRocksCache(options_);
    rocksdb::Options rocks = RocksOptions(options_, cache_);
    rocksdb::DB* db = nullptr;
    rocksdb::Status status = options_.read_only ? rocksdb::DB::OpenForReadOnly(rocks, directory_, &db)
                                                : rocksdb::DB::Open(rocks, directory_, &db);
    db_.reset(db);
    return FromRocks(status, directory_);
  }

  void CloseLocked() {
    {
      std::lock_guard lock(snapshots_mutex_);
      for (const auto& held : snapshots_) db_->ReleaseSnapshot(held->at.exchange(nullptr));
      snapshots_.clear();
    }
    if (db_ != nullptr) rocksdb::CancelAllBackgroundWork(db_.get(), /*wait=*/true);
    db_.reset();
  }

  // Opens the database anew: the log has all that was committed, and loses the record that could not be
  // written. The caller holds log_. At most once a second, and not without some room: opening writes, too.
  bool Reopen() {
    const Duration now = RealClock().Now();
    struct statvfs fs;
    if (now - reopened_ < kReopenEvery || statvfs(directory_.c_str(), &fs) != 0) return false;
    if (FreeBytes(fs) < options_.reserve_bytes / 4 + kLowSpace) return false;
    reopened_ = now;
    std::unique_lock open(open_);
    CloseLocked();
    Status status = OpenLocked();
    std::lock_guard lock(failure_mutex_);
    failure_ = status;
    failed_ = !status.ok();
    if (status.ok()) LogWarning("database in %s: writing again after an error", directory_);
    if (!status.ok()) LogError("%s", std::string(status.message()));
    return status.ok();
  }

  const std::string directory_;
  const RocksKvOptions options_;
  std::shared_mutex
      open_;  // alone: while the database is closed and opened again. Taken last but for failure_mutex_
  std::shared_ptr<rocksdb::Cache> cache_;
  std::mutex snapshots_mutex_;
  std::set<std::shared_ptr<HeldSnapshot>> snapshots_;  // those that are held
  std::unique_ptr<rocksdb::DB> db_;                    // null after it could not be opened again
  std::atomic<uint64_t> committed_{1};  // the log of an earlier process may not be on the disk yet
  uint64_t synced_ = 0;                 // flusher's thread only
  std::mutex space_mutex_;
  Duration checked_{0};  // these two: with space_mutex_ held
  uint64_t told_ = 0;
  // RocksDB ends the process when a log is synced that could not be written. So nobody touches it once a
  // write has failed, and while there is little room it is written or synced, not both at once.
  std::mutex log_;
  std::atomic<bool> low_ = true, failed_ = false;
  Duration reopened_{0};
  mutable std::mutex failure_mutex_;
  Status failure_;  // while failed_
  CommitQueue commits_{[this](const CommitQueue::Group& group) { return WriteSomewhere(group); }};
  std::optional<OwnThread> writer_{std::in_place};
  std::unique_ptr<Flusher> flusher_;
};

// RocksDB makes a new database where the file CURRENT is missing, whatever else lies there.
Status CheckDirectory(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::exists(directory, error)) return OkStatus();
  if (!std::filesystem::is_directory(directory, error)) {
    return ErrnoError(ENOTDIR, absl::StrCat(directory, " is not a directory"));
  }
  if (std::filesystem::exists(directory + "/CURRENT", error)) return OkStatus();
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    std::string name = entry.path().filename().string();
    if (!name.starts_with("MANIFEST-") && !name.ends_with(".sst")) continue;
    return absl::DataLossError(
        absl::StrCat("the database in ", directory, " is damaged: the file CURRENT is missing, but ", name,
                     " is there; restore CURRENT (it holds the name of the newest MANIFEST file)"));
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<KvStore>> OpenRocksKv(const std::string& directory, RocksKvOptions options) {
  RETURN_IF_ERROR(CheckDirectory(directory));
  auto store = std::make_unique<RocksKv>(directory, options);
  RETURN_IF_ERROR(store->Open());
  return store;
}

}  // namespace nacre
