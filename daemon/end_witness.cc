#include "daemon/end_witness.h"

#include <absl/cleanup/cleanup.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "common/log.h"
#include "daemon/system_error.h"

namespace nacre {
namespace {

// Returns when the process has ended.
void AwaitEnd(int process) {
  pollfd end{process, POLLIN, 0};
  while (::poll(&end, 1, -1) < 0 && errno == EINTR) {
  }
}

// The last number in a pipe that nobody writes to any more.
std::optional<uint64_t> ReadLast(int pipe) {
  std::optional<uint64_t> last;
  uint64_t number = 0;
  while (::read(pipe, &number, sizeof number) == sizeof number) last = number;
  return last;
}

[[noreturn]] void Witness(int process, int pipe, const std::function<void(uint64_t)>& tell) {
  ::setsid();
  ::prctl(PR_SET_NAME, "nacre-witness");
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(signal, SIG_IGN);
  AwaitEnd(process);
  if (const std::optional<uint64_t> what = ReadLast(pipe)) tell(*what);
  std::fflush(nullptr);
  ::_exit(0);
}

}  // namespace

StatusOr<EndWitness> EndWitness::Start(std::function<void(uint64_t)> tell) {
  const int self = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  if (self < 0) return SystemError("pidfd_open");
  absl::Cleanup close_self = [self] { ::close(self); };
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return SystemError("pipe2");
  absl::Cleanup close_read = [&ends] { ::close(ends[0]); };
  EndWitness witness(ends[1]);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return SystemError("fork");
  if (child == 0) {
    ::close(ends[1]);
    Witness(self, ends[0], tell);
  }
  return witness;
}

EndWitness::EndWitness(EndWitness&& other) noexcept : pipe_(std::exchange(other.pipe_, -1)) {}

EndWitness::~EndWitness() {
  if (pipe_ >= 0) ::close(pipe_);
}

void EndWitness::Set(uint64_t instance) {
  if (::write(pipe_, &instance, sizeof instance) != sizeof instance)
    LogWarning("the witness of this process's end is gone: %s", std::strerror(errno));
}

}  // namespace nacre
