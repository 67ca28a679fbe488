#include "tests/server/coordination/etcd_cluster.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "common/random.h"

namespace nacre::coordination {
namespace {

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "test of etcd: %s\n", what.c_str());
  std::abort();
}

// Empty if there is no such program.
std::string FindInPath(const std::string& name) {
  const char* named = std::getenv("NACRE_ETCD");
  const char* path = named != nullptr ? named : std::getenv("PATH");
  for (absl::string_view directory : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    std::string program = absl::StrCat(directory, "/", name);
    if (::access(program.c_str(), X_OK) == 0) return program;
  }
  return "";
}

std::string NewDirectory() {
  std::string path = std::filesystem::temp_directory_path() / "nacre-etcd.XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) Die("cannot make a directory at " + path);
  return path;
}

// Whether nobody has it.
bool IsFree(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<uint16_t>(port));
  const bool free = ::bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0;
  ::close(fd);
  return free;
}

// In the child nothing but what may be done between fork and exec.
pid_t Launch(const std::vector<std::string>& words, int output) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid < 0) Die("fork failed");
  if (pid > 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

}  // namespace

int FirstPortOfConnections() {
  int first = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first;
  return first;
}

int FreePort() {
  constexpr int kLowest = 10'000;
  const int end = FirstPortOfConnections() > kLowest ? FirstPortOfConnections() : 1 << 16;
  static std::set<int> given;  // a test program has one thread that makes clusters
  for (int i = 0; i < 1000; ++i) {
    const int port = kLowest + static_cast<int>(SystemRandom().Below(static_cast<uint64_t>(end - kLowest)));
    if (IsFree(port) && given.insert(port).second) return port;
  }
  Die("no free port");
}

std::string NoEtcd() {
  for (const char* name : {"etcd", "etcdctl"}) {
    if (FindInPath(name).empty()) {
      return absl::StrCat("no program '", name,
                          "' (Debian's packages etcd-server and etcd-client have them, ",
                          "NACRE_ETCD names another directory)");
    }
  }
  return "";
}

StatusOr<std::string> RunToEnd(std::vector<std::string> words) {
  words[0] = words[0] == "etcdctl" ? FindInPath("etcdctl") : words[0];
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) Die("no pipe");
  const pid_t pid = Launch(words, pipe[1]);
  ::close(pipe[1]);
  std::string output;
  char buffer[4096];
  ssize_t size = 0;
  while ((size = ::read(pipe[0], buffer, sizeof buffer)) > 0)
    output.append(buffer, static_cast<size_t>(size));
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (status == 0) return output;
  return ErrnoError(EIO, absl::StrCat(absl::StrJoin(words, " "), ": ended with ", status, ": ", output));
}

EtcdCluster::EtcdCluster(Options options) : options_(std::move(options)), directory_(NewDirectory()) {
  members_.resize(static_cast<size_t>(options_.members));
  for (size_t i = 0; i < members_.size(); ++i) {
    members_[i].client_port = FreePort();
    members_[i].peer_port = FreePort();
    members_[i].directory = absl::StrCat(directory_, "/m", i);
  }
  for (int i = 0; i < options_.members; ++i) Start(i);
}

EtcdCluster::~EtcdCluster() {
  for (int i = 0; i < options_.members; ++i) Kill(i);
  std::error_code error;
  std::filesystem::remove_all(directory_, error);
}

std::string EtcdCluster::Url(int port) const {
  return absl::StrCat(options_.tls_directory.empty() ? "http" : "https", "://127.0.0.1:", port);
}

std::vector<std::string> EtcdCluster::endpoints() const {
  std::vector<std::string> endpoints;
  for (const Member& member : members_) endpoints.push_back(absl::StrCat("127.0.0.1:", member.client_port));
  return endpoints;
}

