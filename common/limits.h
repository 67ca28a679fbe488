// Limits of the namespace. The MDS enforces them; a client that answers before the MDS has foresees them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nacre {

inline constexpr size_t kMaxName = 255;      // bytes of a directory entry's name (POSIX NAME_MAX on Linux)
inline constexpr size_t kMaxSymlink = 4095;  // bytes of a target (PATH_MAX without its NUL)
inline constexpr uint32_t kMaxFileLinks = 65000;  // of anything but a directory
inline constexpr uint32_t kMaxSubdirectories = 1u << 31;

}  // namespace nacre
