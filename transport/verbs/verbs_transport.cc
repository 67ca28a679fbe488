#include "transport/verbs/verbs_transport.h"

#include "transport/verbs/rail_set.h"
#include "transport/verbs/verbs_listener.h"
#include "transport/verbs/verbs_peer.h"

namespace nacre {
namespace {

VerbsOptions WithControl(VerbsOptions options) {
  options.control = Complete(std::move(options.control));
  return options;
}

class VerbsTransport : public Transport {
 public:
  VerbsTransport(Executor executor, Clock& clock, VerbsOptions options)
      : executor_(std::move(executor)),
        clock_(clock),
        options_(WithControl(std::move(options))),
        rails_(verbs::RailSet::Make(executor_, clock, options_.rail)) {}
  ~VerbsTransport() override { rails_->Stop(); }

  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size) override {
    return rails_->regions()->Register(data, size);
  }

  StatusOr<std::shared_ptr<MemoryRegion>> RegisterShared(std::shared_ptr<SharedMemory> memory) override {
    return rails_->regions()->RegisterShared(std::move(memory));
  }

  StatusOr<std::shared_ptr<MemoryRegion>> RegisterDevice(std::shared_ptr<MemoryDevice> device,
                                                         std::byte* data, size_t size) override {
    return rails_->regions()->RegisterDevice(std::move(device), data, size);
  }

  StatusOr<std::shared_ptr<Peer>> Connect(const std::string& address) override {
    return verbs::MakeVerbsPeer(executor_, clock_, options_.control, rails_, address);
  }

  StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address, CallHandler handler) override {
    return verbs::MakeVerbsListener(executor_, clock_, options_.control, rails_, address, std::move(handler));
  }

 private:
  const Executor executor_;
  Clock& clock_;
  const VerbsOptions options_;
  const std::shared_ptr<verbs::RailSet> rails_;
};

}  // namespace

Status LookForRdma() { return verbs::RailSet::Look(); }

std::unique_ptr<Transport> MakeVerbsTransport(Executor executor, Clock& clock, VerbsOptions options) {
  return std::make_unique<VerbsTransport>(std::move(executor), clock, std::move(options));
}

}  // namespace nacre
