// A path between a client and a server that is better than a socket where it can be had: shared memory, RDMA.
// The interface of such paths to the choice among them (select_transport.h). All classes here are
// thread-safe.
//
// How the two sides find each other: the server serves each path beside its TCP address and lets its hello
// there say where (an "offer", a line of text that only the candidate of the same name understands). The
// client asks for the offers over TCP and tries them, best first. The candidate itself does what a try takes
// (another handshake, keys, file descriptors).
#pragma once

#include <cerrno>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "common/task.h"
#include "transport/path_meter.h"
#include "transport/shared_memory.h"
#include "transport/transport.h"

namespace nacre {

class PathCandidate {
 public:
  virtual ~PathCandidate() = default;

  // In the configuration and in PathInfo: "shm", "rdma". Letters and digits.
  virtual std::string name() const = 0;

  // As Transport::Register, RegisterShared and RegisterDevice. An error: calls with this memory take another
  // path.
  virtual StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size) = 0;
  virtual StatusOr<std::shared_ptr<MemoryRegion>> RegisterShared(std::shared_ptr<SharedMemory> memory) {
    return Register(memory->data(), memory->size());
  }
  virtual StatusOr<std::shared_ptr<MemoryRegion>> RegisterDevice(std::shared_ptr<MemoryDevice>, std::byte*,
                                                                 size_t) {
    return ErrnoError(ENOTSUP, "this path does not reach the memory of devices");
  }

  // The server's side. The listener's address() is the offer: printable ASCII without line ends, at most
  // kMaxOfferSize; it is asked for at each greeting, so it may change; empty: nothing to be had just now.
  // Errors say why this machine cannot serve the path.
  virtual StatusOr<std::unique_ptr<Listener>> Listen(CallHandler handler) = 0;

  // The client's side: a peer that is connected now and counts its calls in `meters`. UNAVAILABLE: it may
  // work later. Any error's message becomes part of "why not better".
  virtual Task<StatusOr<std::shared_ptr<Peer>>> Connect(std::string offer, Duration timeout,
                                                        std::shared_ptr<PathMeters> meters) = 0;
};

}  // namespace nacre
