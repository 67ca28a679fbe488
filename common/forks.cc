#include "common/forks.h"

#include <pthread.h>

#include <atomic>

namespace nacre {
namespace {

constinit std::atomic<uint64_t> forks{0};

// From the loading of this code on.
[[maybe_unused]] const int watching =
    ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

uint64_t ForksSoFar() { return forks.load(std::memory_order_relaxed); }

}  // namespace nacre
