#include "transport/select/select_transport.h"

#include <absl/strings/str_format.h>

#include <cerrno>
#include <mutex>
#include <utility>

#include "common/log.h"
#include "transport/memory.h"
#include "transport/select/select_peer.h"
#include "transport/tcp/tcp_listener.h"

namespace nacre {
namespace {

// The listeners of the candidates. Shared with the hellos, which ask for the offers.
class Offered {
 public:
  void Add(std::string path, std::unique_ptr<Listener> listener) {
    std::lock_guard lock(mutex_);
    listeners_.emplace_back(std::move(path), std::move(listener));
  }

  std::vector<PathOffer> offers() {
    std::vector<PathOffer> offers;
    std::lock_guard lock(mutex_);
    for (const auto& [path, listener] : listeners_) {
      std::string where = listener->address();
      if (!where.empty()) offers.push_back({path, std::move(where)});
    }
    return offers;
  }

  void Close() {
    std::vector<std::pair<std::string, std::unique_ptr<Listener>>> listeners;
    std::lock_guard lock(mutex_);
    listeners.swap(listeners_);
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<std::string, std::unique_ptr<Listener>>> listeners_;
};

class SelectListener : public Listener {
 public:
  SelectListener(std::unique_ptr<Listener> tcp, std::shared_ptr<Offered> offered)
      : tcp_(std::move(tcp)), offered_(std::move(offered)) {}
  ~SelectListener() override {
    tcp_.reset();
    offered_->Close();
  }
  std::string address() const override { return tcp_->address(); }

 private:
  std::unique_ptr<Listener> tcp_;
  const std::shared_ptr<Offered> offered_;
};

class SelectTransport : public Transport {
 public:
  SelectTransport(Executor executor, Clock& clock, SelectOptions options)
      : executor_(std::move(executor)),
        clock_(clock),
        options_(std::make_shared<const SelectOptions>(std::move(options))),
        staging_(std::make_shared<StagingRegions>(Registrar(options_))) {}

  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size) override {
    return Registrar(options_)(data, size);
  }

  StatusOr<std::shared_ptr<MemoryRegion>> RegisterShared(std::shared_ptr<SharedMemory> memory) override {
    return RegisterEach(*options_, memory->data(), memory->size(), memory, nullptr,
                        [&](PathCandidate& candidate) { return candidate.RegisterShared(memory); });
  }

  StatusOr<std::shared_ptr<MemoryRegion>> RegisterDevice(std::shared_ptr<MemoryDevice> device,
                                                         std::byte* data, size_t size) override {
    auto with = [&](PathCandidate& candidate) { return candidate.RegisterDevice(device, data, size); };
    return RegisterEach(*options_, data, size, nullptr, device, std::move(with));
  }

  StatusOr<std::shared_ptr<Peer>> Connect(const std::string& address) override {
    return MakeSelectPeer(executor_, clock_, options_, staging_, address);
  }

  StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address, CallHandler handler) override {
    auto shared = std::make_shared<CallHandler>(std::move(handler));
    auto forward = [shared](std::shared_ptr<IncomingCall> call) { return (*shared)(std::move(call)); };
    auto offered = std::make_shared<Offered>();
    for (const auto& candidate : options_->candidates) {
      StatusOr<std::unique_ptr<Listener>> listener = candidate->Listen(forward);
      if (listener.ok()) {
        offered->Add(candidate->name(), *std::move(listener));
        continue;
      }
      if (!options_->fall_back) return Refused(*candidate, listener.status());
      LogInfo("data plane: %s is not offered to clients: %s", candidate->name(), listener.status().message());
    }
    TcpOptions tcp = options_->tcp;
    tcp.offers = [offered] { return offered->offers(); };
    ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener,
                     MakeTcpListener(executor_, clock_, std::move(tcp), address, forward));
    return std::make_unique<SelectListener>(std::move(listener), std::move(offered));
  }

 private:
  // Registers host memory; may outlive the transport.
  static StagingRegions::Register Registrar(std::shared_ptr<const SelectOptions> options) {
    return [options = std::move(options)](std::byte* data, size_t size) {
      return RegisterEach(*options, data, size, nullptr, nullptr,
                          [&](PathCandidate& candidate) { return candidate.Register(data, size); });
    };
  }

  template <typename Function>
  static StatusOr<std::shared_ptr<MemoryRegion>> RegisterEach(const SelectOptions& options, std::byte* data,
                                                              size_t size, std::shared_ptr<void> owner,
                                                              std::shared_ptr<MemoryDevice> device,
                                                              Function register_with) {
    RETURN_IF_ERROR(RegisterHostMemory(data, size).status());
    std::vector<std::shared_ptr<MemoryRegion>> parts;
    for (const auto& candidate : options.candidates) {
      StatusOr<std::shared_ptr<MemoryRegion>> part = register_with(*candidate);
      if (!part.ok() && !options.fall_back) return Refused(*candidate, part.status());
      if (!part.ok()) {
        LogWarning("data plane: calls with a memory of %d bytes do not go over %s: %s", size,
                   candidate->name(), part.status().message());
      }
      parts.push_back(part.ok() ? *std::move(part) : nullptr);
    }
    return std::make_shared<SelectRegion>(data, size, std::move(parts), std::move(owner), std::move(device));
  }

  static Status Refused(const PathCandidate& candidate, const Status& why) {
    return ErrnoError(
        ENOTSUP, absl::StrFormat("%s cannot be used as configured: %s", candidate.name(), why.message()));
  }

  const Executor executor_;
  Clock& clock_;
  const std::shared_ptr<const SelectOptions> options_;
  const std::shared_ptr<StagingRegions> staging_;
};

}  // namespace

std::unique_ptr<Transport> MakeSelectTransport(Executor executor, Clock& clock, SelectOptions options) {
  options.tcp = Complete(std::move(options.tcp));
  return std::make_unique<SelectTransport>(std::move(executor), clock, std::move(options));
}

}  // namespace nacre
