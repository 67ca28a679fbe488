#include "daemon/serve.h"

#include <absl/strings/str_cat.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/log.h"
#include "daemon/background.h"
#include "daemon/config.h"
#include "daemon/daemon_flags.h"
#include "daemon/ending.h"
#include "daemon/watchdog.h"

namespace nacre {
namespace {

StatusOr<std::vector<std::unique_ptr<PidFile>>> HoldDirectories(const ServeOptions& options) {
  std::vector<std::unique_ptr<PidFile>> held;
  for (const std::string& directory : options.directories) {
    RETURN_IF_ERROR(CheckTarget(options.kind, directory));
    ASSIGN_OR_RETURN(std::unique_ptr<PidFile> file,
                     PidFile::Hold(absl::StrCat(directory, "/", options.log_name, ".pid")));
    held.push_back(std::move(file));
  }
  return held;
}

struct Ending {
  Status failure;  // OK: it was asked to end
  bool anew = false;
};

Ending ServeUntilEnd(Runtime& runtime, const Served& served) {
  OneShot<Unit> over;
  OneShot<Ending> ending;
  auto watch = [&](OneShot<Status> event, bool anew) {
    Spawn(runtime.executor(),
          [](OneShot<Status> event, bool anew, OneShot<Ending> ending, OneShot<Unit> over) -> Task<void> {
            Status failure = co_await event.Wait();
            ending.Set({std::move(failure), anew});
            over.Set({});
          }(event, anew, ending, over));
  };
  watch(served.failed, false);
  watch(served.begin_anew, true);
  if (WaitForEnd(runtime, over) != 0) return {};
  Ending found =
      runtime.Run([](OneShot<Ending> ending) -> Task<Ending> { co_return co_await ending.Wait(); }(ending));
  const std::string why(found.failure.message());
  LogError("%s", why);
  NotifySystemd(absl::StrCat("STATUS=", why));
  return found;
}

// Executes the program again under this process's number, with no files open but its standard streams and the
// signals as at a start. Comes back only with an error.
int BeginAnew(char** arguments) {
  LogInfo("beginning anew");
  NotifySystemd("WATCHDOG=1");
  std::fflush(nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (arguments != nullptr && ::close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC) == 0) {
    ::execv("/proc/self/exe", arguments);
  }
  LogError("cannot begin anew: %s; ending instead", std::strerror(errno));
  std::fflush(nullptr);
  return kExitFailure;
}

}  // namespace

int Serve(Runtime& runtime, const ServeOptions& options, const std::function<StatusOr<Served>()>& start) {
  MakeFilesPrivate();
  ApplyLogLevel(options.log_level);
  SetLogName(options.log_name);
  ::prctl(PR_SET_NAME, options.program.c_str());  // as it is after any start; /proc/self/exe has another
  auto held = HoldDirectories(options);
  if (!held.ok()) {
    Complain(options.program, held.status());
    return kExitFailure;
  }
  StartWatchdog(runtime);  // a process that has begun anew is watched already
  StatusOr<Served> served = start();
  if (!served.ok()) {
    Complain(options.program, served.status());
    return kExitFailure;
  }
  LogInfo("%s", served->description);
  NotifySystemd(absl::StrCat("READY=1\nSTATUS=", served->description));
  const Ending ending = ServeUntilEnd(runtime, *served);
  if (ending.anew) std::_Exit(BeginAnew(options.arguments));
  NotifySystemd("STOPPING=1");
  Status stopped = served->stop();
  if (!stopped.ok()) {
    LogError("not everything could be written: %s", std::string(stopped.message()));
    return kExitFailure;
  }
  LogInfo("stopped; everything is on disk");
  return ending.failure.ok() ? 0 : kExitFailure;
}

}  // namespace nacre
