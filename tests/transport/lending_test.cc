// Buffers that are lent (IncomingCall::Lend), over every transport.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/transport/transport_fixture.h"
#include "transport/shared_memory.h"

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

// Lends pieces that do not touch to places one behind the other: of the size that the body says, but not the
// one that it says.
Task<void> LendPieces(std::span<const std::byte> data, CallPtr call) {
  size_t each = 0, gap = 0;
  EXPECT_EQ(std::sscanf(call->body().c_str(), "%zu %zu", &each, &gap), 2);
  for (size_t at = 0; at < call->memory_size(); at += each) {
    if (at / each == gap) continue;
    std::vector<std::span<const std::byte>> buffers = {data.subspan(2 * at, each)};
    EXPECT_EQ(co_await call->Lend(at, buffers, nullptr), OkStatus());
  }
  std::string reply = "lent";
  EXPECT_EQ(co_await call->Reply(std::move(reply)), OkStatus());
}

// Small ones, too, which a transport may show together.
TEST_P(TransportTest, WhatIsLentComesToItsPlace) {
  constexpr size_t kPieces = 12, kMost = 9000;
  const Bytes data = RandomBytes(2 * kPieces * kMost, 4);
  const auto shared = SharedMemory::Create("nacre-lending-test", data.size()).value();
  std::copy(data.begin(), data.end(), shared->data());
  auto region = server().RegisterShared(shared).value();
  Listen([&](CallPtr call) { return LendPieces({shared->data(), data.size()}, std::move(call)); });
  auto peer = Connect();
  for (const size_t each : {size_t{100}, size_t{4096}, kMost}) {
    for (const size_t gap : {size_t{0}, size_t{3}, size_t{5}, kPieces}) {
      Bytes memory(each * kPieces, std::byte{0x5a});
      const std::string body = std::to_string(each) + " " + std::to_string(gap);
      ASSERT_TRUE(Call(*peer, body, CallMemory::kPutTarget, Whole(memory)).ok());
      const Bytes untouched(each, std::byte{0x5a});
      for (size_t i = 0; i < kPieces; ++i) {
        const auto arrived = std::span(memory).subspan(i * each, each);
        const auto from = i == gap ? std::span(untouched) : std::span(data).subspan(2 * i * each, each);
        ASSERT_TRUE(std::equal(from.begin(), from.end(), arrived.begin())) << i << " of " << each;
      }
    }
  }
}

}  // namespace
}  // namespace nacre
