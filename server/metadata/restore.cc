#include "server/metadata/restore.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>

#include "common/bytes.h"
#include "rpc/fence.h"
#include "server/cluster/ost_record.h"
#include "server/kv/losses.h"
#include "server/metadata/id_allocator.h"
#include "server/metadata/keys.h"
#include "server/metadata/records.h"

namespace nacre::mds {
namespace {

constexpr char kOldClients[] = "every client from before the restore of the MDT";

Status CheckHeader(const BackupHeader& header, const WallTime& now) {
  if (!IsKnownFormat(header.mdt_version)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the backup is of an MDT of format version %d; this program knows version %d: use the release "
        "that made it (%s)",
        header.mdt_version, kFormatVersion, header.mds_version));
  }
  if (header.mdt_index != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the backup is of MDT %d; this program knows MDT 0 alone", header.mdt_index));
  }
  if (now.seconds >= header.made_seconds && now.seconds >= kCountedFrom) return OkStatus();
  return absl::FailedPreconditionError(
      "the clock of this machine is behind that of the MDS when it made the backup: set it right first. By "
      "the clock the restored MDT goes on with numbers that were never handed out");
}

// Takes over what a backup has, but for what is not true any more.
class Restorer {
 public:
  Restorer(KvStore& store, WallTime now) : store_(store), now_(now) {}

  // Until the superblock is there, the store is no MDT: version 0 stands for a restore that was not finished.
  Task<Status> Begin() {
    CO_ASSIGN_OR_RETURN(auto there, store_.Scan({}, {}, 1));
    if (!there.empty()) co_return ErrnoError(EEXIST, "the store is not empty");
    KvBatch batch;
    batch.Put(TableKey(Table::kSuperblock), EncodeSuperblock(Superblock{}));
    co_return co_await store_.Commit(std::move(batch));
  }

  Task<Status> Take(std::vector<KvEntry> entries) {
    KvBatch batch;
    for (KvEntry& entry : entries) {
      if (!Keep(entry)) continue;
      batch.Put(std::move(entry.key), std::move(entry.value));
    }
    if (batch.empty()) co_return OkStatus();
    co_return co_await store_.Commit(std::move(batch));
  }

  Task<Status> Finish() {
    if (superblock_.empty()) co_return absl::DataLossError("the backup has no superblock");
    CO_RETURN_IF_ERROR(ParseSuperblock(superblock_).status());
    CO_RETURN_IF_ERROR(co_await store_.Sync());
    KvBatch batch;
    CO_RETURN_IF_ERROR(RaiseCounters(&batch));
    EndOldSessions(&batch);
    CO_RETURN_IF_ERROR(CountAsLoss(&batch));
    CO_RETURN_IF_ERROR(RaiseEpoch(&batch));
    batch.Put(TableKey(Table::kSuperblock), superblock_);
    CO_RETURN_IF_ERROR(co_await store_.Commit(std::move(batch)));
    co_return co_await store_.Sync();
  }

 private:
  // False: it does not go on, or not as it is.
  bool Keep(const KvEntry& entry) {
    if (entry.key[0] == cluster::kOstTable) {
      ByteReader key(std::string_view(entry.key).substr(1));
      osts_.groups.push_back(key.Big<uint32_t>());
      return true;
    }
    switch (static_cast<Table>(entry.key[0])) {
      case Table::kSuperblock:
        superblock_ = entry.value;
        return false;
      case Table::kLosses:
        losses_ = entry.value;
        return false;
      case Table::kEpoch:
        epoch_ = entry.value;
        return false;
      case Table::kCounter:
        counters_[entry.key] = entry.value;
        return false;
      case Table::kSession:
      case Table::kReply:
      case Table::kReplyBySequence:
      case Table::kFence:
        return false;
      case Table::kTail:  // the MDS has written it to the objects since, and clients have written there
        return false;
      default:
        return true;
    }
  }

  Status RaiseCounters(KvBatch* batch) {
    for (CounterId counter :
         {CounterId::kFidSequence, CounterId::kObjectSequence, CounterId::kSession, CounterId::kRun}) {
      const std::string key = CounterKey(counter);
      uint64_t stored = 1;
      if (auto it = counters_.find(key); it != counters_.end()) {
        ASSIGN_OR_RETURN(stored, ParseNumber(it->second));
      }
      ASSIGN_OR_RETURN(const uint64_t next, FirstAfterRestore(counter, stored, now_));
      if (counter == CounterId::kSession) first_session_ = next;
      batch->Put(key, EncodeNumber(next));
    }
    return OkStatus();
  }

  // One session stands for all, with a fence record: its eviction has begun, and the next start finishes it.
  void EndOldSessions(KvBatch* batch) {
    const SessionId all = AllBelow(first_session_);
    SessionRecord record;
    record.name = kOldClients;
    batch->Put(NumberKey(Table::kSession, all), EncodeSession(record));
    batch->Put(NumberKey(Table::kFence, all), EncodeDestroy(osts_));
  }

  // OSSes obey no MDS of a lower epoch than they have heard of. A backup of several MDSes does not say
  // theirs, which are small numbers.
  Status RaiseEpoch(KvBatch* batch) {
    uint64_t stored = 0;
    if (epoch_) {
      ASSIGN_OR_RETURN(stored, ParseNumber(*epoch_));
    }
    const uint64_t epoch = std::max(stored + 1, static_cast<uint64_t>(now_.seconds));
    batch->Put(TableKey(Table::kEpoch), EncodeNumber(epoch));
    return OkStatus();
  }

  // Noted as a clean end, so that the start does not count it once more.
  Status CountAsLoss(KvBatch* batch) {
    LossRecord record;
    if (losses_) {
      ASSIGN_OR_RETURN(record, ParseLossRecord(*losses_));
    }
    ++record.losses;
    record.clean = true;
    batch->Put(TableKey(Table::kLosses), EncodeLossRecord(record));
    return OkStatus();
  }

  KvStore& store_;
  const WallTime now_;
  std::string superblock_;
  std::optional<std::string> losses_, epoch_;
  std::map<std::string, std::string> counters_;
  SessionId first_session_ = 0;
  DestroyRecord osts_;  // those that the MDT knows, as a fence record names them
};

}  // namespace

StatusOr<Restored> VerifyBackup(BackupReader& backup, const WallTime& now) {
  Restored found;
  ASSIGN_OR_RETURN(found.header, backup.ReadHeader());
  RETURN_IF_ERROR(CheckHeader(found.header, now));
  while (true) {
    ASSIGN_OR_RETURN(std::vector<KvEntry> entries, backup.Next());
    if (entries.empty()) return found;
    found.entries += entries.size();
  }
}

Task<StatusOr<Restored>> RestoreMdt(KvStore& store, BackupReader& backup, WallTime now) {
  Restored restored;
  CO_ASSIGN_OR_RETURN(restored.header, backup.ReadHeader());
  CO_RETURN_IF_ERROR(CheckHeader(restored.header, now));
  Restorer restorer(store, now);
  CO_RETURN_IF_ERROR(co_await restorer.Begin());
  while (true) {
    CO_ASSIGN_OR_RETURN(std::vector<KvEntry> entries, backup.Next());
    if (entries.empty()) break;
    restored.entries += entries.size();
    CO_RETURN_IF_ERROR(co_await restorer.Take(std::move(entries)));
  }
  CO_RETURN_IF_ERROR(co_await restorer.Finish());
  co_return restored;
}

}  // namespace nacre::mds
