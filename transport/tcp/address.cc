#include "transport/tcp/address.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cerrno>
#include <cstring>

namespace nacre {
namespace {

using boost::system::error_code;

constexpr absl::string_view kUnixScheme = "unix:";
constexpr int kBacklog = 1024;

Status BadAddress(const std::string& address) {
  return ErrnoError(EINVAL,
                    absl::StrFormat("\"%s\" is not an address: write HOST:PORT or unix:/PATH", address));
}

StatusOr<SocketAddress> ParseUnix(const std::string& address) {
  std::string path = address.substr(kUnixScheme.size());
  if (path.empty() || path == "@" || path.find('\0') != std::string::npos) return BadAddress(address);
  if (path.size() < sizeof(sockaddr_un::sun_path)) return UnixAddress{std::move(path)};
  return ErrnoError(
      EINVAL, absl::StrFormat("the socket path in \"%s\" is longer than the %d bytes that the kernel allows",
                              address, sizeof(sockaddr_un::sun_path) - 1));
}

asio::local::stream_protocol::endpoint EndpointOf(const UnixAddress& address) {
  if (!address.is_abstract()) return {address.path};
  return {std::string(1, '\0') + address.path.substr(1)};
}

Status ConnectError(const std::string& address, int error) {
  const char* hint = "";
  if (error == ECONNREFUSED || error == ENOENT) hint = ": is nacre-oss running there?";
  if (error == ETIMEDOUT) hint = ": is the host up, and does a firewall let this port through?";
  // ENOENT is an answer about the socket's path, not about a file of the user's.
  int code = error == ENOENT ? ECONNREFUSED : error;
  Status status =
      ErrnoError(code, absl::StrFormat("cannot connect to %s: %s%s", address, std::strerror(error), hint));
  if (IsRetryable(status)) return status;
  return absl::UnavailableError(status.message());
}

// A unix socket connects at once or not at all. Waiting for it as for TCP would leave the descriptor in the
// reactor's set for writing, and the kernel reports that for unix sockets whenever the other side has read
// something: each message would wake both sides twice.
error_code ConnectLocal(StreamSocket& socket, const StreamEndpoint& endpoint) {
  if (::connect(socket.native_handle(), endpoint.data(), endpoint.size()) == 0) return {};
  return {errno, boost::system::system_category()};
}

Task<error_code> ConnectOnce(StreamSocket& socket, StreamEndpoint endpoint, Clock& clock, Duration timeout) {
  OneShot<error_code> done;
  socket.async_connect(endpoint, [done](error_code error) { done.Set(error); });
  Executor executor = co_await CurrentExecutor();
  auto timer = clock.After(executor, timeout, [done] { done.Set(asio::error::timed_out); });
  co_return co_await done.Wait();
}

Task<StatusOr<std::vector<StreamEndpoint>>> Resolve(Executor executor, TcpAddress address, std::string name) {
  std::vector<StreamEndpoint> endpoints;
  error_code error;
  asio::ip::address number = asio::ip::make_address(address.host, error);
  if (!error) {
    endpoints.emplace_back(asio::ip::tcp::endpoint(number, address.port));
    co_return endpoints;
  }
  asio::ip::tcp::resolver resolver(executor);
  using Results = asio::ip::tcp::resolver::results_type;
  OneShot<std::pair<error_code, Results>> done;
  resolver.async_resolve(address.host, std::to_string(address.port),
                         [done](error_code error, Results results) {
                           done.Set({error, std::move(results)});
                         });
  auto [failure, results] = co_await done.Wait();
  if (failure) {
    co_return absl::UnavailableError(
        absl::StrFormat("cannot find the host of %s: %s", name, failure.message()));
  }
  for (const auto& result : results) endpoints.emplace_back(result.endpoint());
  co_return endpoints;
}

// A path left behind by a server that is gone may be taken over; one that answers may not.
Status RemoveStaleSocket(const UnixAddress& address, const asio::local::stream_protocol::endpoint& endpoint) {
  struct stat info;
  if (::lstat(address.path.c_str(), &info) != 0)
    return OkStatus();  // the bind tells what is wrong with the path
  if (!S_ISSOCK(info.st_mode)) return ErrnoError(EADDRINUSE, "there is something there that is no socket");
  int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return ErrnoError(errno, absl::StrFormat("socket: %s", std::strerror(errno)));
  int error = ::connect(fd, endpoint.data(), endpoint.size()) == 0 ? 0 : errno;
  ::close(fd);
  if (error == 0) return ErrnoError(EADDRINUSE, "another process listens there");
  if (error == ECONNREFUSED) ::unlink(address.path.c_str());
  return OkStatus();
}

StatusOr<StreamEndpoint> EndpointToListenOn(const Executor& executor, const SocketAddress& parsed) {
  if (const auto* local = std::get_if<UnixAddress>(&parsed)) {
    asio::local::stream_protocol::endpoint endpoint = EndpointOf(*local);
    if (!local->is_abstract()) RETURN_IF_ERROR(RemoveStaleSocket(*local, endpoint));
    return StreamEndpoint(endpoint);
  }
  const auto& tcp = std::get<TcpAddress>(parsed);
  error_code error;
  asio::ip::tcp::resolver resolver(executor);
  auto results =
      resolver.resolve(tcp.host, std::to_string(tcp.port), asio::ip::resolver_base::passive, error);
  if (error) return absl::InvalidArgumentError(error.message());
  if (results.empty()) return absl::InvalidArgumentError("the host has no address");
  return StreamEndpoint(results.begin()->endpoint());
}

Status BindAndListen(StreamSocket& socket, const StreamEndpoint& endpoint) {
  const int on = 1;
  int fd = socket.native_handle();
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd, endpoint.data(), endpoint.size()) == 0 && ::listen(fd, kBacklog) == 0) return OkStatus();
  return ErrnoError(errno, std::strerror(errno));
}

