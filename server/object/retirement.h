// The batch that erases undo records and keeps the answers that they hold: of each slot the newest one, under
// a key of its own. Undo records are added in the order of their numbers, and slots are used again in that
// order, too.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <optional>
#include <utility>

#include "server/kv/kv_store.h"
#include "server/object/format.h"

namespace nacre::ost {

class Retirement {
 public:
  void Add(uint64_t sequence, const std::optional<SlotAnswer>& answer) {
    erasures_.Erase(UndoKey(sequence));
    if (answer) answers_[{answer->slot.session, answer->slot.slot}] = answer->record;
  }
  // The keys of a session's first `slots` answers go; call it before any Add.
  void Forget(SessionId session, uint32_t slots) {
    for (uint32_t slot = 0; slot < slots; ++slot) erasures_.Erase(AnswerKey(session, slot));
  }
  bool empty() const { return erasures_.empty(); }

  KvBatch Take() && {
    KvBatch batch = std::move(erasures_);
    for (const auto& [place, record] : answers_)
      batch.Put(AnswerKey(place.first, place.second), Encode(record));
    batch.UseReserve();
    return batch;
  }

 private:
  KvBatch erasures_;
  absl::flat_hash_map<std::pair<SessionId, uint32_t>, AnswerRecord> answers_;
};

}  // namespace nacre::ost
