// Limits of the namespace, and what else the MDS decides that a client which answers before the MDS has
// foresees.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nacre {

inline constexpr size_t kMaxName = 255;      // bytes of a directory entry's name (POSIX NAME_MAX on Linux)
inline constexpr size_t kMaxSymlink = 4095;  // bytes of a target (PATH_MAX without its NUL)
inline constexpr uint32_t kMaxFileLinks = 65000;  // of anything but a directory
inline constexpr uint32_t kMaxSubdirectories = 1u << 31;

// Among the flags of an open (of Linux's, __FMODE_EXEC): by the kernel, to run the file. It takes the
// permission to execute and none to read.
inline constexpr uint32_t kOpenToExecute = 0x20;

}  // namespace nacre
