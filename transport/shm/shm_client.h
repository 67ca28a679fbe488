// The client's end of a shared-memory connection: a ClientConnection over a unix socket whose two sides see
// each other's registered memory. Bytes that the server puts are copied here, out of its memory, by the
// reading coroutine, or by the device that has the call's memory; so after a call has ended nobody touches
// its memory, as over TCP. A few puts that came together are copied one behind the other: a copy of a MiB
// leaves nothing of what was done between in the CPU's caches. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "transport/shm/pieces.h"
#include "transport/shm/shm_memory.h"
#include "transport/shm/view_pins.h"
#include "transport/tcp/client_connection.h"
#include "transport/tcp/tcp_peer.h"

namespace nacre::shm {

class ShmClientConnection : public ClientConnection {
 public:
  // `shown`: what the server has been sent.
  ShmClientConnection(StreamSocket socket, std::string address, Clock& clock,
                      std::shared_ptr<ShmMemory> memory, Shown shown);

 private:
  Task<Status> Prepare() override;
  Task<Status> OnFrame(FrameHeader header) override;
  void OnClosed(const Status& why) override;
  // A put that waits for its copy, and the call that is held for it.
  struct Copy {
    FrameHeader header;
    std::shared_ptr<ClientCall> call;
    Pieces from;
    std::shared_ptr<void> untold;  // CountUntold
  };

  Task<Status> OnSharedPut(FrameHeader header);
  // Counts this put until what is returned has gone. Null: there are too many.
  std::shared_ptr<void> CountUntold();
  Status CopyAll();
  Status StillLent() const;
  static Task<void> CopyToDevice(std::shared_ptr<ShmClientConnection> self, FrameHeader header,
                                 std::shared_ptr<ClientCall> call, Pieces pieces,
                                 std::shared_ptr<void> untold);
  Status BeforeWait() override { return CopyAll(); }
  bool ShowSource(const ClientCall& call, std::string* pieces) override;

  const std::shared_ptr<ShmMemory> memory_;
  const Shown shown_;
  Views views_;                     // since Prepare
  std::shared_ptr<ViewPins> pins_;  // of them
  // Only for the reader.
  std::vector<Copy> copies_;
  uint64_t to_copy_ = 0;  // bytes of these
  size_t replies_ = 0;    // since the last CopyAll
  // Puts of which the socket has not taken yet that they have been taken.
  const std::shared_ptr<std::atomic<size_t>> untold_ = std::make_shared<std::atomic<size_t>>(0);
};

// For MakeStreamPeer.
StreamKind ShmKind(std::shared_ptr<ShmMemory> memory);

}  // namespace nacre::shm
