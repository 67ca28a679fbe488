// The options that say how an etcd is reached, and their check. Functions without state.
#pragma once

#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace nacre::coordination {

struct EtcdOptions {
  // Members of one cluster, HOST:PORT or http://HOST:PORT or https://HOST:PORT; with and without TLS cannot
  // be mixed.
  std::vector<std::string> endpoints;

  // PEM files, read once. A CA means TLS; by it the members' certificates are judged, which must bear the
  // names or addresses of the endpoints. Certificate and key: for members that ask clients for one.
  std::string ca_file;
  std::string certificate_file;
  std::string key_file;

  // Both empty: no user.
  std::string user;
  std::string password;

  // How long one member is waited for before a reading is tried at the next one; doubled after each round
  // over all members. Also how long a member may be silent, where a watch asks it whether it is still there.
  Duration attempt = 1s;
};

// EtcdOptions after their check, with the files read.
struct EtcdAccess {
  struct Endpoint {
    std::string address;  // as in messages: HOST:PORT
    std::string target;   // as gRPC wants it
  };
  std::vector<Endpoint> endpoints;
  bool tls = false;
  std::string ca, certificate, key;  // the files' bytes
  std::string user, password;
  Duration attempt;
};

// INVALID_ARGUMENT, or what reading a file has met; the message names the option and its value.
StatusOr<EtcdAccess> CheckEtcdOptions(const EtcdOptions& options);

}  // namespace nacre::coordination
