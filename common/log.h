// Logging to stderr, one line an entry. Under systemd (JOURNAL_STREAM set) lines carry the journal's priority
// prefix instead of a time. Thread-safe. Format strings are checked at compile time (absl::StrFormat).
#pragma once

#include <absl/strings/str_format.h>

#include <string_view>

namespace nacre {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);
void LogLine(LogLevel level, std::string_view text);
// Shown behind the time in every line, e.g. "oss.1".
void SetLogName(std::string_view name);

template <typename... Args>
void Log(LogLevel level, const absl::FormatSpec<Args...>& format, const Args&... args) {
  if (LogEnabled(level)) LogLine(level, absl::StrFormat(format, args...));
}
template <typename... Args>
void LogDebug(const absl::FormatSpec<Args...>& format, const Args&... args) {
  Log(LogLevel::kDebug, format, args...);
}
template <typename... Args>
void LogInfo(const absl::FormatSpec<Args...>& format, const Args&... args) {
  Log(LogLevel::kInfo, format, args...);
}
template <typename... Args>
void LogWarning(const absl::FormatSpec<Args...>& format, const Args&... args) {
  Log(LogLevel::kWarning, format, args...);
}
template <typename... Args>
void LogError(const absl::FormatSpec<Args...>& format, const Args&... args) {
  Log(LogLevel::kError, format, args...);
}

}  // namespace nacre
