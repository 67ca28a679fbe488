#include "daemon/cli/progress.h"

#include <unistd.h>

#include <cstdio>

namespace nacre::cli {
namespace {

constexpr Duration kPatience = 2s;
constexpr Duration kBetween = 200ms;

}  // namespace

Progress::Progress(std::string what)
    : what_(std::move(what)), terminal_(isatty(STDERR_FILENO) == 1), begin_(RealClock().Now()) {}

Progress::~Progress() {
  if (shown_ != 0s) std::fprintf(stderr, "\r\033[K");
}

void Progress::Show(const std::string& state) {
  const Duration now = RealClock().Now();
  if (!terminal_ || now - begin_ < kPatience || now - shown_ < kBetween) return;
  shown_ = now;
  std::fprintf(stderr, "\r\033[K%s: %s", what_.c_str(), state.c_str());
  std::fflush(stderr);
}

}  // namespace nacre::cli
