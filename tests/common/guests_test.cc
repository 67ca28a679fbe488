#include "common/guests.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <future>

#include "common/runtime.h"

namespace nacre {
namespace {

TEST(Guests, AreOfRuntimesOnly) {
  asio::io_context bare;
  EXPECT_EQ(Guests::Of(bare.get_executor()), nullptr);
  Runtime runtime(1);
  EXPECT_NE(Guests::Of(runtime.executor()), nullptr);
}

TEST(Guests, ARuntimeThatStopsWaitsForThemAndTakesNoMore) {
  auto runtime = std::make_unique<Runtime>(1);
  const auto guests = Guests::Of(runtime->executor());
  ASSERT_TRUE(guests->TryEnter());
  ASSERT_TRUE(guests->TryEnter());
  auto stopped = std::async(std::launch::async, [&] { runtime.reset(); });
  guests->Leave();
  EXPECT_EQ(stopped.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  guests->Leave();
  stopped.get();
  EXPECT_FALSE(guests->TryEnter());
}

}  // namespace
}  // namespace nacre
