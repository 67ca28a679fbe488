// The interface of the POSIX suite to its cases. A case is a function that runs in a process and an empty
// directory of its own (the current directory, mode 0777, owned by root), as root, with umask 0 and a time
// limit; paths are relative to it. Assertions count themselves and print what went wrong with file and line;
// a failed one does not end the case. Single-threaded.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <cerrno>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace posix {

struct Case {
  const char* topic;
  const char* title;
  void (*run)();
};

// Every case of the program, in the order of their files.
std::vector<Case>& Cases();

struct Registration {
  Registration(const char* topic, const char* title, void (*run)()) {
    Cases().push_back({topic, title, run});
  }
};

// Counts an assertion; prints `what` when it does not hold. Returns `holds`.
bool Assert(bool holds, const char* file, int line, const std::string& what);

std::string ErrnoName(int error);

// Text that the messages of all assertions begin with while it lives: the row of a table.
class Context {
 public:
  explicit Context(std::string text);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
};

// The user that the calls within its scope are made by: real, effective and filesystem ids and the
// supplementary groups.
struct User {
  uid_t uid;
  gid_t gid;
  std::vector<gid_t> groups = {};
};
inline const User kAlice{4001, 5001}, kBob{4002, 5002};

class As {
 public:
  explicit As(const User& user);
  ~As();
  As(const As&) = delete;
  As& operator=(const As&) = delete;
};

// Files to work on. All of them end the process with a message when they fail: they are the ground of a case,
// not its subject.
void MakeFile(const std::string& path, mode_t mode = 0644, const std::string& content = "");
void MakeDir(const std::string& path, mode_t mode = 0755);
void Give(const std::string& path, const User& user);  // chown, not through a symbolic link
struct stat Stat(const std::string& path);             // lstat
std::string Content(const std::string& path);
std::vector<std::string> Names(const std::string& directory);  // sorted, without "." and ".."
mode_t Mode(const std::string& path);  // permission bits with setuid, setgid and sticky
bool Exists(const std::string& path);

// An open descriptor that is closed at the end of the scope; -1 and errno when the call failed.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { Close(); }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  operator int() const { return fd_; }  // NOLINT: stands for the number everywhere
  int Close();

 private:
  int fd_;
};

// Runs `body` in a child process as it is; true when it returned true.
bool InChild(const std::function<bool()>& body);

// Waits until a timestamp taken now differs from every one taken before.
void LetTimePass();

template <typename T>
std::string Show(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

}  // namespace posix

#define POSIX_CONCAT_(a, b) a##b
#define POSIX_CONCAT(a, b) POSIX_CONCAT_(a, b)
#define CASE_AT(topic, title, line)                                                              \
  static void POSIX_CONCAT(Run, line)();                                                         \
  static const ::posix::Registration POSIX_CONCAT(registration, line)(topic, title,              \
                                                                      &POSIX_CONCAT(Run, line)); \
  static void POSIX_CONCAT(Run, line)()
#define CASE(topic, title) CASE_AT(topic, title, __LINE__)

#define CHECK(condition) ::posix::Assert((condition), __FILE__, __LINE__, #condition " does not hold")

#define EQUAL(actual, expected)                                                                          \
  do {                                                                                                   \
    const auto actual_ = (actual);                                                                       \
    const decltype(actual_) expected_ = (expected);                                                      \
    ::posix::Assert(actual_ == expected_, __FILE__, __LINE__,                                            \
                    #actual " is " + ::posix::Show(actual_) + ", expected " + ::posix::Show(expected_)); \
  } while (false)

// The call returns something that is not -1.
#define WORKS(call)                                                                                   \
  do {                                                                                                \
    const bool failed_ = (call) == -1;                                                                \
    const int errno_ = errno;                                                                         \
    ::posix::Assert(!failed_, __FILE__, __LINE__, #call " fails with " + ::posix::ErrnoName(errno_)); \
  } while (false)

// The call returns -1 with this error; 0 stands for success.
#define GIVES(error, call)                                                                         \
  do {                                                                                             \
    const int wanted_ = (error);                                                                   \
    const int got_ = (call) == -1 ? errno : 0;                                                     \
    ::posix::Assert(                                                                               \
        got_ == wanted_, __FILE__, __LINE__,                                                       \
        #call " gives " + ::posix::ErrnoName(got_) + ", expected " + ::posix::ErrnoName(wanted_)); \
  } while (false)
