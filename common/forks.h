// How this process came to be, for libraries with threads: a forked child has none of them.
#pragma once

#include <cstdint>

namespace nacre {

// The number of forks between the process that loaded this code and this one: another one than before says
// that this is a child of whoever asked then. Costs a look into memory; getpid is a call of the kernel.
// Thread-safe. Forks that are not made by the C library's fork() are not counted.
uint64_t ForksSoFar();

}  // namespace nacre
