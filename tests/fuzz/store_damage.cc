#include "tests/fuzz/store_damage.h"

#include <cstdlib>

#include "tests/common/await.h"

namespace nacre::fuzz {
namespace {

constexpr size_t kMaxEntries = 1000;

}  // namespace

void DamageStore(FuzzedDataProvider& input, KvStore& store, const KeyBeginning& key_beginning,
                 size_t most_behind) {
  auto entries = *store.Scan({}, {}, kMaxEntries);
  KvBatch batch;
  if (input.ConsumeBool() || entries.empty()) {
    std::string key = key_beginning(input);
    key.resize(input.ConsumeIntegralInRange<size_t>(1, key.size()));
    key += input.ConsumeRandomLengthString(most_behind);
    batch.Put(std::move(key), input.ConsumeRandomLengthString(200));
  } else {
    KvEntry& entry = entries[input.ConsumeIntegralInRange<size_t>(0, entries.size() - 1)];
    if (input.ConsumeBool()) {
      batch.Erase(entry.key);
    } else {
      const size_t at = input.ConsumeIntegralInRange<size_t>(0, entry.value.size());
      std::string bytes = input.ConsumeRandomLengthString(16);
      entry.value.replace(at, bytes.size(), bytes);
      batch.Put(entry.key, entry.value);
    }
  }
  if (!Await(store.Commit(std::move(batch))).ok()) std::abort();
}

}  // namespace nacre::fuzz
