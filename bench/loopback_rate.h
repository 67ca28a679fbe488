// The rate of TCP over loopback by itself between two processes: bare sockets, one thread for each connection
// on each side, large buffers, received straight into pinned memory. Reads over TCP into a GPU's memory are
// compared with it. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace nacre::bench {

class LoopbackRate {
 public:
  // Forks the process that sends: before there are threads, or a CUDA context.
  LoopbackRate();
  ~LoopbackRate();
  LoopbackRate(const LoopbackRate&) = delete;
  LoopbackRate& operator=(const LoopbackRate&) = delete;

  // Bytes that have come over so many connections in about `seconds`, into `memory` again and again, and how
  // long that took.
  struct Received {
    uint64_t bytes = 0;
    double seconds = 0;
  };
  Received Receive(size_t connections, double seconds, std::span<std::byte> memory) const;

 private:
  pid_t sender_ = -1;
  uint16_t port_ = 0;
};

}  // namespace nacre::bench
