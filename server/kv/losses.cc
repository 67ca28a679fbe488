#include "server/kv/losses.h"

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
  StatusOr<std::string> value = store->Get(key);
  if (absl::IsNotFound(value.status())) return true;
  RETURN_IF_ERROR(value.status());
  ASSIGN_OR_RETURN(const LossRecord record, ParseLossRecord(*value));
  return !record.clean && (boot.empty() || record.boot != boot);
}

Task<StatusOr<uint64_t>> CountLosses(KvStore* store, std::string key, std::string boot) {
  LossRecord record;
  StatusOr<std::string> value = store->Get(key);
  if (!value.ok() && !absl::IsNotFound(value.status())) co_return value.status();
  const bool first = !value.ok();
  if (!first) {
    CO_ASSIGN_OR_RETURN(record, ParseLossRecord(*value));
    if (record.boot == boot && !record.clean) co_return record.losses;
    if (record.boot != boot && !record.clean) ++record.losses;
  }
  record.boot = std::move(boot);
  record.clean = false;
  CO_RETURN_IF_ERROR(co_await StoreRecord(store, key, record));
  co_return record.losses;
}

Task<Status> SetLosses(KvStore* store, std::string key, uint64_t losses) {
  CO_ASSIGN_OR_RETURN(std::string value, store->Get(key));
  CO_ASSIGN_OR_RETURN(LossRecord record, ParseLossRecord(value));
  record.losses = losses;
  co_return co_await StoreRecord(store, key, record);
}

Task<Status> EndClean(KvStore* store, std::string key) {
  CO_ASSIGN_OR_RETURN(std::string value, store->Get(key));
  CO_ASSIGN_OR_RETURN(LossRecord record, ParseLossRecord(value));
  record.clean = true;
  co_return co_await StoreRecord(store, key, record);
}

}  // namespace nacre
