#include "daemon/background.h"

#include <absl/cleanup/cleanup.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "daemon/system_error.h"

namespace nacre {
namespace {

constexpr int kExitMilliseconds = 5000;  // between letting go of the pid file and the end of a process

struct flock WholeFile() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

// Whether the path still names the open file.
bool IsFile(int file, const std::string& path) {
  struct stat open, named;
  return ::fstat(file, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
}

std::string ReadAll(int file) {
  std::string out;
  char buffer[4096];
  ssize_t size = 0;
  while ((size = ::read(file, buffer, sizeof buffer)) > 0 || (size < 0 && errno == EINTR)) {
    if (size > 0) out.append(buffer, static_cast<size_t>(size));
  }
  return out;
}

void WriteAll(int file, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    ssize_t size = ::write(file, text.data() + done, text.size() - done);
    if (size < 0 && errno != EINTR) return;  // nobody listens
    if (size > 0) done += static_cast<size_t>(size);
  }
}

// The messages of the child to its parent: a kind, a text, kEndOfMessage. The last one is kReady or kFailed.
constexpr char kNote = 'N', kReady = 'R', kFailed = 'F', kEndOfMessage = '\0';

// Prints a message of the child; the exit status if it is the last one.
std::optional<int> Print(std::string_view message) {
  const char kind = message.empty() ? kNote : message[0];
  std::FILE* out = kind == kReady ? stdout : stderr;
  if (!message.empty()) std::fwrite(message.data() + 1, 1, message.size() - 1, out);
  std::fflush(out);
  if (kind == kNote) return std::nullopt;
  return kind == kReady ? 0 : 1;
}

// Waits for the last message; none if the child ends without it, EINTR if a signal comes.
// Signals come through only while it waits, so that none can slip in before.
StatusOr<std::optional<int>> Listen(int pipe, const sigset_t& while_waiting) {
  std::string heard;
  char buffer[4096];
  while (true) {
    pollfd readable{pipe, POLLIN, 0};
    if (::ppoll(&readable, 1, nullptr, &while_waiting) < 0) return ErrnoError(errno, "interrupted");
    const ssize_t size = ::read(pipe, buffer, sizeof buffer);
    if (size < 0) return ErrnoError(errno, "interrupted");
    if (size == 0) return std::nullopt;
    heard.append(buffer, static_cast<size_t>(size));
    for (size_t end; (end = heard.find(kEndOfMessage)) != std::string::npos; heard.erase(0, end + 1)) {
      if (std::optional<int> exit = Print(std::string_view(heard).substr(0, end))) return exit;
    }
  }
}

std::atomic<int> interrupted{0};

// The child has a session of its own, so that a terminal's Ctrl-C reaches the parent alone.
void WatchForInterrupts() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { interrupted = signal; };  // no SA_RESTART: ends the wait
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
}

// Exits like the child turned out.
[[noreturn]] void WaitForChild(pid_t child, int pipe, const std::string& log_file,
                               const sigset_t& unblocked) {
  StatusOr<std::optional<int>> told = Listen(pipe, unblocked);
  if (told.ok() && told->has_value()) std::_Exit(**told);
  if (!told.ok()) ::kill(child, SIGTERM);
  ::sigprocmask(SIG_SETMASK, &unblocked, nullptr);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) ::kill(child, SIGKILL);  // a second Ctrl-C
  if (!told.ok()) std::_Exit(128 + interrupted);
  std::fprintf(stderr, "nacre: the process ended before it was ready; see %s\n", log_file.c_str());
  std::_Exit(1);
}

}  // namespace

