// Real members of an etcd on loopback, in a temporary directory, ended by their pids: by the destructor, or
// by the kernel if the test program ends before. From the main thread only.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "common/status.h"

namespace nacre::coordination {

// Why there is no etcd to test with; empty: there is one. NACRE_ETCD names the directory of etcd and etcdctl,
// else they are looked for in PATH.
std::string NoEtcd();

// For the begin of a test that takes a real etcd: skips it if there is none, and says so; fails it if
// NACRE_REQUIRE_ETCD is set.
#define NACRE_NEEDS_ETCD()                                                                \
  do {                                                                                    \
    if (const std::string why = ::nacre::coordination::NoEtcd(); !why.empty()) {          \
      if (std::getenv("NACRE_REQUIRE_ETCD") != nullptr) GTEST_FAIL() << why;              \
      std::fprintf(stderr, "SKIPPED, NOT TESTED against a real etcd: %s\n", why.c_str()); \
      GTEST_SKIP() << why;                                                                \
    }                                                                                     \
  } while (false)

// Runs a program to its end; its output, stdout and stderr together. An error has the output in its message.
StatusOr<std::string> RunToEnd(std::vector<std::string> words);

// A port of loopback that nobody has, for a member to listen at also when it is started again. The kernel
// does not give it to a connection meanwhile: who connects again and again to a port where nobody listens
// would even get that port for his own end, and be connected with himself. Never the same twice.
int FreePort();
// The first of those that the kernel gives to connections.
int FirstPortOfConnections();

class EtcdCluster {
 public:
  struct Options {
    int members = 1;
    std::string tls_directory;  // of TestCertificates; empty: without TLS
    std::vector<std::string> arguments;
  };

  // Started, not yet able to answer. Ends the test program if that cannot be.
  explicit EtcdCluster(Options options);
  ~EtcdCluster();
  EtcdCluster(const EtcdCluster&) = delete;
  EtcdCluster& operator=(const EtcdCluster&) = delete;

  std::vector<std::string> endpoints() const;  // HOST:PORT

  void Kill(int member);  // as kill -9 does; gone when this returns
  void Start(int member);
  void Freeze(int member);
  void Thaw(int member);
  void Wipe(int member);  // its data, while it is not running

  // -1: there is none, or nobody says.
  int Leader() const;
  // etcdctl with the endpoints of the members that run.
  StatusOr<std::string> Ctl(std::vector<std::string> words) const;
  // The end of a member's log.
  std::string Log(int member) const;

 private:
  struct Member {
    pid_t pid = -1;
    bool frozen = false;
    int client_port = 0, peer_port = 0;
    std::string directory;
  };

  std::string Url(int port) const;

  const Options options_;
  std::string directory_;
  std::vector<Member> members_;
};

// A CA, a certificate for 127.0.0.1 and one for clients, made by openssl.
class TestCertificates {
 public:
  TestCertificates();
  ~TestCertificates();
  const std::string& directory() const { return directory_; }
  std::string operator/(const std::string& name) const { return directory_ + "/" + name; }

 private:
  std::string directory_;
};

}  // namespace nacre::coordination
