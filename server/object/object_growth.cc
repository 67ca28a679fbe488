// Which objects clients have made longer without the MDT knowing of it yet (proto/object.proto, ListGrown).
#include "server/object/object_store.h"

namespace nacre::ost {

StatusOr<std::vector<ObjectStore::Grown>> ObjectStore::ListGrown(SessionId session,
                                                                 std::optional<Growth> after, size_t limit) {
  const std::string prefix = GrowthPrefix(session);
  std::string from = after ? GrowthKey(after->session, after->object) + '\0' : prefix;
  ASSIGN_OR_RETURN(std::vector<KvEntry> entries, devices_.store->Scan(from, PrefixEnd(prefix), limit));
  std::vector<Grown> grown;
  for (const KvEntry& entry : entries) {
    Grown one;
    ASSIGN_OR_RETURN(one.growth, ParseGrowthKey(entry.key));
    ASSIGN_OR_RETURN(one.record, Stat(one.growth.object));
    grown.push_back(std::move(one));
  }
  return grown;
}

Task<Status> ObjectStore::Settle(Growth growth, uint64_t version) {
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectState> object, objects_.Acquire(growth.object));
  co_return co_await journal_.Settle(object.get(), growth.session, version);
}

Task<Status> ObjectStore::LearnGrowth(std::vector<Growth> growths) {
  KvBatch batch;
  batch.UseReserve();
  for (const Growth& growth : growths) batch.Put(GrowthKey(growth.session, growth.object), "");
  CO_RETURN_IF_ERROR(co_await devices_.store->Commit(std::move(batch)));
  // As for answers (Sessions::Learn).
  co_return co_await devices_.store->Sync();
}

}  // namespace nacre::ost
