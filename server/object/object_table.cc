#include "server/object/object_table.h"

namespace nacre::ost {

StatusOr<std::optional<ObjectRecord>> LoadObject(KvStore* store, const ObjectId& id) {
  StatusOr<std::string> value = store->Get(ObjectKey(id));
  if (absl::IsNotFound(value.status())) return std::optional<ObjectRecord>();
  if (!value.ok()) return value.status();
  StatusOr<ObjectRecord> record = ParseObjectRecord(*value);
  if (!record.ok()) {
    return absl::DataLossError(absl::StrCat("object ", id.ToString(), ": ", record.status().message()));
  }
  return std::optional<ObjectRecord>(*record);
}

Status LoadChunk(KvStore* store, const ObjectId& id, uint64_t index, Chunk* chunk) {
  chunk->mapped = chunk->unwritten = 0;
  StatusOr<std::string> value = store->Get(ExtentKey(id, index));
  if (absl::IsNotFound(value.status())) return OkStatus();
  if (!value.ok()) return value.status();
  Status parsed = ParseChunk(*value, chunk);
  if (parsed.ok()) return parsed;
  return absl::DataLossError(
      absl::StrCat("object ", id.ToString(), " chunk ", index, ": ", parsed.message()));
}

StatusOr<std::shared_ptr<ObjectState>> ObjectTable::Acquire(const ObjectId& id) {
  std::shared_ptr<ObjectState> state = Find(id);
  std::lock_guard lock(state->mutex);
  if (state->loaded) return state;
  ASSIGN_OR_RETURN(state->record, LoadObject(store_, id));
  state->loaded = true;
  return state;
}

std::shared_ptr<ObjectState> ObjectTable::Find(const ObjectId& id) {
  std::lock_guard lock(mutex_);
  auto it = entries_.find(id);
  if (it != entries_.end()) {
    order_.splice(order_.end(), order_, it->second.place);
    return it->second.state;
  }
  Shrink();
  auto state = std::make_shared<ObjectState>(id);
  entries_.emplace(id, Entry{state, order_.insert(order_.end(), id)});
  return state;
}

// Looks at a few of the oldest; those in use stay and go to the young end.
void ObjectTable::Shrink() {
  for (int tries = 0; tries < 4 && entries_.size() >= limit_; ++tries) {
    auto it = entries_.find(order_.front());
    if (it->second.state.use_count() > 1) {
      order_.splice(order_.end(), order_, order_.begin());
      continue;
    }
    entries_.erase(it);
    order_.pop_front();
  }
}

size_t ObjectTable::size() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace nacre::ost