std::string WithPort(const std::string& address, int fd) {
  sockaddr_storage storage;
  socklen_t size = sizeof storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return address;
  uint16_t port = 0;
  if (storage.ss_family == AF_INET) port = ntohs(reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
  if (storage.ss_family == AF_INET6) port = ntohs(reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port);
  return absl::StrFormat("%s:%d", address.substr(0, address.rfind(':')), port);
}

}  // namespace

StatusOr<SocketAddress> ParseSocketAddress(const std::string& address) {
  if (absl::StartsWith(address, kUnixScheme)) return ParseUnix(address);
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return BadAddress(address);
  TcpAddress tcp{address.substr(0, colon)};
  if (tcp.host.front() == '[' && tcp.host.back() == ']')
    tcp.host = tcp.host.substr(1, tcp.host.size() - 2);
  else if (tcp.host.find(':') != std::string::npos)
    return BadAddress(address);
  uint32_t port = 0;
  if (tcp.host.empty() || !absl::SimpleAtoi(address.substr(colon + 1), &port)) return BadAddress(address);
  if (port > UINT16_MAX) {
    return ErrnoError(EINVAL, absl::StrFormat("the port in \"%s\" is not within 0..65535", address));
  }
  tcp.port = static_cast<uint16_t>(port);
  return tcp;
}

namespace {

uint32_t Ipv4Of(const sockaddr_storage& storage) {
  if (storage.ss_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr);
  if (storage.ss_family != AF_INET6) return 0;
  const in6_addr& ipv6 = reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr;
  if (!IN6_IS_ADDR_V4MAPPED(&ipv6)) return 0;
  uint32_t mapped = 0;
  std::memcpy(&mapped, ipv6.s6_addr + 12, sizeof mapped);
  return ntohl(mapped);
}

}  // namespace

uint32_t LocalIpv4(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) == 0 ? Ipv4Of(storage) : 0;
}

uint32_t RemoteIpv4(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  return ::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) == 0 ? Ipv4Of(storage) : 0;
}

void PrepareStream(int fd) {
  // Not an error on unix sockets, which have none of these. The kernel tunes the buffers of TCP by itself,
  // beyond what SO_SNDBUF may ask for; those of unix sockets it does not.
  const int on = 1, idle = 15, interval = 5, count = 3, buffer = 4 << 20, unanswered_ms = 30'000;
  if (::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
    ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    return;
  }
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof unanswered_ms);
}

Task<StatusOr<StreamSocket>> Dial(Executor executor, Clock& clock, std::string address, Duration timeout) {
  CO_ASSIGN_OR_RETURN(SocketAddress parsed, ParseSocketAddress(address));
  std::vector<StreamEndpoint> endpoints;
  if (const auto* local = std::get_if<UnixAddress>(&parsed)) {
    endpoints.emplace_back(EndpointOf(*local));
  } else {
    TcpAddress tcp = std::get<TcpAddress>(parsed);
    CO_ASSIGN_OR_RETURN(endpoints, co_await Resolve(executor, std::move(tcp), address));
  }
  error_code error = asio::error::host_not_found;
  for (StreamEndpoint& endpoint : endpoints) {
    StreamSocket socket(executor);
    socket.open(endpoint.protocol(), error);
    if (!error) socket.non_blocking(true, error);
    if (error) continue;
    if (endpoint.protocol().family() == AF_UNIX) {
      error = ConnectLocal(socket, endpoint);
    } else {
      error = co_await ConnectOnce(socket, endpoint, clock, timeout);
    }
    if (error) continue;
    PrepareStream(socket.native_handle());
    co_return std::move(socket);
  }
  co_return ConnectError(address, error.value());
}

StatusOr<StreamSocket> OpenListener(const Executor& executor, std::string* address) {
  ASSIGN_OR_RETURN(SocketAddress parsed, ParseSocketAddress(*address));
  auto failed = [&](const Status& why) {
    Status status(why.code(), absl::StrFormat("cannot listen on %s: %s", *address, why.message()));
    why.ForEachPayload(
        [&](absl::string_view url, const absl::Cord& payload) { status.SetPayload(url, payload); });
    return status;
  };
  StatusOr<StreamEndpoint> endpoint = EndpointToListenOn(executor, parsed);
  if (!endpoint.ok()) return failed(endpoint.status());
  StreamSocket socket(executor);
  error_code error;
  socket.open(endpoint->protocol(), error);
  if (!error) socket.non_blocking(true, error);
  if (error) return failed(ErrnoError(error.value(), error.message()));
  if (Status status = BindAndListen(socket, *endpoint); !status.ok()) return failed(status);
  if (std::holds_alternative<TcpAddress>(parsed)) *address = WithPort(*address, socket.native_handle());
  return socket;
}

}  // namespace nacre
