// The server's end of one queue pair: starts a handler for each call. It belongs to the control connection
// that it was set up over, and each ends with the other. Thread-safe.
#pragma once

#include <absl/container/flat_hash_set.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "transport/tcp/attachment.h"
#include "transport/tcp/server_connection.h"
#include "transport/verbs/channel.h"
#include "transport/verbs/regions.h"

namespace nacre::verbs {

class ServerLink : public Channel, public Attachment {
 public:
  // `calls`: at once. `close` ends the control connection.
  ServerLink(std::shared_ptr<Rail> rail, std::shared_ptr<RegionTable> regions, std::shared_ptr<CallSink> sink,
             AttachRequest request, Executor executor, Clock& clock, uint32_t calls);

  void ConnectionClosed(const Status& why) override { Shutdown(why); }

  RegionTable& regions() { return *regions_; }
  void RemoveCall(uint64_t id);

 private:
  Status OnMessage(const FragmentHeader& header, std::string_view message) override;
  void OnClosed(const Status& why) override;
  Status AddCall(uint64_t id);

  const std::shared_ptr<RegionTable> regions_;
  const std::shared_ptr<CallSink> sink_;
  const std::string client_;
  const std::function<void(const Status&)> close_;
  std::mutex mutex_;
  absl::flat_hash_set<uint64_t> calls_;  // in progress
};

}  // namespace nacre::verbs
