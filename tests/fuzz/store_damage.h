// Changes to a store that a server is to find there later. Not thread-safe.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <functional>
#include <string>

#include "server/kv/kv_store.h"

namespace nacre::fuzz {

// The beginning of a key that the server knows: its table and an id.
using KeyBeginning = std::function<std::string(FuzzedDataProvider& input)>;

// Adds a record, whose key is a part of such a beginning and up to `most_behind` bytes of the input, or
// removes or changes one of those that are there.
void DamageStore(FuzzedDataProvider& input, KvStore& store, const KeyBeginning& key_beginning,
                 size_t most_behind);

}  // namespace nacre::fuzz
