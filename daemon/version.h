// The version of the programs; the build sets it.
#pragma once

namespace nacre {

inline constexpr char kVersion[] = NACRE_VERSION;

}  // namespace nacre