void EtcdCluster::Start(int member) {
  Member& self = members_[static_cast<size_t>(member)];
  std::vector<std::string> cluster;
  for (size_t i = 0; i < members_.size(); ++i) {
    cluster.push_back(absl::StrCat("m", i, "=http://127.0.0.1:", members_[i].peer_port));
  }
  const std::string peer = absl::StrCat("http://127.0.0.1:", self.peer_port);
  std::vector<std::string> words = {FindInPath("etcd"),
                                    "--name",
                                    absl::StrCat("m", member),
                                    "--data-dir",
                                    self.directory,
                                    "--listen-client-urls",
                                    Url(self.client_port),
                                    "--advertise-client-urls",
                                    Url(self.client_port),
                                    "--listen-peer-urls",
                                    peer,
                                    "--initial-advertise-peer-urls",
                                    peer,
                                    "--initial-cluster",
                                    absl::StrJoin(cluster, ","),
                                    "--initial-cluster-token",
                                    directory_,
                                    "--logger",
                                    "zap"};
  if (!options_.tls_directory.empty()) {
    const std::string at = options_.tls_directory + "/";
    words.insert(words.end(), {"--cert-file", at + "server.crt", "--key-file", at + "server.key",
                               "--trusted-ca-file", at + "ca.crt", "--client-cert-auth"});
  }
  words.insert(words.end(), options_.arguments.begin(), options_.arguments.end());
  const int log = ::open((self.directory + ".log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) Die("cannot make a log in " + directory_);
  self.pid = Launch(words, log);
  self.frozen = false;
  ::close(log);
}

void EtcdCluster::Kill(int member) {
  Member& self = members_[static_cast<size_t>(member)];
  if (self.pid < 0) return;
  ::kill(self.pid, SIGKILL);
  int status = 0;
  ::waitpid(self.pid, &status, 0);
  self.pid = -1;
  if (WIFEXITED(status)) Die(absl::StrCat("a member had ended by itself: ", Log(member)));
}

void EtcdCluster::Freeze(int member) {
  Member& self = members_[static_cast<size_t>(member)];
  ::kill(self.pid, SIGSTOP);
  int status = 0;
  ::waitpid(self.pid, &status, WUNTRACED);
  self.frozen = true;
}

void EtcdCluster::Thaw(int member) {
  Member& self = members_[static_cast<size_t>(member)];
  ::kill(self.pid, SIGCONT);
  self.frozen = false;
}

void EtcdCluster::Wipe(int member) {
  std::filesystem::remove_all(members_[static_cast<size_t>(member)].directory);
}

StatusOr<std::string> EtcdCluster::Ctl(std::vector<std::string> words) const {
  std::vector<std::string> endpoints;
  for (const Member& member : members_) {
    if (member.pid >= 0 && !member.frozen) endpoints.push_back(Url(member.client_port));
  }
  std::vector<std::string> all = {"etcdctl", "--endpoints", absl::StrJoin(endpoints, ","), "--dial-timeout",
                                  "5s"};
  if (!options_.tls_directory.empty()) {
    const std::string at = options_.tls_directory + "/";
    all.insert(all.end(),
               {"--cacert", at + "ca.crt", "--cert", at + "client.crt", "--key", at + "client.key"});
  }
  all.insert(all.end(), words.begin(), words.end());
  return RunToEnd(std::move(all));
}

// The lines of "endpoint status": endpoint, id, version, size, leader, ...
int EtcdCluster::Leader() const {
  const StatusOr<std::string> output = Ctl({"endpoint", "status"});
  if (!output.ok()) return -1;
  for (absl::string_view line : absl::StrSplit(*output, '\n')) {
    const std::vector<std::string> fields = absl::StrSplit(line, ", ");
    if (fields.size() < 5 || fields[4] != "true") continue;
    for (size_t i = 0; i < members_.size(); ++i) {
      if (fields[0] == Url(members_[i].client_port)) return static_cast<int>(i);
    }
  }
  return -1;
}

std::string EtcdCluster::Log(int member) const {
  std::ifstream file(members_[static_cast<size_t>(member)].directory + ".log");
  std::string log(std::istreambuf_iterator<char>(file), {});
  return log.size() > 2000 ? log.substr(log.size() - 2000) : log;
}

TestCertificates::TestCertificates() : directory_(NewDirectory()) {
  auto must = [](std::vector<std::string> words) {
    words.insert(words.begin(), "/usr/bin/openssl");
    const StatusOr<std::string> output = RunToEnd(std::move(words));
    if (!output.ok()) Die(std::string(output.status().message()));
  };
  const std::string at = directory_ + "/";
  must({"req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
        at + "ca.key", "-out", at + "ca.crt", "-days", "2", "-subj", "/CN=Test CA"});
  std::ofstream(at + "server.ext") << "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n";
  std::ofstream(at + "client.ext") << "extendedKeyUsage=clientAuth\n";
  for (const std::string name : {"server", "client"}) {
    const std::string base = at + name;
    must({"req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
          base + ".key", "-out", base + ".csr", "-subj", "/CN=" + name});
    must({"x509", "-req", "-in", base + ".csr", "-CA", at + "ca.crt", "-CAkey", at + "ca.key",
          "-CAcreateserial", "-days", "2", "-extfile", base + ".ext", "-out", base + ".crt"});
  }
}

TestCertificates::~TestCertificates() {
  std::error_code error;
  std::filesystem::remove_all(directory_, error);
}

}  // namespace nacre::coordination
