#include "transport/verbs/rdma_candidate.h"

#include <absl/strings/str_cat.h>

#include <utility>

#include "transport/verbs/ibverbs_library.h"
#include "transport/verbs/verbs_listener.h"
#include "transport/verbs/verbs_peer.h"

namespace nacre {
namespace {

class OfferingListener : public Listener {
 public:
  OfferingListener(std::unique_ptr<Listener> listener, const std::string& host,
                   std::shared_ptr<verbs::RailSet> rails)
      : listener_(std::move(listener)), rails_(std::move(rails)) {
    const std::string address = listener_->address();
    offer_ = absl::StrCat(host, address.substr(address.rfind(':')));
  }
  std::string address() const override { return rails_->HasPorts() ? offer_ : std::string(); }

 private:
  const std::unique_ptr<Listener> listener_;
  const std::shared_ptr<verbs::RailSet> rails_;
  std::string offer_;
};

RdmaCandidateOptions WithControl(RdmaCandidateOptions options) {
  options.verbs.control = Complete(std::move(options.verbs.control));
  return options;
}

class RdmaCandidate : public PathCandidate {
 public:
  RdmaCandidate(Executor executor, Clock& clock, RdmaCandidateOptions options)
      : executor_(executor),
        clock_(clock),
        options_(WithControl(std::move(options))),
        rails_(verbs::RailSet::Make(std::move(executor), clock, options_.verbs.rail)) {}
  ~RdmaCandidate() override { rails_->Stop(); }

  std::string name() const override { return "rdma"; }

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

  StatusOr<std::unique_ptr<Listener>> Listen(CallHandler handler) override {
    RETURN_IF_ERROR(options_.required ? LookForRdma() : verbs::LoadIbverbs().status());
    ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener,
                     verbs::MakeVerbsListener(executor_, clock_, options_.verbs.control, rails_,
                                              absl::StrCat(options_.listen_host, ":0"), std::move(handler)));
    return std::make_unique<OfferingListener>(std::move(listener), options_.offered_host, rails_);
  }

  Task<StatusOr<std::shared_ptr<Peer>>> Connect(std::string offer, Duration timeout,
                                                std::shared_ptr<PathMeters> meters) override {
    StatusOr<std::vector<verbs::PortInfo>> here = rails_->Ports();
    if (!here.ok()) co_return here.status();
    TcpOptions control = options_.verbs.control;
    co_return co_await verbs::ConnectVerbsPeer(executor_, clock_, std::move(control), rails_,
                                               std::move(offer), timeout, std::move(meters));
  }

 private:
  const Executor executor_;
  Clock& clock_;
  const RdmaCandidateOptions options_;
  const std::shared_ptr<verbs::RailSet> rails_;
};

}  // namespace

std::shared_ptr<PathCandidate> MakeRdmaCandidate(Executor executor, Clock& clock,
                                                 RdmaCandidateOptions options) {
  return std::make_shared<RdmaCandidate>(std::move(executor), clock, std::move(options));
}

}  // namespace nacre
