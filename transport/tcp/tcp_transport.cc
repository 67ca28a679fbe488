#include "transport/tcp/tcp_transport.h"

#include <absl/strings/str_format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>

#include "transport/memory.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/tcp_listener.h"
#include "transport/tcp/tcp_peer.h"

namespace nacre {
namespace {

std::string ProcessName() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  return absl::StrFormat("%s, pid %d", host.data(), ::getpid());
}

// A connection carries what one CPU copies on each side. More than these gain little, see
// docs/performance.md.
int LargeConnections() {
  const unsigned cpus = std::thread::hardware_concurrency();
  return static_cast<int>(std::clamp(cpus / 2, 2u, 6u));
}

class TcpTransport : public Transport {
 public:
  TcpTransport(Executor executor, Clock& clock, TcpOptions options)
      : executor_(std::move(executor)), clock_(clock), options_(Complete(std::move(options))) {}

  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size) override {
    return RegisterHostMemory(data, size);
  }

  StatusOr<std::shared_ptr<MemoryRegion>> RegisterDevice(std::shared_ptr<MemoryDevice> device,
                                                         std::byte* data, size_t size) override {
    return RegisterDeviceMemory(std::move(device), data, size);
  }

  StatusOr<std::shared_ptr<Peer>> Connect(const std::string& address) override {
    return MakeTcpPeer(executor_, clock_, options_, address);
  }

  StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address, CallHandler handler) override {
    return MakeTcpListener(executor_, clock_, options_, address, std::move(handler));
  }

 private:
  const Executor executor_;
  Clock& clock_;
  const TcpOptions options_;
};

}  // namespace

TcpOptions Complete(TcpOptions options) {
  if (options.identity.empty()) options.identity = ProcessName();
  if (options.connections == 0) options.connections = options.small_connections + LargeConnections();
  options.calls_per_connection = std::clamp(options.calls_per_connection, 1, 1 << 16);
  return options;
}

std::unique_ptr<Transport> MakeTcpTransport(Executor executor, Clock& clock, TcpOptions options) {
  return std::make_unique<TcpTransport>(std::move(executor), clock, std::move(options));
}

}  // namespace nacre
