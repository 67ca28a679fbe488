// The life of a server daemon: keep others off its directories, start, say so, wait for the end, stop. Main
// thread only.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/runtime.h"
#include "common/status.h"
#include "daemon/target_directory.h"

namespace nacre {

struct Served {
  std::string description;       // "serving MDT /var/lib/nacre/mdt at 127.0.0.1:7710"
  std::function<Status()> stop;  // must be called before what it stops is destroyed
  OneShot<Status> failed;        // may arrive while it serves: it ends, as a failure
  // May arrive while it serves: the process executes itself anew, without `stop`, as if it had been killed
  // and started again, but with its process number. Where that cannot be done it ends as a failure.
  OneShot<Status> begin_anew;
};

struct ServeOptions {
  std::string program;   // "nacre-mds"
  std::string log_name;  // "mds"
  std::string log_level;
  TargetKind kind = TargetKind::kMdt;
  std::vector<std::string> directories;  // of targets that are there; one server each
  char** arguments = nullptr;            // main's; for begin_anew
};

// The exit status for main. `start` gets everything going or says why not.
int Serve(Runtime& runtime, const ServeOptions& options, const std::function<StatusOr<Served>()>& start);

}  // namespace nacre
