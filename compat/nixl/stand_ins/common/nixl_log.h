// Stands in for NIXL's own header of this name, which its plugin interface includes: that one brings Abseil's
// logging, in a version other than ours, for macros of which the interface uses these.
#pragma once

#include <cassert>
#include <iostream>

#define NIXL_ERROR std::cerr
#define NIXL_ASSERT(condition) assert(condition)
