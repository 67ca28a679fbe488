#include "common/log.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <string>

namespace nacre {
namespace {

struct LevelText {
  char letter;
  const char* journal_prefix;  // sd-daemon(3)
};
constexpr std::array<LevelText, 4> kLevels = {{{'D', "<7>"}, {'I', "<6>"}, {'W', "<4>"}, {'E', "<3>"}}};

std::atomic<LogLevel> g_level{LogLevel::kInfo};
std::mutex g_log_mutex;
std::string g_name;

std::string TimePrefix(char letter) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts;
  localtime_r(&now.tv_sec, &parts);
  return absl::StrFormat("%04d-%02d-%02d %02d:%02d:%02d.%03d %c ", parts.tm_year + 1900, parts.tm_mon + 1,
                         parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, now.tv_nsec / 1000000,
                         letter);
}

}  // namespace

void SetLogLevel(LogLevel level) { g_level = level; }
bool LogEnabled(LogLevel level) { return level >= g_level.load(std::memory_order_relaxed); }

void SetLogName(std::string_view name) {
  std::lock_guard lock(g_log_mutex);
  g_name = std::string(name) + " ";
}

void LogLine(LogLevel level, std::string_view text) {
  static const bool under_systemd = std::getenv("JOURNAL_STREAM") != nullptr;
  const LevelText& shown = kLevels[static_cast<size_t>(level)];
  std::string line = under_systemd ? shown.journal_prefix : TimePrefix(shown.letter);
  std::lock_guard lock(g_log_mutex);
  line.append(g_name).append(text).push_back('\n');
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;  // nowhere left to complain
}

}  // namespace nacre
