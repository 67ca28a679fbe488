#include "daemon/serve.h"

#include <absl/strings/str_cat.h>

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

// OK: it was asked to end.
Status ServeUntilEnd(Runtime& runtime, OneShot<Status> failed) {
  OneShot<Unit> over;
  auto failure = std::make_shared<Status>();
  Spawn(runtime.executor(),
        [](OneShot<Status> failed, std::shared_ptr<Status> failure, OneShot<Unit> over) -> Task<void> {
          *failure = co_await failed.Wait();
          over.Set({});
        }(failed, failure, over));
  if (WaitForEnd(runtime, over) != 0) return OkStatus();
  LogError("%s", std::string(failure->message()));
  NotifySystemd(absl::StrCat("STATUS=", std::string(failure->message())));
  return *failure;
}

}  // namespace

int Serve(Runtime& runtime, const ServeOptions& options, const std::function<StatusOr<Served>()>& start) {
  MakeFilesPrivate();
  ApplyLogLevel(options.log_level);
  SetLogName(options.log_name);
  auto held = HoldDirectories(options);
  if (!held.ok()) {
    Complain(options.program, held.status());
    return kExitFailure;
  }
  StatusOr<Served> served = start();
  if (!served.ok()) {
    Complain(options.program, served.status());
    return kExitFailure;
  }
  LogInfo("%s", served->description);
  NotifySystemd(absl::StrCat("READY=1\nSTATUS=", served->description));
  StartWatchdog(runtime);
  Status failure = ServeUntilEnd(runtime, served->failed);
  NotifySystemd("STOPPING=1");
  Status stopped = served->stop();
  if (!stopped.ok()) {
    LogError("not everything could be written: %s", std::string(stopped.message()));
    return kExitFailure;
  }
  LogInfo("stopped; everything is on disk");
  return failure.ok() ? 0 : kExitFailure;
}

}  // namespace nacre
