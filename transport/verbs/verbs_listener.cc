#include "transport/verbs/verbs_listener.h"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <vector>

#include "common/log.h"
#include "common/metrics.h"
#include "transport/tcp/tcp_listener.h"
#include "transport/verbs/rail_plan.h"
#include "transport/verbs/server_link.h"

namespace nacre::verbs {
namespace {

// Answers requests to attach, and knows the links that came of them.
class Acceptor {
 public:
  Acceptor(Executor executor, Clock& clock, std::shared_ptr<RailSet> rails, std::shared_ptr<CallSink> sink,
           uint32_t calls)
      : executor_(std::move(executor)),
        clock_(clock),
        rails_(std::move(rails)),
        sink_(std::move(sink)),
        calls_(calls) {}

  static Task<StatusOr<Attached>> Accept(std::shared_ptr<Acceptor> self, AttachRequest request) {
    CO_ASSIGN_OR_RETURN(const AttachMessage message, ParseAttach(request.body));
    const Endpoint& remote = message.endpoint;
    CO_ASSIGN_OR_RETURN(std::shared_ptr<Rail> rail,
                        message.wanted ? self->rails_->Choose(remote.link, *message.wanted)
                                       : self->rails_->Choose(remote.link, request.local_ipv4));
    LogDebug("data plane: RDMA from %s on %s", request.client, rail->port().name());
    // Here and not at the first call, which would hold up all others. Memory that cannot be registered is
    // copied.
    (void)co_await RailSet::RegisterOwn(self->rails_, rail);
    auto link = std::make_shared<ServerLink>(std::move(rail), self->rails_->regions(), self->sink_,
                                             std::move(request), self->executor_, self->clock_, self->calls_);
    CO_RETURN_IF_ERROR(link->Open());
    self->Add(link);
    CO_RETURN_IF_ERROR(co_await RailSet::Join(self->rails_, link, remote));
    GetCounter("transport.verbs.server.connections").Add();
    Attached attached{EncodeEndpoint(link->local()), link};
    co_return attached;
  }

  // Ends all links, before anybody finds out that calls are not answered any more.
  void Close() {
    std::vector<std::weak_ptr<ServerLink>> links;
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
      links.swap(links_);
    }
    for (const auto& weak : links) {
      if (auto link = weak.lock()) link->Shutdown(Stopped());
    }
    sink_->Close();
  }

 private:
  static Status Stopped() { return ErrnoError(ECONNRESET, "the server has stopped"); }

  void Add(const std::shared_ptr<ServerLink>& link) {
    {
      std::lock_guard lock(mutex_);
      std::erase_if(links_, [](const auto& known) { return known.expired(); });
      if (!closed_) return links_.push_back(link);
    }
    link->Shutdown(Stopped());
  }

  const Executor executor_;
  Clock& clock_;
  const std::shared_ptr<RailSet> rails_;
  const std::shared_ptr<CallSink> sink_;
  const uint32_t calls_;
  std::mutex mutex_;
  bool closed_ = false;
  std::vector<std::weak_ptr<ServerLink>> links_;
};

std::vector<PathOffer> OfferPorts(RailSet& rails) {
  std::vector<PathOffer> offers;
  const StatusOr<std::vector<PortInfo>> ports = rails.Ports();
  if (!ports.ok()) return offers;
  for (const PortInfo& port : *ports) offers.push_back({kPortOffer, EncodePort({port.link, port.gid})});
  return offers;
}

class VerbsListener : public Listener {
 public:
  VerbsListener(std::unique_ptr<Listener> control, std::shared_ptr<Acceptor> acceptor)
      : control_(std::move(control)), acceptor_(std::move(acceptor)) {}
  ~VerbsListener() override { acceptor_->Close(); }
  std::string address() const override { return control_->address(); }

 private:
  const std::unique_ptr<Listener> control_;
  const std::shared_ptr<Acceptor> acceptor_;
};

}  // namespace

StatusOr<std::unique_ptr<Listener>> MakeVerbsListener(Executor executor, Clock& clock, TcpOptions control,
                                                      std::shared_ptr<RailSet> rails,
                                                      const std::string& address, CallHandler handler) {
  auto shared = std::make_shared<CallHandler>(std::move(handler));
  auto forward = [shared](std::shared_ptr<IncomingCall> call) { return (*shared)(std::move(call)); };
  auto sink = std::make_shared<CallSink>(executor, forward);
  const auto calls = static_cast<uint32_t>(std::clamp<int>(control.calls_per_connection, 1, kMaxCalls));
  auto acceptor = std::make_shared<Acceptor>(executor, clock, rails, std::move(sink), calls);
  control.max_connections *= kMaxRails;  // each rail of a client has one
  control.offers = [rails] { return OfferPorts(*rails); };
  control.attach = [acceptor](AttachRequest request) {
    return Acceptor::Accept(acceptor, std::move(request));
  };
  ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener,
                   MakeTcpListener(executor, clock, std::move(control), address, forward));
  rails->Prepare();
  return std::make_unique<VerbsListener>(std::move(listener), std::move(acceptor));
}

}  // namespace nacre::verbs
