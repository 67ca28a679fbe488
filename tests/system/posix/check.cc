#include "check.h"

#include <dirent.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>

namespace posix {
namespace {

constexpr int kSecondsPerCase = 60;
constexpr unsigned long kShownPerCase = 5;  // a table that fails as a whole shall not hide the rest

// Lies in memory that the processes of all cases share.
struct Counters {
  unsigned long assertions = 0;
  unsigned long failed = 0;
  unsigned long failed_in_case = 0;
};
Counters* counters;

std::vector<std::string>& Contexts() {
  static std::vector<std::string> contexts;
  return contexts;
}

const Case* running;

[[noreturn]] void Fatal(const std::string& what) {
  Assert(false, __FILE__, __LINE__, "cannot prepare the case: " + what + ": " + strerror(errno));
  _exit(1);
}

void Require(bool condition, const std::string& what) {
  if (!condition) Fatal(what);
}

}  // namespace

std::vector<Case>& Cases() {
  static std::vector<Case> cases;
  return cases;
}

bool Assert(bool holds, const char* file, int line, const std::string& what) {
  ++counters->assertions;
  if (holds) return true;
  ++counters->failed;
  if (++counters->failed_in_case > kShownPerCase) return false;
  std::string context;
  for (const std::string& part : Contexts()) context += part + ": ";
  const char* base = strrchr(file, '/');
  printf("FAILED %s: %s\n       %s:%d: %s%s\n", running->topic, running->title, base ? base + 1 : file, line,
         context.c_str(), what.c_str());
  fflush(stdout);
  return false;
}

std::string ErrnoName(int error) {
  if (error == 0) return "success";
  const char* name = strerrorname_np(error);
  return name ? name : std::to_string(error);
}

Context::Context(std::string text) { Contexts().push_back(std::move(text)); }
Context::~Context() { Contexts().pop_back(); }

As::As(const User& user) {
  Require(setgroups(user.groups.size(), user.groups.data()) == 0, "setgroups");
  Require(setresgid(user.gid, user.gid, 0) == 0, "setresgid");
  Require(setresuid(user.uid, user.uid, 0) == 0, "setresuid");
}

As::~As() {
  Require(setresuid(0, 0, 0) == 0, "setresuid");
  Require(setresgid(0, 0, 0) == 0, "setresgid");
  Require(setgroups(0, nullptr) == 0, "setgroups");
}

void MakeFile(const std::string& path, mode_t mode, const std::string& content) {
  Fd fd(open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY, mode));
  Require(fd >= 0, "open " + path);
  Require(write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()), "write " + path);
  if (mode & 07000) Require(fchmod(fd, mode) == 0, "chmod " + path);
}

void MakeDir(const std::string& path, mode_t mode) {
  Require(mkdir(path.c_str(), mode) == 0, "mkdir " + path);
  Require(chmod(path.c_str(), mode) == 0, "chmod " + path);
}

void Give(const std::string& path, const User& user) {
  Require(lchown(path.c_str(), user.uid, user.gid) == 0, "chown " + path);
}

struct stat Stat(const std::string& path) {
  struct stat attr;
  Require(lstat(path.c_str(), &attr) == 0, "lstat " + path);
  return attr;
}

mode_t Mode(const std::string& path) { return Stat(path).st_mode & 07777; }

bool Exists(const std::string& path) {
  struct stat attr;
  return lstat(path.c_str(), &attr) == 0;
}

std::string Content(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDONLY));
  Require(fd >= 0, "open " + path);
  struct stat attr;
  Require(fstat(fd, &attr) == 0, "fstat " + path);
  std::string content(attr.st_size + 1, '\0');
  ssize_t size = read(fd, content.data(), content.size());
  Require(size >= 0, "read " + path);
  content.resize(size);
  return content;
}

std::vector<std::string> Names(const std::string& directory) {
  std::vector<std::string> names;
  DIR* stream = opendir(directory.c_str());
  Require(stream, "opendir " + directory);
  while (const dirent* entry = readdir(stream)) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(stream);
  std::sort(names.begin(), names.end());
  return names;
}

int Fd::Close() {
  int fd = fd_;
  fd_ = -1;
  return fd < 0 ? 0 : close(fd);
}

bool InChild(const std::function<bool()>& body) {
  pid_t pid = fork();
  Require(pid >= 0, "fork");
  if (pid == 0) _exit(body() ? 0 : 1);
  int status = 0;
  return waitpid(pid, &status, 0) == pid && status == 0;
}

void LetTimePass() {
  timespec start, now;
  clock_gettime(CLOCK_REALTIME_COARSE, &start);
  do {
    usleep(1000);
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
  } while ((now.tv_sec - start.tv_sec) * 1'000'000'000L + now.tv_nsec - start.tv_nsec < 10'000'000L);
}

namespace {

void Enter(const std::string& directory) { Require(chdir(directory.c_str()) == 0, "chdir " + directory); }

// Runs one case in a child process; a signal or the time limit counts as a failed assertion.
void RunCase(const Case& the_case, const std::string& top, int number) {
  running = &the_case;
  counters->failed_in_case = 0;
  std::string directory = top + "/" + std::to_string(number);
  MakeDir(directory, 0777);
  pid_t pid = fork();
  Require(pid >= 0, "fork");
  if (pid == 0) {
    alarm(kSecondsPerCase);
    Enter(directory);
    the_case.run();
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (WIFSIGNALED(status)) {
    std::string why = WTERMSIG(status) == SIGALRM ? "it took too long" : strsignal(WTERMSIG(status));
    Assert(false, __FILE__, __LINE__, "the case was ended: " + why);
  }
  std::error_code error;
  std::filesystem::remove_all(directory, error);
  Assert(!error, __FILE__, __LINE__, "its directory cannot be removed: " + error.message());
}

int RunAll(const std::string& top, const std::string& filter) {
  int cases = 0;
  for (const Case& the_case : Cases()) {
    std::string name = std::string(the_case.topic) + ": " + the_case.title;
    if (name.find(filter) == std::string::npos) continue;
    RunCase(the_case, top, ++cases);
  }
  printf("posix: %d cases, %lu assertions, %lu failed\n", cases, counters->assertions, counters->failed);
  return counters->failed == 0 && cases > 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  if (argc == 2 && !strcmp(argv[1], "--list")) {
    for (const Case& the_case : Cases()) printf("%s: %s\n", the_case.topic, the_case.title);
    return 0;
  }
  if (argc < 2 || argc > 3) {
    fprintf(stderr, "usage: posix_suite DIRECTORY [PART-OF-A-NAME]   or   posix_suite --list\n");
    return 2;
  }
  if (geteuid() != 0) {
    fprintf(stderr, "posix_suite: skipped: only root can act as several users\n");
    return 77;
  }
  void* shared = mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  counters = new (shared) Counters;
  Case preparation{"suite", "a directory to work in", nullptr};
  running = &preparation;

  umask(0);
  setgroups(0, nullptr);
  std::string top = std::string(argv[1]) + "/posix-suite-" + std::to_string(getpid());
  MakeDir(top, 0755);
  int rc = RunAll(top, argc == 3 ? argv[2] : "");
  rmdir(top.c_str());
  return rc;
}

}  // namespace
}  // namespace posix

int main(int argc, char** argv) { return posix::Main(argc, argv); }
