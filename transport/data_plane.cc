#include "transport/data_plane.h"

#include <absl/strings/str_format.h>

#include <cerrno>

#include "transport/select/select_transport.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/address.h"
#include "transport/verbs/message.h"
#include "transport/verbs/rdma_candidate.h"

namespace nacre {
namespace {

// The host in a TCP address, as it is written there; loopback for all else.
std::string HostOf(const std::string& address) {
  const StatusOr<SocketAddress> parsed = ParseSocketAddress(address);
  if (!parsed.ok() || !std::holds_alternative<TcpAddress>(*parsed)) return "127.0.0.1";
  return address.substr(0, address.rfind(':'));
}

RdmaCandidateOptions RdmaOptions(const std::string& choice, const std::string& listen,
                                 const std::string& advertise) {
  RdmaCandidateOptions options;
  options.listen_host = HostOf(listen);
  options.offered_host = HostOf(advertise.empty() ? listen : advertise);
  options.required = choice == "rdma";
  if (!listen.empty()) options.verbs.rail.receive = verbs::kMinReceive;
  return options;
}

}  // namespace

const std::vector<std::string>& TransportChoices() {
  static const std::vector<std::string> choices = {"auto", "shm", "rdma", "tcp"};
  return choices;
}

StatusOr<std::unique_ptr<Transport>> MakeDataPlane(Executor executor, Clock& clock, const std::string& choice,
                                                   const std::string& listen, const std::string& advertise) {
  const Status rdma = choice == "rdma" ? LookForRdma() : OkStatus();
  if (!rdma.ok()) {
    return ErrnoError(ENOTSUP, absl::StrFormat("transport = \"rdma\" is configured, but %s", rdma.message()));
  }
  SelectOptions options;
  if (choice == "auto" || choice == "shm") options.candidates.push_back(MakeShmCandidate(executor, clock));
  if (choice == "auto" || choice == "rdma") {
    options.candidates.push_back(MakeRdmaCandidate(executor, clock, RdmaOptions(choice, listen, advertise)));
  }
  options.fall_back = choice == "auto" || choice == "tcp";
  if (choice == "tcp") options.reason = "transport = \"tcp\" is configured";
  return MakeSelectTransport(std::move(executor), clock, std::move(options));
}

}  // namespace nacre
