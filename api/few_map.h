// A map that mostly has one entry, which needs no memory of its own. Not thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <optional>
#include <utility>

namespace nacre::api {

template <typename Key, typename Value>
class FewMap {
 public:
  // The key's value, and whether it is new. The pointer is good until the next call.
  std::pair<Value*, bool> TryEmplace(const Key& key, Value value = {}) {
    if (!first_) {
      first_.emplace(key, std::move(value));
      return {&first_->second, true};
    }
    if (first_->first == key) return {&first_->second, false};
    const auto [place, fresh] = rest_.try_emplace(key, std::move(value));
    return {&place->second, fresh};
  }

 private:
  std::optional<std::pair<Key, Value>> first_;
  absl::flat_hash_map<Key, Value> rest_;
};

}  // namespace nacre::api
