// Something that lives on a connection besides calls: a better path between the two sides, set up and watched
// over it (queue pairs of RDMA, say). The client sends an opaque request, the server's AttachHandler answers
// it, and what it made is told when the connection ends. Thread-safe unless said otherwise.
#pragma once

#include <absl/functional/any_invocable.h>

#include <functional>
#include <memory>
#include <string>

#include "common/status.h"
#include "common/task.h"

namespace nacre {

class Attachment {
 public:
  virtual ~Attachment() = default;
  // Once; nothing is held while it is called.
  virtual void ConnectionClosed(const Status& why) = 0;
};

struct AttachRequest {
  std::string body;
  std::string client;                        // where it comes from and who it says it is, for the log
  uint32_t local_ipv4 = 0;                   // the connection's own address, in host order; 0: not over IPv4
  std::function<void(const Status&)> close;  // ends the connection, from anywhere
};

struct Attached {
  std::string reply;
  std::shared_ptr<Attachment> attachment;
};

// An error is told to the client; the connection goes on. Run by the connection's reader, which waits for it.
using AttachHandler = std::function<Task<StatusOr<Attached>>(AttachRequest request)>;

}  // namespace nacre
