#include "daemon/watchdog.h"

#include <systemd/sd-daemon.h>

#include "common/clock.h"
#include "daemon/background.h"

namespace nacre {
namespace {

Task<void> Answer(Duration interval) {
  while (true) {
    NotifySystemd("WATCHDOG=1");
    co_await RealClock().Sleep(interval);
  }
}

}  // namespace

void StartWatchdog(Runtime& runtime) {
  uint64_t microseconds = 0;
  if (sd_watchdog_enabled(0, &microseconds) <= 0) return;
  Spawn(runtime.executor(), Answer(std::chrono::microseconds(microseconds / 3)));
}

}  // namespace nacre
