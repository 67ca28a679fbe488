// Blocking sockets for tests that speak to the TCP transport byte by byte, as a hostile or dying other side
// would. Every wait is bounded by ten seconds. Not thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "transport/tcp/frame.h"

namespace nacre {

class RawSocket {
 public:
  explicit RawSocket(int fd);
  ~RawSocket();
  RawSocket(RawSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RawSocket& operator=(RawSocket&&) = delete;

  static RawSocket ConnectTo(const std::string& address);  // "127.0.0.1:port"

  void Send(std::span<const std::byte> bytes);
  void Send(const FrameHeader& header, std::string_view rest = {});
  std::vector<std::byte> Receive(size_t size);  // fewer bytes where the stream ends
  FrameHeader ReceiveFrame(FrameReceiver receiver, std::string* rest);
  bool WaitForEnd();  // discards what comes; false if the stream has not ended in time
  void Greet();       // as a client
  void AnswerGreeting(uint64_t calls_at_once = 16);
  void Close();

 private:
  int fd_;
};

// A listening socket on a free port of 127.0.0.1.
class RawListener {
 public:
  RawListener();
  ~RawListener();
  RawListener(const RawListener&) = delete;
  RawListener& operator=(const RawListener&) = delete;
  RawSocket Accept();
  const std::string& address() const { return address_; }

 private:
  int fd_;
  std::string address_;
};

}  // namespace nacre
