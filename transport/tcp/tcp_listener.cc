#include "transport/tcp/tcp_listener.h"

#include <absl/container/flat_hash_map.h>
#include <absl/strings/match.h>
#include <absl/strings/str_format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "common/log.h"
#include "transport/tcp/server_connection.h"

namespace nacre {
namespace {

constexpr Duration kPauseAfterError = std::chrono::milliseconds(100);  // e.g. no file descriptors left

std::string PeerName(const sockaddr_storage& storage, socklen_t size) {
  if (storage.ss_family == AF_UNIX) return "a unix socket";
  asio::ip::tcp::endpoint endpoint;
  std::memcpy(endpoint.data(), &storage, std::min<size_t>(size, endpoint.capacity()));
  endpoint.resize(size);
  return absl::StrFormat("%s:%d", endpoint.address().to_string(), endpoint.port());
}

class ListenerCore : public std::enable_shared_from_this<ListenerCore> {
 public:
  ListenerCore(StreamSocket socket, Executor executor, Clock& clock, TcpOptions options, std::string address,
               CallHandler handler, ServerConnectionMaker make)
      : executor_(executor),
        clock_(clock),
        options_(std::move(options)),
        address_(std::move(address)),
        sink_(std::make_shared<CallSink>(std::move(executor), std::move(handler))),
        make_(std::move(make)),
        socket_(std::move(socket)) {}

  const std::string& address() const { return address_; }

  // Waits for the next connections.
  void Wait() {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    socket_.async_wait(StreamSocket::wait_read,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         if (!error) self->AcceptAll();
                       });
  }

  void Close() {
    absl::flat_hash_map<uint64_t, std::weak_ptr<ServerConnection>> connections;
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
      pause_.reset();
      if (absl::StartsWith(address_, "unix:") && !absl::StartsWith(address_, "unix:@"))
        ::unlink(address_.c_str() + std::strlen("unix:"));
      boost::system::error_code ignored;
      socket_.close(ignored);
      connections.swap(connections_);
    }
    sink_->Close();
    const Status why = ErrnoError(ECONNRESET, absl::StrFormat("the server at %s has stopped", address_));
    for (const auto& [id, weak] : connections) {
      if (auto connection = weak.lock()) connection->Shutdown(why);
    }
  }

 private:
  void AcceptAll() {
    for (;;) {
      sockaddr_storage storage;
      socklen_t size = sizeof storage;
      int fd = -1;
      {
        std::lock_guard lock(mutex_);
        if (closed_) return;
        fd = ::accept4(socket_.native_handle(), reinterpret_cast<sockaddr*>(&storage), &size,
                       SOCK_NONBLOCK | SOCK_CLOEXEC);
      }
      if (fd >= 0) {
        Adopt(fd, storage, size);
        continue;
      }
      if (errno == EAGAIN) return Wait();
      if (errno == ECONNABORTED || errno == EINTR) continue;
      LogWarning("data plane: cannot accept a connection on %s: %s", address_, std::strerror(errno));
      return Pause();
    }
  }

  void Pause() {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    pause_ = clock_.After(executor_, kPauseAfterError, [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->Wait();
    });
  }

  void Adopt(int fd, const sockaddr_storage& storage, socklen_t size) {
    PrepareStream(fd);
    StreamSocket socket(executor_);
    boost::system::error_code error;
    socket.assign(asio::generic::stream_protocol(storage.ss_family, 0), fd, error);
    if (!error) socket.non_blocking(true, error);
    if (error) {
      LogWarning("data plane: cannot use a connection from %s: %s", PeerName(storage, size), error.message());
      return;
    }
    std::shared_ptr<ServerConnection> connection;
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      if (connections_.size() >= static_cast<size_t>(options_.max_connections)) {
        StreamCounters::Tcp().server_refused.Add();
        LogWarning("data plane: refused a connection from %s: there are %d already", PeerName(storage, size),
                   connections_.size());
        return;
      }
      const uint64_t id = ++last_id_;
      auto lost = [weak = weak_from_this(), id] {
        if (auto self = weak.lock()) self->Remove(id);
      };
      connection =
          make_(std::move(socket), PeerName(storage, size), sink_, clock_, options_, std::move(lost));
      connections_.emplace(id, connection);
    }
    connection->Serve();
  }

  void Remove(uint64_t id) {
    std::lock_guard lock(mutex_);
    connections_.erase(id);
  }

  const Executor executor_;
  Clock& clock_;
  const TcpOptions options_;
  const std::string address_;
  const std::shared_ptr<CallSink> sink_;
  const ServerConnectionMaker make_;
  std::mutex mutex_;
  StreamSocket socket_;
  bool closed_ = false;
  uint64_t last_id_ = 0;
  absl::flat_hash_map<uint64_t, std::weak_ptr<ServerConnection>> connections_;
  std::unique_ptr<TimerHandle> pause_;
};

class TcpListener : public Listener {
 public:
  explicit TcpListener(std::shared_ptr<ListenerCore> core) : core_(std::move(core)) {}
  ~TcpListener() override { core_->Close(); }
  std::string address() const override { return core_->address(); }

 private:
  const std::shared_ptr<ListenerCore> core_;
};

}  // namespace

StatusOr<std::unique_ptr<Listener>> MakeTcpListener(Executor executor, Clock& clock, TcpOptions options,
                                                    std::string address, CallHandler handler,
                                                    ServerConnectionMaker make) {
  if (!make) {
    make = [](auto&&... arguments) {
      return std::make_shared<ServerConnection>(std::forward<decltype(arguments)>(arguments)...);
    };
  }
  ASSIGN_OR_RETURN(StreamSocket socket, OpenListener(executor, &address));
  auto core =
      std::make_shared<ListenerCore>(std::move(socket), std::move(executor), clock, std::move(options),
                                     std::move(address), std::move(handler), std::move(make));
  core->Wait();
  return std::make_unique<TcpListener>(std::move(core));
}

}  // namespace nacre
