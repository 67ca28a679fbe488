// Clients that come. New sessions are let in one at a time, so that a client which asks again finds the
// session that its first request has opened.
//
// Streams on which a client waits to be let in. One that ends meanwhile has nobody any more who would have
// the session that is opened: it would keep others waiting until it is evicted, and if those give up in turn,
// for ever. Thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "common/task.h"
#include "rpc/metadata_channel.h"

namespace nacre::mds {

class Connecting {
 public:
  using Ended = std::shared_ptr<std::atomic<bool>>;

  Task<AsyncMutex::Guard> LockAdmission() { return admission_.Lock(); }

  // For as long as somebody holds what is returned, it becomes true when the stream ends.
  Ended Watch(const MetadataPeer* peer) {
    std::lock_guard lock(mutex_);
    absl::erase_if(watched_, [](const auto& one) { return one.second.expired(); });
    auto ended = std::make_shared<std::atomic<bool>>(false);
    watched_[peer] = ended;
    return ended;
  }

  void Disconnected(const MetadataPeer* peer) {
    std::lock_guard lock(mutex_);
    auto found = watched_.find(peer);
    if (found == watched_.end()) return;
    if (const Ended ended = found->second.lock()) ended->store(true);
    watched_.erase(found);
  }

  // A client that is refused asks again for as long as it runs. Whether this is to be logged.
  bool NoteRefused(const std::string& name) {
    constexpr size_t kMost = 10'000, kMostBytes = 256;
    std::lock_guard lock(mutex_);
    return refused_.size() < kMost && name.size() <= kMostBytes && refused_.insert(name).second;
  }
  void NoteLetIn(const std::string& name) {
    std::lock_guard lock(mutex_);
    refused_.erase(name);
  }

 private:
  AsyncMutex admission_;
  std::mutex mutex_;
  absl::flat_hash_map<const MetadataPeer*, std::weak_ptr<std::atomic<bool>>> watched_;
  absl::flat_hash_set<std::string> refused_;
};

}  // namespace nacre::mds
