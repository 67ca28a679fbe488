// Answers systemd's watchdog (WatchdogSec) as long as the runtime's threads carry out tasks: when they hang,
// systemd restarts the daemon. Does nothing where systemd asks for nothing. Borrows the runtime.
#pragma once

#include "common/runtime.h"

namespace nacre {

// Call once, after the daemon is ready. Ends with the runtime.
void StartWatchdog(Runtime& runtime);

}  // namespace nacre
