#include "daemon/toml_guard.h"

#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>

#include <cerrno>

namespace nacre {
namespace {

constexpr char kDisguise = '~';

bool BeginsKey(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         std::string_view("_-\"'").find(c) != std::string_view::npos;
}

// A name must follow "[" or "[[" at the beginning of a line. (An array of arrays may begin a line so, too,
// but no key takes one.)
bool NameFollows(std::string_view line) {
  size_t at = line.find_first_not_of(" \t");
  if (at == std::string_view::npos || line[at] != '[') return true;
  at += line.substr(at).starts_with("[[") ? 2 : 1;
  at = line.find_first_not_of(" \t", at);
  return at != std::string_view::npos && BeginsKey(line[at]);
}

}  // namespace

StatusOr<std::string> GuardToml(std::string_view text, const std::string& name) {
  int number = 0;
  for (const auto& line : absl::StrSplit(AbslView(text), '\n')) {
    ++number;
    if (NameFollows({line.data(), line.size()})) continue;
    return ErrnoError(EINVAL,
                      absl::StrFormat("%s:%d: not TOML: a section's name must follow the '['", name, number));
  }
  std::string guarded;
  for (const char c : text) {
    if (c != kDisguise && static_cast<unsigned char>(c) < 0x80) {
      guarded += c;
    } else {
      absl::StrAppendFormat(&guarded, "%c%02x", kDisguise, static_cast<unsigned char>(c));
    }
  }
  return guarded;
}

std::string UnguardToml(std::string_view guarded) {
  std::string text;
  for (size_t i = 0; i < guarded.size(); ++i) {
    if (guarded[i] != kDisguise) {
      text += guarded[i];
      continue;
    }
    text += absl::HexStringToBytes(AbslView(guarded.substr(i + 1, 2)));
    i += 2;
  }
  return text;
}

}  // namespace nacre
