#include "common/units.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <limits>

namespace nacre {
namespace {

struct TimeUnit {
  std::string_view name;
  Duration length;
};
constexpr std::array kTimeUnits = std::to_array<TimeUnit>({{"d", std::chrono::hours(24)},
                                                           {"h", std::chrono::hours(1)},
                                                           {"min", std::chrono::minutes(1)},
                                                           {"s", 1s},
                                                           {"ms", 1ms},
                                                           {"us", 1us},
                                                           {"ns", 1ns}});

constexpr std::string_view kSizeUnits = "KMGTPE";

std::string Trimmed(std::string_view text) { return std::string(absl::StripAsciiWhitespace(AbslView(text))); }

// The power of 1024 that a unit means, or -1.
int SizeShift(const std::string& unit) {
  if (unit.empty() || unit == "B") return 0;
  size_t i = kSizeUnits.find(unit[0]);
  if (i == std::string_view::npos) return -1;
  std::string rest = unit.substr(1);
  return rest.empty() || rest == "IB" ? static_cast<int>(10 * (i + 1)) : -1;
}

Status NotASize(std::string_view text) {
  return ErrnoError(EINVAL,
                    absl::StrFormat("'%s' is not a size: write a number of bytes, or one with K, M, G, T, P "
                                    "(powers of 1024), such as 64M or 64MiB",
                                    text));
}

Status NotADuration(std::string_view text) {
  return ErrnoError(
      EINVAL,
      absl::StrFormat("'%s' is not a duration: write a number with one of the units ms, s, min, h, d, "
                      "such as 250ms or 5s",
                      text));
}

}  // namespace

StatusOr<uint64_t> ParseSize(std::string_view text) {
  std::string trimmed = Trimmed(text);
  size_t digits = trimmed.find_first_not_of("0123456789");
  if (digits == std::string::npos) digits = trimmed.size();
  uint64_t number = 0;
  if (!absl::SimpleAtoi(trimmed.substr(0, digits), &number)) return NotASize(text);
  int shift = SizeShift(absl::AsciiStrToUpper(Trimmed(std::string_view(trimmed).substr(digits))));
  if (shift < 0) return NotASize(text);
  if (number > (std::numeric_limits<uint64_t>::max() >> shift)) {
    return ErrnoError(EINVAL, absl::StrFormat("'%s' is beyond the largest size of 2^64 - 1 bytes", text));
  }
  return number << shift;
}

StatusOr<Duration> ParseDuration(std::string_view text) {
  std::string trimmed = Trimmed(text);
  size_t digits = trimmed.find_first_not_of("0123456789.");
  if (digits == 0 || digits == std::string::npos) return NotADuration(text);
  double number = 0;
  if (!absl::SimpleAtod(trimmed.substr(0, digits), &number)) return NotADuration(text);
  std::string unit = Trimmed(std::string_view(trimmed).substr(digits));
  for (const TimeUnit& known : kTimeUnits) {
    if (unit != known.name) continue;
    double nanos = number * static_cast<double>(known.length.count());
    if (nanos > 9e18) return ErrnoError(EINVAL, absl::StrFormat("'%s' is longer than 292 years", text));
    return Duration(std::llround(nanos));
  }
  return NotADuration(text);
}

std::string ExactSize(uint64_t bytes) {
  size_t unit = 0;
  while (unit < kSizeUnits.size() && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes) : absl::StrFormat("%d%c", bytes, kSizeUnits[unit - 1]);
}

std::string HumanSize(uint64_t bytes) {
  if (bytes < 1024) return absl::StrFormat("%d B", bytes);
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit < kSizeUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.*f %ciB", value < 10 ? 2 : value < 100 ? 1 : 0, value, kSizeUnits[unit - 1]);
}

std::string ExactDuration(Duration duration) {
  for (const TimeUnit& unit : kTimeUnits) {
    if (duration != 0ns && duration % unit.length == 0ns)
      return absl::StrFormat("%d%s", duration / unit.length, unit.name);
  }
  return "0s";
}

}  // namespace nacre
