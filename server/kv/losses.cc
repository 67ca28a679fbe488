#include "server/kv/losses.h"

#include <optional>

#include "common/bytes.h"

namespace nacre {
namespace {

// On stable storage: else the next loss could take the record with it, and be taken for the clean end of
// before.
Task<Status> StoreRecord(KvStore* store, std::string key, LossRecord record) {
  KvBatch batch;
  batch.UseReserve();
  batch.Put(std::move(key), EncodeLossRecord(record));
  CO_RETURN_IF_ERROR(co_await store->Commit(std::move(batch)));
  co_return co_await store->Sync();
}

// None: the store has never counted.
StatusOr<std::optional<LossRecord>> FindRecord(KvStore* store, const std::string& key) {
  StatusOr<std::string> value = store->Get(key);
  if (absl::IsNotFound(value.status())) return std::optional<LossRecord>();
  RETURN_IF_ERROR(value.status());
  return ParseLossRecord(*value);
}

// The record that CountLosses has stored.
StatusOr<LossRecord> CountedRecord(KvStore* store, const std::string& key) {
  ASSIGN_OR_RETURN(std::optional<LossRecord> record, FindRecord(store, key));
  if (!record) return absl::FailedPreconditionError("losses have not been counted yet");
  return *std::move(record);
}

// Whether something may have been lost between the last commit behind `record` and this boot.
bool LostBefore(const LossRecord& record, std::string_view boot) {
  return !record.clean && record.boot != boot;
}

}  // namespace

std::string EncodeLossRecord(const LossRecord& record) {
  std::string out;
  PutLittle(&out, record.losses);
  PutLittle(&out, static_cast<uint8_t>(record.clean ? 1 : 0));
  return out + record.boot;
}

StatusOr<LossRecord> ParseLossRecord(std::string_view value) {
  ByteReader reader(value);
  LossRecord record;
  record.losses = reader.Little<uint64_t>();
  uint8_t clean = reader.Little<uint8_t>();
  if (!reader.ok() || clean > 1) {
    return absl::DataLossError(absl::StrFormat("damaged record of losses, %d bytes", value.size()));
  }
  record.clean = clean == 1;
  record.boot = reader.rest();
  return record;
}

StatusOr<bool> MayHaveLost(KvStore* store, std::string key, std::string_view boot) {
  ASSIGN_OR_RETURN(const std::optional<LossRecord> record, FindRecord(store, key));
  return !record || LostBefore(*record, boot) || (boot.empty() && !record->clean);
}

Task<StatusOr<uint64_t>> CountLosses(KvStore* store, std::string key, std::string boot) {
  CO_ASSIGN_OR_RETURN(const std::optional<LossRecord> last, FindRecord(store, key));
  if (last && last->boot == boot && !last->clean) co_return last->losses;
  LossRecord record;
  if (last) record.losses = last->losses + (LostBefore(*last, boot) ? 1 : 0);
  record.boot = std::move(boot);
  CO_RETURN_IF_ERROR(co_await StoreRecord(store, key, record));
  co_return record.losses;
}

Task<Status> SuspectLoss(KvStore* store, std::string key) {
  CO_ASSIGN_OR_RETURN(LossRecord record, CountedRecord(store, key));
  record.boot.clear();  // of no boot, so a start in any is in another one
  co_return co_await StoreRecord(store, key, record);
}

Task<Status> SetLosses(KvStore* store, std::string key, uint64_t losses) {
  CO_ASSIGN_OR_RETURN(LossRecord record, CountedRecord(store, key));
  record.losses = losses;
  co_return co_await StoreRecord(store, key, record);
}

Task<Status> EndClean(KvStore* store, std::string key) {
  CO_ASSIGN_OR_RETURN(LossRecord record, CountedRecord(store, key));
  record.clean = true;
  co_return co_await StoreRecord(store, key, record);
}

}  // namespace nacre
