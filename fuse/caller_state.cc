#include "fuse/caller_state.h"

#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace nacre::fuse {
namespace {

constexpr uint64_t kExitingFlag = 4;  // PF_EXITING of the kernel's task flags
constexpr int kFlagsField = 6;        // of /proc/ID/stat, counted from behind the program's name

constexpr uint64_t Bit(int signal) { return uint64_t{1} << (signal - 1); }

constexpr uint64_t kEndsByDefault = ~(Bit(SIGCHLD) | Bit(SIGCONT) | Bit(SIGURG) | Bit(SIGWINCH) |
                                      Bit(SIGSTOP) | Bit(SIGTSTP) | Bit(SIGTTIN) | Bit(SIGTTOU));
constexpr uint64_t kAsksToEnd = Bit(SIGINT) | Bit(SIGTERM) | Bit(SIGQUIT) | Bit(SIGHUP);

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream out;
  out << file.rdbuf();
  return out.str();
}

// The set of signals behind `name` in /proc/ID/status.
uint64_t Signals(const std::string& status, const std::string& name) {
  size_t at = status.find("\n" + name + ":\t");
  return at == std::string::npos ? 0 : std::strtoull(status.c_str() + at + name.size() + 3, nullptr, 16);
}

bool Exiting(const std::string& stat) {
  size_t name_ends = stat.rfind(") ");  // the name may have anything in it
  if (name_ends == std::string::npos) return false;
  std::istringstream fields(stat.substr(name_ends + 2));
  std::string skipped;
  for (int i = 0; i < kFlagsField; ++i) fields >> skipped;
  uint64_t flags = 0;
  return (fields >> flags) && (flags & kExitingFlag) != 0;
}

}  // namespace

CallerState StateOfCaller(const std::string& status, const std::string& stat) {
  if (status.empty() || stat.empty()) return CallerState::kUnseen;
  if (Exiting(stat)) return CallerState::kExiting;
  const uint64_t pending = Signals(status, "SigPnd") | Signals(status, "ShdPnd");
  // The kernel turns most signals that will end a process into a SIGKILL for each of its threads at once.
  if (pending & Bit(SIGKILL)) return CallerState::kKilled;
  const uint64_t counts = pending & ~Signals(status, "SigBlk") & ~Signals(status, "SigIgn");
  const uint64_t caught = Signals(status, "SigCgt");
  if (counts & ~caught & kEndsByDefault) return CallerState::kKilled;
  return counts & caught & kAsksToEnd ? CallerState::kAskedTo : CallerState::kGoesOn;
}

CallerState StateOfCaller(uint32_t thread_id) {
  if (thread_id == 0) return CallerState::kUnseen;
  const std::string directory = "/proc/" + std::to_string(thread_id);
  return StateOfCaller(ReadFile(directory + "/status"), ReadFile(directory + "/stat"));
}

}  // namespace nacre::fuse
