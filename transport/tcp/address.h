// The address forms of the TCP transport, and sockets for them: "host:port" ("[::1]:7000" for IPv6),
// "unix:/path", and "unix:@name" for a socket in the kernel's abstract namespace, which leaves nothing
// behind. Stateless.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>

#include <string>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/task.h"

namespace nacre {

using StreamSocket = asio::generic::stream_protocol::socket;
using StreamEndpoint = asio::generic::stream_protocol::endpoint;

struct TcpAddress {
  std::string host;  // without brackets
  uint16_t port = 0;
};

struct UnixAddress {
  std::string path;  // begins with '@': an abstract name

  bool is_abstract() const { return path.front() == '@'; }
};

using SocketAddress = std::variant<TcpAddress, UnixAddress>;

// INVALID_ARGUMENT with the address and the forms that are known.
StatusOr<SocketAddress> ParseSocketAddress(const std::string& address);

// A connected, non-blocking socket with the options set that the data plane wants. Tries each endpoint that
// the name stands for. UNAVAILABLE with the address and what to check.
Task<StatusOr<StreamSocket>> Dial(Executor executor, Clock& clock, std::string address, Duration timeout);

// A listening, non-blocking socket; `address` becomes the real one where port 0 was asked for.
StatusOr<StreamSocket> OpenListener(const Executor& executor, std::string* address);

// The socket's own IPv4 address and that of its other end, in host order; 0 if it has none.
uint32_t LocalIpv4(int fd);
uint32_t RemoteIpv4(int fd);

// No delay, keepalive. For sockets that were accepted; Dial does it itself.
void PrepareStream(int fd);

}  // namespace nacre
