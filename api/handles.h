// The objects that the numbers of nacre.h stand for. A number is never given twice, so one that was closed is
// not found, whatever has been opened since. Thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace nacre::api {

inline uint64_t NextHandle() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1) + 1;
}

template <typename T>
class Handles {
 public:
  uint64_t Add(std::shared_ptr<T> object) {
    const uint64_t id = NextHandle();
    std::lock_guard lock(mutex_);
    objects_.emplace(id, std::move(object));
    return id;
  }
  // Null: there is none.
  std::shared_ptr<T> Find(uint64_t id) const {
    std::lock_guard lock(mutex_);
    auto it = objects_.find(id);
    return it == objects_.end() ? nullptr : it->second;
  }
  std::shared_ptr<T> Take(uint64_t id) {
    std::lock_guard lock(mutex_);
    auto it = objects_.find(id);
    if (it == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(it->second);
    objects_.erase(it);
    return object;
  }
  template <typename Predicate>
  std::vector<std::shared_ptr<T>> TakeIf(Predicate predicate) {
    std::vector<std::shared_ptr<T>> taken;
    std::lock_guard lock(mutex_);
    absl::erase_if(objects_, [&](auto& entry) {
      if (!predicate(*entry.second)) return false;
      taken.push_back(std::move(entry.second));
      return true;
    });
    return taken;
  }

 private:
  mutable std::mutex mutex_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<T>> objects_;
};

}  // namespace nacre::api
