#include "server/metadata/destroyer.h"

#include <absl/strings/escaping.h>

#include "common/log.h"
#include "server/metadata/object_io.h"

namespace nacre::mds {
namespace {

constexpr size_t kDestroyRecordsAtOnce = 256;
constexpr Duration kPauseAfterFailure = std::chrono::seconds(10);

// OSTs that have records, found by as many look-ups as there are.
StatusOr<std::vector<OstIndex>> OstsWithRecords(Mds& mds) {
  std::vector<OstIndex> osts;
  std::string from = TableKey(Table::kDestroyAt);
  const std::string to = PrefixEnd(from);
  while (true) {
    ASSIGN_OR_RETURN(auto first, mds.tables->Scan(from, to, 1));
    if (first.empty()) return osts;
    const auto key = ParseDestroyAtKey(first[0].key);
    if (key.ok()) osts.push_back(key->ost);
    from = key.ok() ? PrefixEnd(DestroyAtPrefix(key->ost)) : first[0].key + '\0';
  }
}

}  // namespace

void QueueDestroy(const Layout& layout, KvBatch* batch) {
  std::map<OstIndex, DestroyAtRecord> records;
  uint32_t stripe = 0;
  for (uint32_t group : StripeGroups(layout)) records[group].stripes.push_back(stripe++);
  for (const auto& [ost, record] : records)
    batch->Put(DestroyAtKeyOf(ost, layout.object_sequence), EncodeDestroyAt(record));
}

void QueueDestroy(OstIndex ost, const ObjectId& object, KvBatch* batch) {
  DestroyAtRecord record;
  record.stripes.push_back(object.stripe);
  batch->Put(DestroyAtKeyOf(ost, object.sequence), EncodeDestroyAt(record));
}

bool Destroyer::Begin(OstIndex ost, Duration now) {
  std::lock_guard lock(mutex_);
  Queue& queue = queues_[ost];
  if (queue.busy || now < queue.not_before) return false;
  queue.busy = true;
  return true;
}

void Destroyer::End(OstIndex ost, Duration not_before) {
  std::lock_guard lock(mutex_);
  queues_[ost] = {false, not_before};
}

Status Destroyer::StartPasses(const std::shared_ptr<Mds>& mds) {
  ASSIGN_OR_RETURN(std::vector<OstIndex> osts, OstsWithRecords(*mds));
  const Duration now = mds->env.clock.Now();
  for (OstIndex ost : osts) {
    const bool gone = cluster::IsGone(mds->osts.UseOf(ost));
    if ((gone || mds->osts.IsUp(ost)) && Begin(ost, now)) Spawn(mds->env.executor, RunPass(mds, ost));
  }
  return OkStatus();
}

Task<void> Destroyer::RunPass(std::shared_ptr<Mds> mds, OstIndex ost) {
  Status status = co_await Pass(mds, ost);
  if (!status.ok() && !mds->closed)
    LogError("destroying objects of OST %d failed: %s", ost, std::string(status.message()));
  const Duration now = mds->env.clock.Now();
  mds->destroyer.End(ost, status.ok() ? now : now + kPauseAfterFailure);
}

// Fills in the removal of the records whose objects it returns.
std::vector<ObjectId> Destroyer::ObjectsOf(const std::vector<KvEntry>& page, KvBatch* done) {
  std::vector<ObjectId> objects;
  for (const KvEntry& entry : page) {
    const auto key = ParseDestroyAtKey(entry.key);
    auto record = ParseDestroyAt(entry.value);
    if (!key.ok() || !record.ok()) {
      const Status why = key.ok() ? record.status() : key.status();
      std::lock_guard lock(mutex_);
      if (reported_.insert(entry.key).second) {
        LogError("objects of the destroy record %s cannot be destroyed: %s; run nacre doctor",
                 absl::BytesToHexString(entry.key), std::string(why.message()));
      }
      continue;
    }
    for (uint32_t stripe : record->stripes) objects.push_back({key->sequence, stripe});
    done->Erase(entry.key);
  }
  return objects;
}

Task<Status> Destroyer::Pass(std::shared_ptr<Mds> mds, OstIndex ost) {
  KvPages<Tables> pages(*mds->tables, DestroyAtPrefix(ost), kDestroyRecordsAtOnce);
  Status failure;  // the first one; the pages behind it have their turn all the same
  while (pages.more() && !mds->closed) {
    CO_ASSIGN_OR_RETURN(std::vector<KvEntry> page, pages.Next());
    KvBatch done;
    std::vector<ObjectId> objects = mds->destroyer.ObjectsOf(page, &done);
    if (done.empty()) continue;
    Status destroyed;  // of an OST that has been removed nothing is asked any more
    if (!cluster::IsGone(mds->osts.UseOf(ost))) {
      CO_RETURN_IF_ERROR(co_await mds->tables->Sync());
      destroyed = co_await DestroyObjects(mds, ost, std::move(objects));
    }
    if (destroyed.ok())
      CO_RETURN_IF_ERROR(co_await mds->tables->CommitBatch(std::move(done)));
    else if (failure.ok())
      failure = std::move(destroyed);
  }
  co_return failure;
}

namespace {

Task<Status> TakeUp(const KvEntry& entry, KvBatch* batch) {
  ByteReader key(std::string_view(entry.key).substr(1));
  Layout layout;
  layout.object_sequence = key.Big<uint64_t>();
  CO_ASSIGN_OR_RETURN(DestroyRecord record, ParseDestroy(entry.value));
  layout.components.resize(1);
  layout.components[0].groups = std::move(record.groups);
  QueueDestroy(layout, batch);
  batch->Erase(entry.key);
  co_return OkStatus();
}

}  // namespace

Task<Status> Destroyer::TakeUpRecordsByFile(std::shared_ptr<Mds> mds) {
  std::string what = "the record of objects to be destroyed";
  co_return co_await SettleRecords(*mds->tables, Table::kDestroyByFile, std::move(what), TakeUp);
}

uint64_t Destroyer::QueuedObjects(Mds& mds) {
  constexpr size_t kMaxPages = 64;
  KvPages<Tables> pages(*mds.tables, TableKey(Table::kDestroyAt));
  uint64_t count = 0;
  for (size_t n = 0; n < kMaxPages && pages.more(); ++n) {
    auto page = pages.Next();
    if (!page.ok()) return count;
    for (const KvEntry& entry : *page) count += entry.value.size() / sizeof(uint32_t);
  }
  return count;
}

}  // namespace nacre::mds
