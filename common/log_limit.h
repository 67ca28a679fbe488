// Keeps a line that strangers can cause from filling the log: so many in each interval, and with the next one
// that is written how many were left out. Thread-safe.
#pragma once

#include <absl/strings/str_cat.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "common/clock.h"

namespace nacre {

class LogLimit {
 public:
  LogLimit(uint64_t lines, Duration interval) : lines_(lines), interval_(interval) {}

  // No value: do not write it. Else what belongs at the end of the line: nothing, or " (and 1990 more like it
  // before)".
  std::optional<std::string> Admit(Duration now) {
    std::lock_guard lock(mutex_);
    if (!begun_ || now - *begun_ >= interval_) {
      begun_ = now;
      written_ = 0;
    }
    if (written_ >= lines_) {
      ++left_out_;
      return std::nullopt;
    }
    ++written_;
    const uint64_t before = std::exchange(left_out_, 0);
    return before == 0 ? "" : absl::StrCat(" (and ", before, " more like it before)");
  }

 private:
  const uint64_t lines_;
  const Duration interval_;
  std::mutex mutex_;
  std::optional<Duration> begun_;
  uint64_t written_ = 0, left_out_ = 0;
};

}  // namespace nacre
