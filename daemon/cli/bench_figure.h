// The figures of one phase of `nacre bench`. Plain data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "common/clock.h"

namespace nacre::cli {

struct Figure {
  std::string name;
  uint64_t operations = 0;
  uint64_t bytes = 0;
  Duration elapsed{0};
  double seconds() const { return std::max(1e-9, std::chrono::duration<double>(elapsed).count()); }
  double microseconds_each() const { return seconds() * 1e6 / static_cast<double>(operations); }
};

}  // namespace nacre::cli
