#include "server/metadata/new_objects.h"

#include "common/log.h"

namespace nacre::mds {
namespace {

constexpr Duration kWithdrawalPause = std::chrono::seconds(1);

void AddWithdrawal(uint64_t sequence, const std::vector<uint32_t>& groups, KvBatch* batch) {
  QueueDestroy(LayoutOfObjects(sequence, groups), batch);
  batch->Erase(NumberKey(Table::kNewObjects, sequence));
}

// Tries until the store takes it. A server that stops before leaves it to the next start.
Task<void> WithdrawInTheEnd(MdsPtr mds, uint64_t sequence, std::vector<uint32_t> groups) {
  while (!mds->closed) {
    KvBatch batch;
    AddWithdrawal(sequence, groups, &batch);
    Status withdrawn = co_await mds->tables->CommitBatch(std::move(batch));
    if (withdrawn.ok()) co_return;
    if (!mds->closed)
      LogError("objects that no file got cannot be destroyed yet: %s", std::string(withdrawn.message()));
    co_await mds->env.clock.Sleep(kWithdrawalPause);
  }
}

Task<Status> WithdrawOne(const KvEntry& entry, KvBatch* batch) {
  ByteReader key(std::string_view(entry.key).substr(1));
  CO_ASSIGN_OR_RETURN(NewObjectsRecord record, ParseNewObjects(entry.value));
  AddWithdrawal(key.Big<uint64_t>(), record.groups, batch);
  co_return OkStatus();
}

}  // namespace

Task<Status> NewObjects::Intend() {
  KvBatch batch;
  batch.Put(NumberKey(Table::kNewObjects, sequence_), EncodeNewObjects({groups_}));
  CO_RETURN_IF_ERROR(co_await mds_->tables->CommitBatch(std::move(batch)));
  intended_ = true;
  co_return OkStatus();
}

void NewObjects::AddTaking(KvBatch* batch) const {
  if (intended_ && !mds_->options.plant_keep_intent) batch->Erase(NumberKey(Table::kNewObjects, sequence_));
}

void NewObjects::Withdraw() {
  if (intended_) Spawn(mds_->env.executor, WithdrawInTheEnd(mds_, sequence_, groups_));
  intended_ = false;
}

Task<Status> NewObjects::WithdrawAll(MdsPtr mds) {
  std::string what = "the record of objects that no file got";
  co_return co_await SettleRecords(*mds->tables, Table::kNewObjects, std::move(what), WithdrawOne);
}

}  // namespace nacre::mds
