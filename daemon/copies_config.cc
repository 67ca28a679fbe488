// The section [copies] of nacre.toml.
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "daemon/config.h"
#include "daemon/place.h"
#include "server/coordination/coordinator.h"

namespace nacre {
namespace {

constexpr size_t kMaxName = 100;
constexpr size_t kMaxPrefix = 200;

// Names stand in keys and in messages.
Status FinishName(std::string* name) {
  const bool given = !name->empty();
  if (!given) *name = HostName();
  const bool good = !name->empty() && name->size() <= kMaxName &&
                    std::all_of(name->begin(), name->end(),
                                [](unsigned char c) { return c > ' ' && c < 0x7f && c != '/' && c != ','; });
  if (good) return OkStatus();
  return ErrnoError(
      EINVAL,
      absl::StrFormat("[copies] name %s: must be 1 to %d letters, digits and signs without space, '/' "
                      "and ','%s",
                      given ? "'" + *name + "'" : "'" + *name + "' (the machine's)", kMaxName,
                      given ? "" : "; say one of its own"));
}

// Finds the one address that others are told: the server may listen at all addresses of the machine, or at a
// port that is not known yet.
Status FinishAddress(std::string* address, const std::vector<std::string>& listen) {
  const bool given = !address->empty();
  if (!given) *address = listen.front();
  const std::string what = given ? absl::StrFormat("[copies] address '%s'", *address)
                                 : absl::StrFormat(
                                       "[copies] address is not set, and the first of [mds] "
                                       "listen, '%s', cannot stand for it",
                                       *address);
  if (absl::StrContains(*address, ",")) {
    return ErrnoError(EINVAL, absl::StrFormat("%s: must be one address, without a comma", what));
  }
  if (absl::StartsWith(*address, "unix:/")) return OkStatus();
  const size_t colon = address->rfind(':');
  const std::string host = address->substr(0, colon);
  uint32_t port = 0;
  if (colon == std::string::npos || host.empty() || !absl::SimpleAtoi(address->substr(colon + 1), &port) ||
      port == 0 || port > 65535) {
    return ErrnoError(
        EINVAL, absl::StrFormat("%s: must be HOST:PORT, with a port from 1 to 65535, or unix:/PATH; the "
                                "other MDSes, object servers and clients reach this one there",
                                what));
  }
  if (StandsForEveryAddress(host)) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("%s: '%s' stands for every address of this machine; say the one by "
                                      "which the other MDSes, object servers and clients reach it",
                                      what, host));
  }
  return OkStatus();
}

Status CheckPrefix(const std::string& prefix) {
  if (absl::EndsWith(prefix, "/") && prefix.size() <= kMaxPrefix && coordination::CheckKey(prefix).ok()) {
    return OkStatus();
  }
  return ErrnoError(EINVAL, absl::StrFormat("[copies] prefix '%s': must end with a slash and have at most %d "
                                            "characters, such as \"/nacre/\"; each filesystem has its own",
                                            prefix, kMaxPrefix));
}

StatusOr<std::string> ReadPassword(const std::string& path) {
  std::ifstream file(path);
  std::string password;
  if (!file || !std::getline(file, password)) {
    const int error = file.bad() || !file.is_open() ? errno : 0;
    return ErrnoError(error != 0 ? error : EINVAL,
                      absl::StrFormat("[copies] password_file '%s': %s", path,
                                      error != 0 ? std::strerror(error) : "is empty; its first line counts"));
  }
  while (!password.empty() && password.back() == '\r') password.pop_back();
  return password;
}

// Refuses settings that mean something only together with a coordinator.
Status CheckUnused(const CopiesConfig& config) {
  const std::pair<const char*, const std::string*> keys[] = {{"name", &config.name},
                                                             {"address", &config.address},
                                                             {"ca", &config.ca},
                                                             {"certificate", &config.certificate},
                                                             {"key", &config.key},
                                                             {"user", &config.user},
                                                             {"password_file", &config.password_file}};
  for (const auto& [name, value] : keys) {
    if (value->empty()) continue;
    return ErrnoError(EINVAL, absl::StrFormat("[copies] %s is '%s', but coordinator is empty: name the "
                                              "members of the etcd, or take %s away (a filesystem of one MDS "
                                              "needs neither)",
                                              name, *value, name));
  }
  return OkStatus();
}

}  // namespace

ConfigSection Describe(CopiesConfig* config) {
  ConfigSection section("copies");
  section.List("coordinator", &config->coordinator,
               "members of the etcd that says which of several MDSes is primary; empty: this MDS is the only "
               "one");
  section.Text("name", &config->name, "of this MDS among the several; empty: the machine's name");
  section.Text("address", &config->address,
               "where the other MDSes, object servers and clients reach this one; empty: the first that it "
               "listens at");
  section.Text("prefix", &config->prefix, "of the filesystem's keys in etcd; ends with a slash");
  section.Text("ca", &config->ca, "file with the CA's certificate, for an etcd with TLS");
  section.Text("certificate", &config->certificate, "file with this MDS's certificate for etcd");
  section.Text("key", &config->key, "file with the certificate's key");
  section.Text("user", &config->user, "of etcd; empty: none");
  section.Text("password_file", &config->password_file, "file with the user's password in its first line");
  return section;
}

Status Finish(CopiesConfig* config, const std::vector<std::string>& listen) {
  if (!config->several()) return CheckUnused(*config);
  RETURN_IF_ERROR(FinishName(&config->name));
  RETURN_IF_ERROR(FinishAddress(&config->address, listen));
  RETURN_IF_ERROR(CheckPrefix(config->prefix));
  coordination::EtcdOptions& etcd = config->etcd;
  etcd.endpoints = config->coordinator;
  etcd.ca_file = config->ca;
  etcd.certificate_file = config->certificate;
  etcd.key_file = config->key;
  etcd.user = config->user;
  if (config->user.empty() != config->password_file.empty()) {
    return ErrnoError(
        EINVAL, absl::StrFormat("[copies] user '%s' and password_file '%s' go together: set both, or none",
                                config->user, config->password_file));
  }
  if (!config->password_file.empty()) {
    ASSIGN_OR_RETURN(etcd.password, ReadPassword(config->password_file));
  }
  Status checked = coordination::CheckEtcdOptions(etcd).status();
  if (checked.ok()) return checked;
  return ErrnoError(ToErrno(checked), absl::StrFormat("[copies] %s", std::string(checked.message())));
}

}  // namespace nacre
