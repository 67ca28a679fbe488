// Runs one task to its end, on a context of its own: for what waits for nobody else.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "common/task.h"

namespace nacre {

template <typename T>
T Await(Task<T> task) {
  asio::io_context context;
  std::optional<T> result;
  Spawn(context.get_executor(), std::move(task), [&result](T value) { result.emplace(std::move(value)); });
  context.run();
  if (!result.has_value()) {
    std::fputs("Await: the task waits for somebody else\n", stderr);
    std::abort();
  }
  return *std::move(result);
}

}  // namespace nacre