StatusOr<std::unique_ptr<PidFile>> PidFile::Hold(const std::string& path) {
  int file = -1;
  for (;;) {
    file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return SystemError(path);
    struct flock lock = WholeFile();
    if (::fcntl(file, F_OFD_SETLK, &lock) != 0) {
      ::close(file);
      StatusOr<pid_t> other = FindProcess(path);
      return ErrnoError(EBUSY,
                        absl::StrFormat("%s: process %d is running already", path, other.ok() ? *other : 0));
    }
    if (IsFile(file, path)) break;
    ::close(file);  // the last holder has removed it since we opened it: somebody else may have the new one
  }
  std::string pid = absl::StrCat(::getpid(), "\n");
  if (::ftruncate(file, 0) != 0 ||
      ::pwrite(file, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    Status status = SystemError(path);
    ::close(file);
    return status;
  }
  return std::unique_ptr<PidFile>(new PidFile(path, file, ::getpid()));
}

PidFile::~PidFile() {
  if (::getpid() == owner_) ::unlink(path_.c_str());
  ::close(file_);
}

StatusOr<pid_t> FindProcess(const std::string& pid_file) {
  int file = ::open(pid_file.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0 && errno != ENOENT && errno != ENOTDIR) return SystemError(pid_file);  // it may be running
  if (file < 0) return ErrnoError(ENOENT, absl::StrFormat("not running (no %s)", pid_file));
  std::string text = ReadAll(file);
  struct flock lock = WholeFile();
  bool held = ::fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  ::close(file);
  if (!held)
    return ErrnoError(ENOENT,
                      absl::StrFormat("not running (%s is left over from a process that is gone)", pid_file));
  pid_t pid = 0;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (!absl::SimpleAtoi(text, &pid) || pid <= 0) {
    return ErrnoError(EINVAL, absl::StrFormat("%s: \"%s\" is not a process number", pid_file, text));
  }
  return pid;
}

// A process lets go of its pid file a moment before it ends, and only its end lets go of the rest:
// directories and the disks that they are on.
Status WaitForProcess(const std::string& pid_file, pid_t process, int seconds) {
  pollfd end{static_cast<int>(::syscall(SYS_pidfd_open, process, 0)), POLLIN, 0};
  absl::Cleanup close = [&] { ::close(end.fd); };
  for (int tenths = 0;; ++tenths) {
    StatusOr<pid_t> holder = FindProcess(pid_file);
    if (!holder.ok() && holder.status().code() != absl::StatusCode::kNotFound) return holder.status();
    if (!holder.ok() || *holder != process) break;
    if (tenths == seconds * 10) {
      return ErrnoError(ETIMEDOUT, absl::StrFormat("process %d has not ended within %d s", process, seconds));
    }
    if (::poll(&end, 1, 100) == 1) break;  // without a descriptor it only waits
  }
  if (end.fd >= 0) ::poll(&end, 1, kExitMilliseconds);
  return OkStatus();
}

Status EndProcess(const std::string& pid_file, int seconds) {
  ASSIGN_OR_RETURN(pid_t pid, FindProcess(pid_file));
  if (::kill(pid, SIGTERM) != 0 && errno != ESRCH)
    return SystemError(absl::StrFormat("cannot end process %d", pid));
  return WaitForProcess(pid_file, pid, seconds);
}

std::unique_ptr<Background> Background::Foreground() {
  return std::unique_ptr<Background>(new Background(-1));
}

StatusOr<std::unique_ptr<Background>> Background::Fork(const std::string& log_file) {
  int log = ::open(log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0) return SystemError(log_file);
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return SystemError("pipe");
  std::fflush(nullptr);
  // Held back until each of the two has its own way of taking it.
  sigset_t interrupts, before;
  ::sigemptyset(&interrupts);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&interrupts, signal);
  ::sigprocmask(SIG_BLOCK, &interrupts, &before);
  pid_t child = ::fork();
  const int failed = child < 0 ? errno : 0;
  if (child <= 0) ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (child < 0) return ErrnoError(failed, absl::StrFormat("fork: %s", std::strerror(failed)));
  if (child > 0) {
    WatchForInterrupts();
    ::close(pipe[1]);
    WaitForChild(child, pipe[0], log_file, before);
  }
  ::close(pipe[0]);
  ::setsid();
  int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup2(null, STDIN_FILENO);
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  ::close(null);
  ::close(log);
  return std::unique_ptr<Background>(new Background(pipe[1]));
}

Background::~Background() {
  if (pipe_ >= 0) ::close(pipe_);
}

void Background::Tell(char kind, const std::string& message) {
  if (pipe_ < 0) return;
  WriteAll(pipe_, kind + message + kEndOfMessage);
  if (kind == kNote) return;
  ::close(pipe_);
  pipe_ = -1;
}

void Background::Note(const std::string& message) { Tell(kNote, message); }

void Background::Ready(const std::string& message) {
  if (pipe_ < 0) {
    std::fputs(message.c_str(), stdout);
    std::fflush(stdout);
  }
  Tell(kReady, message);
  NotifySystemd("READY=1");
}

int Background::Failed(const Status& status) {
  std::string text = absl::StrCat("nacre: ", status.message(), "\n");
  std::fputs(text.c_str(), stderr);
  Tell(kFailed, text);
  return 1;
}

void NotifySystemd(const std::string& state) { ::sd_notify(0, state.c_str()); }

}  // namespace nacre
