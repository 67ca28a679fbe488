#include "daemon/cli/layout_options.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>

#include <cerrno>
#include <limits>

namespace nacre::cli {
namespace {

constexpr uint32_t kMostOsts = 65536;

}  // namespace

bool IsOption(const std::string& word, const char* short_name, const char* long_name) {
  return word == short_name || word == long_name;
}

std::string LayoutOption(const std::string& word) {
  if (IsOption(word, "-E", "--component-end")) return "-E";
  if (IsOption(word, "-c", "--stripe-count")) return "-c";
  if (IsOption(word, "-S", "--stripe-size")) return "-S";
  if (IsOption(word, "-N", "--copies")) return "-N";
  return "";
}

StatusOr<std::vector<OstIndex>> ParseOsts(const std::string& text) {
  std::vector<OstIndex> osts;
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    uint32_t first = 0, last = 0;
    bool good =
        ends.size() <= 2 && absl::SimpleAtoi(ends.front(), &first) && absl::SimpleAtoi(ends.back(), &last);
    good = good && first <= last && last < kMostOsts;
    if (!good)
      return ErrnoError(EINVAL,
                        absl::StrFormat("'%s' in '%s' names no OSTs: they look like 3,7,10-12", part, text));
    for (uint32_t ost = first; ost <= last; ++ost) osts.push_back(ost);
  }
  return osts;
}

StatusOr<Fid> ParseFid(const std::string& text) {
  std::string_view inner(text);
  if (inner.size() >= 2 && inner.front() == '[' && inner.back() == ']')
    inner = inner.substr(1, inner.size() - 2);
  const std::vector<std::string> parts = absl::StrSplit(AbslView(inner), ':');
  uint64_t sequence = 0, object = 0, version = 0;
  constexpr uint64_t kMax = std::numeric_limits<uint32_t>::max();
  const bool good = parts.size() == 3 && absl::SimpleHexAtoi(parts[0], &sequence) &&
                    absl::SimpleHexAtoi(parts[1], &object) && absl::SimpleHexAtoi(parts[2], &version) &&
                    object <= kMax && version <= kMax;
  if (!good)
    return ErrnoError(EINVAL, absl::StrFormat("'%s' is no FID: they look like [0x1:0x3b:0x0]", text));
  return Fid{sequence, static_cast<uint32_t>(object), static_cast<uint32_t>(version)};
}

}  // namespace nacre::cli
