// A line on the terminal for work that takes more than two seconds; nothing where stderr is no terminal.
// Not thread-safe.
#pragma once

#include <string>

#include "common/clock.h"

namespace nacre::cli {

class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();  // wipes the line
  void Show(const std::string& state);

 private:
  const std::string what_;
  const bool terminal_;
  const Duration begin_;
  Duration shown_{0};
};

}  // namespace nacre::cli
