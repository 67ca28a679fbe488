// Buffers that are lent (IncomingCall::Lend), over every transport.
#include <gtest/gtest.h>

#include "tests/transport/transport_fixture.h"

namespace nacre {
namespace {

using Bytes = std::vector<std::byte>;

// Lent bytes are there when the reply comes, also those lent after others; the buffers are kept until then.
TEST_P(TransportTest, LendsBuffersUntilTheyHaveArrived) {
  Bytes data = RandomBytes(3'000'001, 1);
  auto region = server().Register(data.data(), data.size());
  ASSERT_TRUE(region.ok());
  auto keep = std::make_shared<int>();
  Listen([&data, &keep](CallPtr call) -> Task<void> {
    return [](const Bytes& data, std::shared_ptr<void> keep, CallPtr call) -> Task<void> {
      const size_t first = call->memory_size() / 3;
      std::vector<std::span<const std::byte>> begin = {std::span(data).first(first)};
      std::vector<std::span<const std::byte>> rest = {
          std::span(data).first(call->memory_size()).subspan(first)};
      std::shared_ptr<void> copy = keep;
      EXPECT_EQ(co_await call->Lend(0, begin, std::move(copy)), OkStatus());
      EXPECT_EQ(co_await call->Lend(first, rest, std::move(keep)), OkStatus());
      std::string reply = "lent";
      EXPECT_EQ(co_await call->Reply(std::move(reply)), OkStatus());
    }(data, keep, std::move(call));
  });
  auto peer = Connect();
  for (int round = 0; round < 10; ++round) {
    Bytes memory(round % 2 == 0 ? data.size() : 10'000);
    ASSERT_TRUE(Call(*peer, "", CallMemory::kPutTarget, Whole(memory)).ok());
    ASSERT_TRUE(std::equal(memory.begin(), memory.end(), data.begin())) << round;
  }
  EXPECT_TRUE(Eventually([&] { return keep.use_count() == 1; }));
}

}  // namespace
}  // namespace nacre
