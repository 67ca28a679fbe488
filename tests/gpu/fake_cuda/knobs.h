// The knobs and counters of the fake driver (fake_cuda.h). Thread-safe.
#pragma once

#include <atomic>
#include <string_view>

namespace nacre::fake_cuda {

struct Knobs {
  std::atomic<long> devices{1}, driver{13000}, init{0}, delay{20}, segments{1}, reuse{1}, kernels{1},
      read_only_register{1}, register_error{0}, dma_buf{1}, export_error{0}, memory{0}, pinned{0},
      copy_errors{-1}, device_error{-1}, bar1{0}, ordered{1}, queues{0}, allocations_wait{0}, damage{0},
      room{0};
};
struct Counters {
  std::atomic<long> copies{0}, batches{0}, launches{0}, memsets{0}, contexts{0}, streams{0}, events{0},
      flushes{0}, queries{0};
};

// Of the process; the environment is read at the first call.
Knobs& GetKnobs();
Counters& GetCounters();

bool Configure(std::string_view knobs);

// Whether this copy to a device changes a byte on its way.
bool TakeDamage();

}  // namespace nacre::fake_cuda
