// Chains of tasks that wait, on contexts that run only where a test says so.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <string>

#include "common/task.h"

namespace nacre {

class WaitingChains : public testing::Test {
 protected:
  // Starts a chain that appends the name to what has happened once the shot is set.
  void Wait(asio::io_context& context, OneShot<Unit> shot, char name) {
    Spawn(context.get_executor(), [](OneShot<Unit> shot, std::string& happened, char name) -> Task<void> {
      co_await shot.Wait();
      happened += name;
    }(shot, happened_, name));
    context.poll();
    context.restart();
  }

  asio::io_context context_, other_;
  std::string happened_;
  OneShot<Unit> one_, two_, three_;
};

}  // namespace nacre
