#include "server/replication/alone.h"

#include <absl/strings/str_format.h>

#include "common/bytes.h"
#include "server/replication/store_copy.h"

namespace nacre::replication {
namespace {

constexpr size_t kMostRecords = 1000;
// Others that live on against the operator's word come no higher by their own epochs.
constexpr uint64_t kAheadOfOthers = 1 << 20;

// A record of the MDT (mds::Table::kEpoch, a number as its counters are).
constexpr char kEpochKey[] = "\x05";

StatusOr<bool> IsCopy(KvStore& store) {
  ASSIGN_OR_RETURN(auto own, store.Scan(kOwnPrefix, {}, 1));
  return !own.empty();
}

}  // namespace

StatusOr<uint64_t> StoredEpoch(KvStore& store) {
  StatusOr<std::string> stored = store.Get(kEpochKey);
  if (absl::IsNotFound(stored.status())) return 0;
  RETURN_IF_ERROR(stored.status());
  ByteReader reader(*stored);
  const uint64_t epoch = reader.Little<uint64_t>();
  if (reader.ok() && reader.rest().empty()) return epoch;
  return absl::DataLossError(absl::StrFormat("damaged epoch of the MDT, %d bytes", stored->size()));
}

StatusOr<uint64_t> EpochOfAlone(KvStore& store, const std::string& directory) {
  ASSIGN_OR_RETURN(const bool copy, IsCopy(store));
  if (copy) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the MDT in %s is one of several copies, but the configuration names no coordinator: served alone it "
        "would become a second history beside that of the others. Set [copies] coordinator; or, if this is "
        "to "
        "be the only MDS from now on: stop all others for good, and run nacre-mds --alone (nacre-mds(8) says "
        "what that costs)",
        directory));
  }
  return StoredEpoch(store);
}

Task<StatusOr<uint64_t>> MakeAlone(KvStore* store) {
  CO_ASSIGN_OR_RETURN(const bool copy, IsCopy(*store));
  if (!copy) {
    co_return absl::FailedPreconditionError(
        "this MDT is no copy, but that of a filesystem of one MDS: nothing is to be done");
  }
  CO_ASSIGN_OR_RETURN(std::unique_ptr<StoreCopy> whole, co_await StoreCopy::Open(store, "", 0));
  if (whole->position().blank()) {
    co_return absl::FailedPreconditionError(
        "this copy has not been filled by another MDS, or not to the end: it holds no whole MDT. Use another "
        "copy, or restore a backup (nacre mdt restore)");
  }
  const uint64_t epoch = whole->position().epoch + kAheadOfOthers;
  CO_ASSIGN_OR_RETURN(auto own, store->Scan(kOwnPrefix, {}, kMostRecords));
  std::string encoded;
  PutLittle(&encoded, epoch);
  KvBatch batch;
  for (KvEntry& entry : own) batch.Erase(std::move(entry.key));
  batch.Put(kEpochKey, std::move(encoded));
  batch.UseReserve();
  CO_RETURN_IF_ERROR(co_await store->Commit(std::move(batch)));
  CO_RETURN_IF_ERROR(co_await store->Sync());
  co_return epoch;
}

}  // namespace nacre::replication
