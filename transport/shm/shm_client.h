// The client's end of a shared-memory connection: a ClientConnection over a unix socket whose two sides see
// each other's registered memory. What the server puts is copied here, out of its memory, by the reading
// coroutine; so after a call has ended nobody touches its memory, as over TCP. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "transport/shm/pieces.h"
#include "transport/shm/shm_memory.h"
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
  Task<Status> OnSharedPut(FrameHeader header);
  void BeforeWait() override;
  bool ShowSource(const ClientCall& call, std::string* pieces) override;

  const std::shared_ptr<ShmMemory> memory_;
  const Shown shown_;
  // Only for the reader.
  Views views_;
  std::string taken_;  // frames to be sent
};

// For MakeStreamPeer.
StreamKind ShmKind(std::shared_ptr<ShmMemory> memory);

}  // namespace nacre::shm
