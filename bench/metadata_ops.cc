// Times one kind of metadata operation on many files, by several processes at once, one in each DIRECTORY
// (the same one may be named again, a mount's or another's).
//   metadata_ops create|write4k|stat|unlink|read_tree FILES DIRECTORY…
// FILES is the number for all processes together. Prints the operations per second from the start of the
// first to the end of the last process. `create` and `write4k` make DIRECTORY/NUMBER; `stat` and `unlink`
// expect them; `read_tree` stats, opens and reads each file below DIRECTORY. Exit 1 with the failing path on
// any error.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
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
    {"create", Create}, {"write4k", Write4k}, {"stat", Stat}, {"unlink", Unlink}, {"read_tree", nullptr}};

// Lets the processes begin together. In memory shared by all of them.
struct Gate {
  std::atomic<int> ready = 0;
  std::atomic<bool> open = false;
};

[[noreturn]] void Fail(const std::string& path, const char* why) {
  fprintf(stderr, "metadata_ops: %s: %s\n", path.c_str(), why);
  _exit(1);
}

void DoNumbered(Operation operation, int directory, const std::string& path, int files) {
  char name[16];
  for (int i = 0; i < files; ++i) {
    snprintf(name, sizeof(name), "%d", i);
    if (!operation(directory, name)) Fail(path + "/" + name, strerror(errno));
  }
}

bool ReadFile(const std::string& path) {
  static std::vector<char> buffer(1 << 20);
  struct stat attr;
  int fd = stat(path.c_str(), &attr) == 0 ? open(path.c_str(), O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return false;
  ssize_t got = 0;
  off_t sum = 0;
  while ((got = read(fd, buffer.data(), buffer.size())) > 0) sum += got;
  errno = got == 0 ? EIO : errno;  // the reason if it was shorter than stat has said
  return close(fd) == 0 && sum == attr.st_size;
}

void ReadTree(const std::string& path, int files) {
  namespace fs = std::filesystem;
  std::error_code error;
  int found = 0;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (!it->is_regular_file(error)) continue;
    if (!ReadFile(it->path())) Fail(it->path(), strerror(errno));
    ++found;
  }
  if (error) Fail(path, error.message().c_str());
  if (found != files) Fail(path, (std::to_string(found) + " files").c_str());
}

// `operation`: nullptr for read_tree.
[[noreturn]] void RunProcess(Operation operation, const std::string& path, int files, Gate* gate) {
  int directory = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int failed = directory < 0 ? errno : 0;
  gate->ready++;
  while (!gate->open) usleep(50);
  if (failed) Fail(path, strerror(failed));
  if (operation != nullptr) {
    DoNumbered(operation, directory, path, files);
  } else {
    ReadTree(path, files);
  }
  _exit(0);
}

// Operations per second, or a negative number when a process failed.
double Run(Operation operation, int files, const std::vector<std::string>& directories) {
  const int processes = static_cast<int>(directories.size());
  void* shared = mmap(nullptr, sizeof(Gate), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return -1;
  Gate* gate = new (shared) Gate;
  for (const std::string& path : directories) {
    mkdir(path.c_str(),
          0755);  // it is there when this is not the first operation; opening it reports the rest
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
  auto operation = argc > 3 ? kOperations.find(argv[1]) : kOperations.end();
  const std::vector<std::string> directories(argv + std::min(argc, 3), argv + argc);
  int files = argc > 3 ? atoi(argv[2]) : 0;
  if (operation == kOperations.end() || files < argc - 3) {
    fprintf(stderr, "usage: metadata_ops create|write4k|stat|unlink|read_tree FILES DIRECTORY...\n");
    return 2;
  }
  double rate = Run(operation->second, files, directories);
  if (rate < 0) return 1;
  printf("%.0f\n", rate);
  return 0;
}
