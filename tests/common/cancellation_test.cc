#include "common/cancellation.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>

namespace nacre {
namespace {

Task<void> WaitFor(OneShot<Unit> event, std::optional<Status>* result) {
  *result = co_await WaitUnlessCancelled(std::move(event));
}

TEST(Cancellation, EndsTheWaitsOfItsChain) {
  asio::io_context context;
  auto cancellation = std::make_shared<Cancellation>();
  OneShot<Unit> event;
  std::optional<Status> inner;
  auto outer = [](OneShot<Unit> event, std::optional<Status>* result) -> Task<void> {
    co_await WaitFor(std::move(event), result);
  };
  Spawn(
      context.get_executor(), outer(event, &inner), [] {}, cancellation);
  context.poll();
  EXPECT_FALSE(inner.has_value());
  cancellation->Cancel(ErrnoError(EINTR, "enough"));
  context.restart();
  context.poll();
  ASSERT_TRUE(inner.has_value());
  EXPECT_EQ(ToErrno(*inner), EINTR);
  inner.reset();
  Spawn(
      context.get_executor(), outer(OneShot<Unit>(), &inner), [] {}, cancellation);
  context.restart();
  context.poll();
  ASSERT_TRUE(inner.has_value()) << "cancelled before the wait";
  EXPECT_EQ(ToErrno(*inner), EINTR);
}

TEST(Cancellation, LeavesTheWaitsOfOthersAlone) {
  asio::io_context context;
  auto cancellation = std::make_shared<Cancellation>();
  OneShot<Unit> event, other;
  std::optional<Status> result, of_other;
  Spawn(
      context.get_executor(), WaitFor(event, &result), [] {}, cancellation);
  Spawn(context.get_executor(), WaitFor(other, &of_other));
  context.poll();
  event.Set({});
  context.restart();
  context.poll();
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(result->ok());
  cancellation->Cancel(ErrnoError(EINTR, "too late"));
  context.restart();
  context.poll();
  EXPECT_FALSE(of_other.has_value());
  other.Set({});
  context.restart();
  context.poll();
  ASSERT_TRUE(of_other.has_value());
  EXPECT_TRUE(of_other->ok());
}

}  // namespace
}  // namespace nacre
