// Times one kind of metadata operation on many files, by several processes at once, each in a directory of
// its own. Usage: metadata_ops create|write4k|stat|unlink DIRECTORY FILES PROCESSES FILES is the number for
// all processes together. Prints the operations per second from the start of the first to the end of the last
// process. `create` and `write4k` make DIRECTORY/PROCESS/NUMBER; `stat` and `unlink` expect them. Exit 1 with
// the failing path on any error.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <string>
#include <vector>

namespace {

using Operation = bool (*)(int directory, const char* name);

bool Create(int directory, const char* name) {
  int fd = openat(directory, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
  return fd >= 0 && close(fd) == 0;
}

bool Write4k(int directory, const char* name) {
  static const std::vector<char> kData(4096, 'n');
  int fd = openat(directory, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
  return fd >= 0 && write(fd, kData.data(), kData.size()) == 4096 && close(fd) == 0;
}

bool Stat(int directory, const char* name) {
  struct stat attr;
  return fstatat(directory, name, &attr, 0) == 0;
}

bool Unlink(int directory, const char* name) { return unlinkat(directory, name, 0) == 0; }

const std::map<std::string, Operation> kOperations = {
    {"create", Create}, {"write4k", Write4k}, {"stat", Stat}, {"unlink", Unlink}};

// Lets the processes begin together. In memory shared by all of them.
struct Gate {
  std::atomic<int> ready = 0;
  std::atomic<bool> open = false;
};

[[noreturn]] void RunProcess(Operation operation, const std::string& path, int files, Gate* gate) {
  int directory = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int failed = directory < 0 ? errno : 0;
  gate->ready++;
  while (!gate->open) usleep(50);
  if (failed) {
    fprintf(stderr, "metadata_ops: %s: %s\n", path.c_str(), strerror(failed));
    _exit(1);
  }
  char name[16];
  for (int i = 0; i < files; ++i) {
    snprintf(name, sizeof(name), "%d", i);
    if (operation(directory, name)) continue;
    fprintf(stderr, "metadata_ops: %s/%s: %s\n", path.c_str(), name, strerror(errno));
    _exit(1);
  }
  _exit(0);
}

// Operations per second, or a negative number when a process failed.
double Run(Operation operation, const std::string& top, int files, int processes) {
  void* shared = mmap(nullptr, sizeof(Gate), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return -1;
  Gate* gate = new (shared) Gate;
  for (int i = 0; i < processes; ++i) {
    std::string path = top + "/" + std::to_string(i);
    mkdir(path.c_str(),
          0755);  // there already when it is not the first operation; opening it reports the rest
    pid_t pid = fork();
    if (pid < 0) return -1;
    if (pid == 0) RunProcess(operation, path, files / processes, gate);
  }
  while (gate->ready < processes) usleep(100);
  auto start = std::chrono::steady_clock::now();
  gate->open = true;
  bool good = true;
  for (int i = 0, status; i < processes; ++i) good &= wait(&status) > 0 && status == 0;
  std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return good ? (files / processes) * processes / taken.count() : -1;
}

}  // namespace

int main(int argc, char** argv) {
  auto operation = argc == 5 ? kOperations.find(argv[1]) : kOperations.end();
  int files = argc == 5 ? atoi(argv[3]) : 0, processes = argc == 5 ? atoi(argv[4]) : 0;
  if (operation == kOperations.end() || processes < 1 || files < processes) {
    fprintf(stderr, "usage: metadata_ops create|write4k|stat|unlink DIRECTORY FILES PROCESSES\n");
    return 2;
  }
  double rate = Run(operation->second, argv[2], files, processes);
  if (rate < 0) return 1;
  printf("%.0f\n", rate);
  return 0;
}
