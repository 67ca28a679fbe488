// The world of the targets that run servers or a client in the simulation (tests/sim): virtual time, one
// thread, nothing left behind.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "common/log.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace nacre::fuzz {

struct Simulated {
  Simulated() { SetLogLevel(LogLevel::kError); }
  ~Simulated() { world.KillAll(); }

  // Nothing: no end within the limit of virtual time.
  template <typename T>
  std::optional<T> Await(sim::Process* process, Task<T> task, Duration limit = 60s) {
    auto result = std::make_shared<std::optional<T>>();
    Spawn(process->executor(), std::move(task), [result](T value) { result->emplace(std::move(value)); });
    world.RunUntil([&] { return result->has_value(); }, limit);
    return std::move(*result);
  }

  sim::World world{1};
  sim::Network network{world};
};

}  // namespace nacre::fuzz
