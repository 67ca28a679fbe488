// A peer over TCP, a unix socket, or what is built on one: its connections, which call takes which, and
// making them anew after a loss. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/task.h"
#include "transport/path_meter.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"

namespace nacre {

class ClientConnection;

// The differences between kinds of streams.
struct StreamKind {
  std::string path;            // see PathInfo
  bool devices_fetch = false;  // a device takes the bytes from where they lie by itself
  uint64_t most_small = 0;     // bytes of a call that counts as small
  // Makes a connection and greets the server over it.
  std::function<Task<StatusOr<std::shared_ptr<ClientConnection>>>(Executor, Clock&, TcpOptions,
                                                                  std::string address)>
      connect;
};

class StreamPeer : public Peer {
 public:
  // Connects before the first call does.
  virtual Task<Status> ConnectNow(Duration timeout) = 0;
};

// INVALID_ARGUMENT for an address of another form. `meters`: where calls are counted; null: its own.
StatusOr<std::shared_ptr<StreamPeer>> MakeStreamPeer(Executor executor, Clock& clock, TcpOptions options,
                                                     std::string address, StreamKind kind,
                                                     std::shared_ptr<PathMeters> meters = nullptr);

StatusOr<std::shared_ptr<Peer>> MakeTcpPeer(Executor executor, Clock& clock, TcpOptions options,
                                            std::string address,
                                            std::shared_ptr<PathMeters> meters = nullptr);

// Asks the server for its hello, over a connection of its own. UNAVAILABLE: no such server answers.
Task<StatusOr<Hello>> AskForHello(Executor executor, Clock& clock, TcpOptions options, std::string address);

}  // namespace nacre
