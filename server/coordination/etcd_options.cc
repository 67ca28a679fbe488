#include "server/coordination/etcd_options.h"

#include <absl/strings/match.h>
#include <absl/strings/str_format.h>
#include <absl/strings/strip.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "rpc/grpc_common.h"

namespace nacre::coordination {
namespace {

enum class Scheme { kNone, kHttp, kHttps };

Scheme TakeScheme(absl::string_view* endpoint) {
  if (absl::ConsumePrefix(endpoint, "http://")) return Scheme::kHttp;
  if (absl::ConsumePrefix(endpoint, "https://")) return Scheme::kHttps;
  return Scheme::kNone;
}

StatusOr<EtcdAccess::Endpoint> ParseEndpoint(const std::string& endpoint, bool tls) {
  absl::string_view rest = endpoint;
  const Scheme scheme = TakeScheme(&rest);
  absl::ConsumeSuffix(&rest, "/");
  if (tls && scheme == Scheme::kHttp) {
    return ErrnoError(
        EINVAL, absl::StrFormat("etcd endpoint '%s': is without TLS, but a CA file is given", endpoint));
  }
  if (!tls && scheme == Scheme::kHttps) {
    return ErrnoError(
        EINVAL, absl::StrFormat("etcd endpoint '%s': TLS takes a file with the CA's certificate", endpoint));
  }
  const std::string address(rest);
  StatusOr<std::string> target = GrpcTarget(address);
  if (!target.ok() || absl::StartsWith(address, "unix:") || absl::StrContains(address, "/")) {
    return ErrnoError(EINVAL, absl::StrFormat("etcd endpoint '%s': must be HOST:PORT, http://HOST:PORT or "
                                              "https://HOST:PORT",
                                              endpoint));
  }
  return EtcdAccess::Endpoint{address, *std::move(target)};
}

// `what` begins messages, `label` is what a PEM block of this kind has in its first line.
StatusOr<std::string> ReadPem(const std::string& path, const char* what, const char* label) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const int error = errno;
    return ErrnoError(error,
                      absl::StrFormat("etcd: %s '%s' cannot be read: %s", what, path, std::strerror(error)));
  }
  std::ostringstream content;
  content << file.rdbuf();
  std::string bytes = content.str();
  if (!absl::StrContains(bytes, "-----BEGIN ") || !absl::StrContains(bytes, label)) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("etcd: %s '%s' has no block '%s' in PEM format", what, path, label));
  }
  return bytes;
}

Status ReadTls(const EtcdOptions& options, EtcdAccess* access) {
  const bool certificate = !options.certificate_file.empty(), key = !options.key_file.empty();
  if (certificate != key) {
    return ErrnoError(EINVAL, absl::StrFormat("etcd: certificate file '%s' and key file '%s' go together",
                                              options.certificate_file, options.key_file));
  }
  if (certificate && !access->tls) {
    return ErrnoError(EINVAL, absl::StrFormat("etcd: certificate file '%s' takes a CA file, too",
                                              options.certificate_file));
  }
  if (access->tls) {
    ASSIGN_OR_RETURN(access->ca, ReadPem(options.ca_file, "CA file", "CERTIFICATE-----"));
  }
  if (certificate) {
    ASSIGN_OR_RETURN(access->certificate,
                     ReadPem(options.certificate_file, "certificate file", "CERTIFICATE-----"));
    ASSIGN_OR_RETURN(access->key, ReadPem(options.key_file, "key file", "PRIVATE KEY-----"));
  }
  return OkStatus();
}

}  // namespace

StatusOr<EtcdAccess> CheckEtcdOptions(const EtcdOptions& options) {
  EtcdAccess access;
  access.tls = !options.ca_file.empty();
  if (options.endpoints.empty()) return ErrnoError(EINVAL, "etcd: no endpoint is given");
  std::set<std::string> addresses;
  for (const std::string& endpoint : options.endpoints) {
    ASSIGN_OR_RETURN(EtcdAccess::Endpoint parsed, ParseEndpoint(endpoint, access.tls));
    if (!addresses.insert(parsed.address).second) {
      return ErrnoError(EINVAL, absl::StrFormat("etcd endpoint '%s' is given twice", endpoint));
    }
    access.endpoints.push_back(std::move(parsed));
  }
  RETURN_IF_ERROR(ReadTls(options, &access));
  if (options.user.empty() != options.password.empty()) {
    return ErrnoError(EINVAL, absl::StrFormat("etcd: user '%s' %s a password", options.user,
                                              options.user.empty() ? "is empty, but there is" : "lacks"));
  }
  access.user = options.user;
  access.password = options.password;
  if (options.attempt < 10ms || options.attempt > 1min) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("etcd: an attempt of %.3f s; it must be between 0.01 s and 60 s",
                                      std::chrono::duration<double>(options.attempt).count()));
  }
  access.attempt = options.attempt;
  return access;
}

}  // namespace nacre::coordination
