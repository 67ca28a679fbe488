#include "server/metadata/destroyer.h"

#include "server/metadata/object_io.h"

namespace nacre::mds {
namespace {

constexpr size_t kFilesAtOnce = 512;

struct Page {
  std::vector<uint64_t> sequences;
  std::vector<DestroyRecord> records;
  std::map<OstIndex, std::vector<ObjectId>> objects;
};

struct Outcome {
  OstIndex ost = 0;
  Status status;
};

Task<Outcome> DestroyAt(std::shared_ptr<Mds> mds, OstIndex ost, std::vector<ObjectId> objects) {
  Outcome outcome;
  outcome.ost = ost;
  outcome.status = co_await DestroyObjects(std::move(mds), ost, std::move(objects));
  co_return outcome;
}

bool AllDone(const DestroyRecord& record, const std::set<OstIndex>& done) {
  for (uint32_t group : record.groups) {
    if (!done.contains(group)) return false;
  }
  return true;
}

Task<Status> TakeOff(std::shared_ptr<Mds> mds, const Page& page, const std::set<OstIndex>& done,
                     size_t* left) {
  KvBatch batch;
  for (size_t i = 0; i < page.sequences.size(); ++i) {
    if (AllDone(page.records[i], done))
      batch.Erase(NumberKey(Table::kDestroy, page.sequences[i]));
    else
      *left += page.records[i].groups.size();
  }
  if (batch.empty()) co_return OkStatus();
  co_return co_await mds->tables->CommitBatch(std::move(batch));
}

}  // namespace

void Destroyer::Hold(uint64_t sequence) {
  std::lock_guard lock(mutex_);
  held_.insert(sequence);
}

void Destroyer::Release(uint64_t sequence) {
  std::lock_guard lock(mutex_);
  if (held_.erase(sequence) > 0) released_.insert(sequence);
}

void Destroyer::BeginScan() {
  std::lock_guard lock(mutex_);
  released_.clear();
}

bool Destroyer::WasHeld(uint64_t sequence) const {
  std::lock_guard lock(mutex_);
  return held_.contains(sequence) || released_.contains(sequence);
}

Task<StatusOr<bool>> Destroyer::Pass(std::shared_ptr<Mds> mds) {
  std::string from = TableKey(Table::kDestroy);
  const std::string to = PrefixEnd(from);
  size_t left = 0;
  for (bool more = true; more;) {
    BeginScan();
    CO_ASSIGN_OR_RETURN(auto entries, mds->tables->Scan(from, to, kFilesAtOnce));
    more = entries.size() == kFilesAtOnce;
    if (more) from = entries.back().key + '\0';
    Page page;
    for (const KvEntry& entry : entries) {
      ByteReader key(std::string_view(entry.key).substr(1));
      uint64_t sequence = key.Big<uint64_t>();
      if (WasHeld(sequence)) continue;
      CO_ASSIGN_OR_RETURN(DestroyRecord record, ParseDestroy(entry.value));
      for (uint32_t n = 0; n < record.groups.size(); ++n) {
        ObjectId object;
        object.sequence = sequence;
        object.stripe = n;
        if (mds->osts.IsUp(record.groups[n])) page.objects[record.groups[n]].push_back(object);
      }
      page.sequences.push_back(sequence);
      page.records.push_back(std::move(record));
    }
    if (page.sequences.empty()) continue;
    if (!page.objects.empty()) CO_RETURN_IF_ERROR(co_await mds->tables->Sync());
    std::vector<Task<Outcome>> tasks;
    for (auto& [ost, objects] : page.objects) tasks.push_back(DestroyAt(mds, ost, std::move(objects)));
    std::set<OstIndex> done;
    for (const Outcome& outcome : co_await WhenAll(std::move(tasks))) {
      if (outcome.status.ok()) done.insert(outcome.ost);
    }
    CO_RETURN_IF_ERROR(co_await TakeOff(mds, page, done, &left));
  }
  queued_ = left;
  co_return left > 0;
}

}  // namespace nacre::mds
