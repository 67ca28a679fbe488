// Keeps texts away from toml++ 3.3 (Debian 12's) on which its behaviour is undefined;
// tests/fuzz/config_fuzz.cc found them. Bytes beyond ASCII pass it in disguise, "~c3" for 0xc3, and are
// invalid outside of strings and comments as before.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace nacre {

// The text to parse. INVALID_ARGUMENT: "NAME:LINE: not TOML: …".
StatusOr<std::string> GuardToml(std::string_view text, const std::string& name);

// A string of the parsed text as it was written.
std::string UnguardToml(std::string_view guarded);

}  // namespace nacre
