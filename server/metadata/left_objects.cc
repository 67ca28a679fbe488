#include "server/metadata/left_objects.h"

#include <algorithm>

#include "common/lease_time.h"
#include "common/log.h"
#include "server/metadata/recall.h"

namespace nacre::mds {
namespace {

constexpr Duration kQueuePause = std::chrono::seconds(1);

// Whether they are being destroyed just now, perhaps for the second time: a record that is put into the queue
// meanwhile would go with that one.
bool IsQueued(Mds& mds, const Layout& layout) {
  const std::vector<uint32_t> osts = StripeGroups(layout);
  return std::ranges::any_of(osts, [&](OstIndex ost) {
    return !absl::IsNotFound(mds.tables->Get(DestroyAtKeyOf(ost, layout.object_sequence)).status());
  });
}

Task<Status> Queue(MdsPtr mds, Layout old) {
  KvBatch batch;
  batch.Erase(NumberKey(Table::kMoved, old.object_sequence));
  QueueDestroy(old, &batch);
  co_return co_await mds->tables->CommitBatch(std::move(batch));
}

}  // namespace

void AddLeft(const Fid& fid, const Layout& old, KvBatch* batch) {
  batch->Put(NumberKey(Table::kMoved, old.object_sequence), EncodeMoved({fid, StripeGroups(old)}));
}

bool IsLeft(Mds& mds, uint64_t object_sequence) {
  return !absl::IsNotFound(mds.tables->Get(NumberKey(Table::kMoved, object_sequence)).status());
}

Task<void> DestroyLeft(MdsPtr mds, Fid fid, Layout old) {
  co_await mds->sessions.recovery().Wait();  // who is not back yet may have READ
  std::vector<Fid> fids(1, fid);
  Status recalled = co_await RecallAll(mds, 0, std::move(fids));
  if (!recalled.ok()) co_return;  // the server is stopping
  for (Duration pause = WithDrift(mds->options.lease); !mds->closed; pause = kQueuePause) {
    co_await mds->env.clock.Sleep(pause);
    if (mds->closed || IsQueued(*mds, old)) continue;
    Status queued = co_await Queue(mds, old);
    if (queued.ok()) co_return;
    if (!mds->closed)
      LogError("the objects that %s has left cannot be destroyed yet: %s", fid.ToString(),
               std::string(queued.message()));
  }
}

Status ResumeLeaving(const MdsPtr& mds) {
  return ForEachEntry(*mds->tables, TableKey(Table::kMoved), [&](KvEntry& entry) -> Status {
    ByteReader key(std::string_view(entry.key).substr(1));
    auto record = ParseMoved(entry.value);
    if (!record.ok()) {
      LogError("the record of objects that a file has left is left alone: %s; run nacre doctor",
               std::string(record.status().message()));
      return OkStatus();
    }
    Layout old = LayoutOfObjects(key.Big<uint64_t>(), std::move(record->groups));
    Spawn(mds->env.executor, DestroyLeft(mds, record->fid, std::move(old)));
    return OkStatus();
  });
}

}  // namespace nacre::mds
