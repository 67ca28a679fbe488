#include "rpc/grpc_common.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <sys/un.h>

#include <cerrno>
#include <mutex>

#include "common/log.h"

namespace nacre {
namespace {

constexpr int kKeepaliveMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 10'000;

struct Impatience {
  int keepalive_ms;
  int keepalive_timeout_ms;
  int connect_ms;  // an attempt to connect takes no longer
  int backoff_ms;  // between two of them at most, a fifth more or less
};

Impatience Of(GrpcPatience patience) {
  switch (patience) {
    case GrpcPatience::kSeveral:
      return {2000, 2500, 1000, 1000};
    case GrpcPatience::kCopies:
      return {1000, 2000, 500, 400};
    case GrpcPatience::kAlone:
      break;
  }
  return {kKeepaliveMs, kKeepaliveTimeoutMs, 1000, 1000};
}

void LogFromGrpc(gpr_log_func_args* args) { LogDebug("grpc: %s", args->message); }

}  // namespace

void QuietGrpc() {
  static std::once_flag once;
  std::call_once(once, [] {
    gpr_set_log_function(LogFromGrpc);
    gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
    grpc_init();  // for good: what is left of a call may outlive its server and all channels
  });
}

StatusOr<std::string> GrpcTarget(const std::string& address) {
  if (absl::StrContains(address, ',')) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("address '%s': one is wanted here; a comma separates several, so "
                                      "the path of a socket can have none",
                                      address));
  }
  if (absl::StartsWith(address, "unix:")) {
    std::string path = address.substr(5);
    if (path.empty() || path[0] != '/') {
      return ErrnoError(EINVAL, absl::StrFormat("address '%s': a unix socket is named unix:/PATH", address));
    }
    if (path.size() >= sizeof(sockaddr_un::sun_path)) {
      return ErrnoError(
          EINVAL, absl::StrFormat("address '%s': the path of a socket has %d bytes at most, this one has %d",
                                  address, sizeof(sockaddr_un::sun_path) - 1, path.size()));
    }
    return address;
  }
  size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port > 65535) {
    return ErrnoError(EINVAL, absl::StrFormat("address '%s': must be HOST:PORT or unix:/PATH", address));
  }
  return "dns:///" + address;
}

void SetChannelArguments(grpc::ChannelArguments* arguments, GrpcPatience patience) {
  const Impatience times = Of(patience);
  arguments->SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments->SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  // Each stream has a connection of its own, so that the failures of one do not make the next one wait.
  arguments->SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments->SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments->SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, times.connect_ms);
  arguments->SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, times.backoff_ms);
  arguments->SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, times.keepalive_ms);
  arguments->SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, times.keepalive_timeout_ms);
  arguments->SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments->SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments->SetString(GRPC_ARG_OPTIMIZATION_TARGET, "latency");
  arguments->SetMaxReceiveMessageSize(kMaxGrpcMessage);
  arguments->SetMaxSendMessageSize(kMaxGrpcMessage);
}

void SetServerArguments(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a second server on the port is refused
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              Of(GrpcPatience::kCopies).keepalive_ms / 2);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder->AddChannelArgument(GRPC_ARG_OPTIMIZATION_TARGET, "latency");
  builder->SetMaxReceiveMessageSize(kMaxGrpcMessage);
  builder->SetMaxSendMessageSize(kMaxGrpcMessage);
}

std::shared_ptr<grpc::Channel> NewGrpcChannel(const std::string& target,
                                              const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                              GrpcPatience patience) {
  QuietGrpc();
  grpc::ChannelArguments arguments;
  SetChannelArguments(&arguments, patience);
  return grpc::CreateCustomChannel(target, credentials, arguments);
}

Status FromGrpc(const grpc::Status& status, const std::string& address) {
  const std::string& why = status.error_message();
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return ErrnoError(ECONNRESET, absl::StrFormat("the MDS at %s ended the connection", address));
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return ErrnoError(ETIMEDOUT, absl::StrFormat("the MDS at %s did not answer in time", address));
    case grpc::StatusCode::UNIMPLEMENTED:
      return ErrnoError(
          ENOTCONN, absl::StrFormat("what listens at %s is not a nacre-mds, or one of another version: %s",
                                    address, why));
    case grpc::StatusCode::RESOURCE_EXHAUSTED:  // trying again changes nothing
      return ErrnoError(EMSGSIZE, absl::StrFormat("the answer of the MDS at %s: %s", address, why));
    case grpc::StatusCode::CANCELLED:
      return ErrnoError(ENOTCONN, absl::StrFormat("the connection to the MDS at %s was closed", address));
    default:
      return ErrnoError(
          ENOTCONN, absl::StrFormat("no connection to the MDS at %s (%s): check that nacre-mds runs there "
                                    "and that the address is right",
                                    address, why));
  }
}

}  // namespace nacre
