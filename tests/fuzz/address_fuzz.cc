// Hostile addresses and OST specifications, as people write them: read or refused with a message; a listener
// that other machines can reach is never taken for one that they cannot.
#include <cstdlib>

#include "daemon/config.h"
#include "rpc/grpc_common.h"
#include "transport/tcp/address.h"

namespace nacre {
namespace {

template <typename T>
void Require(const StatusOr<T>& parsed) {
  if (!parsed.ok() && parsed.status().message().empty()) std::abort();
}

void Check(const std::string& text) {
  Require(ParseSocketAddress(text));
  Require(GrpcTarget(text));
  Require(ParseOstFlag(text));
  StatusOr<SocketAddress> address = ParseSocketAddress(text);
  if (!address.ok() || !CheckExposure(text, /*insecure=*/false).ok()) return;
  const auto* tcp = std::get_if<TcpAddress>(&*address);
  if (tcp != nullptr && (tcp->host == "0.0.0.0" || tcp->host == "::" || tcp->host == "*")) std::abort();
}

}  // namespace
}  // namespace nacre

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  nacre::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
