// Buffers that a server lends to a client: when they are shown, in how many puts, and until when they stay.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/shm/shm_fixture.h"
#include "transport/shm/pieces.h"

namespace nacre {
namespace {

class LendsTest : public ShmFixture {};

// Lends parts of the pool that do not touch, to places one behind the other, and replies at once.
Task<void> LendParts(std::shared_ptr<SharedMemory> pool, size_t part, std::shared_ptr<void> keep,
                     CallPtr call) {
  for (size_t at = 0; at < call->memory_size(); at += part) {
    std::vector<std::span<const std::byte>> buffers = {{pool->data() + 2 * at % pool->size(), part}};
    EXPECT_EQ(co_await call->Lend(at, buffers, std::shared_ptr<void>(keep)), OkStatus());
  }
  std::string reply = "lent";
  keep.reset();
  (void)co_await call->Reply(std::move(reply));
}

TEST_P(LendsTest, WhatIsLentComesWithTheReplyAndStaysUntilTaken) {
  Show();
  auto keep = std::make_shared<int>();
  const std::weak_ptr<int> kept = keep;
  Listen([&](CallPtr call) { return LendParts(pool_, 100'000, std::move(keep), std::move(call)); });
  RawSocket socket = HalfAClient(address(), 100'000);
  std::string rest;
  FrameHeader frame = socket.ReceiveFrame(FrameReceiver::kClient, &rest);
  ASSERT_EQ(frame.type, FrameType::kSharedPut);
  EXPECT_EQ(socket.ReceiveFrame(FrameReceiver::kClient, &rest).type, FrameType::kReply);
  EXPECT_EQ(rest, "lent");
  EXPECT_FALSE(kept.expired());
  frame.type = FrameType::kTaken;
  frame.body_length = 0;
  socket.Send(frame);
  EXPECT_TRUE(Eventually([&] { return kept.expired(); }));
}

TEST_P(LendsTest, SmallLendsAreShownAsOne) {
  Show();
  auto keep = std::make_shared<int>();
  const std::weak_ptr<int> kept = keep;
  Listen([&](CallPtr call) { return LendParts(pool_, 4096, std::move(keep), std::move(call)); });
  RawSocket socket = HalfAClient(address(), 16 * 4096);
  std::string rest;
  FrameHeader frame = socket.ReceiveFrame(FrameReceiver::kClient, &rest);
  ASSERT_EQ(frame.type, FrameType::kSharedPut);
  EXPECT_EQ(frame.payload_length, 16u * 4096);
  EXPECT_EQ(frame.body_length, 16 * kSharedPieceSize);
  EXPECT_EQ(socket.ReceiveFrame(FrameReceiver::kClient, &rest).type, FrameType::kReply);
  EXPECT_FALSE(kept.expired());
}

TEST_P(LendsTest, LargeLendsAreShownInFew) {
  Show();
  const size_t part = 1 << 20;
  const size_t together = (4 << 20) / part;
  Listen([&](CallPtr call) { return LendParts(pool_, part, nullptr, std::move(call)); });
  RawSocket socket = HalfAClient(address(), (together + 1) * part);
  std::string rest;
  FrameHeader frame = socket.ReceiveFrame(FrameReceiver::kClient, &rest);
  ASSERT_EQ(frame.type, FrameType::kSharedPut);
  EXPECT_EQ(frame.offset, 0u);
  EXPECT_EQ(frame.payload_length, together * part);
  frame = socket.ReceiveFrame(FrameReceiver::kClient, &rest);
  ASSERT_EQ(frame.type, FrameType::kSharedPut);
  EXPECT_EQ(frame.offset, together * part);
  EXPECT_EQ(frame.payload_length, part);
  EXPECT_EQ(socket.ReceiveFrame(FrameReceiver::kClient, &rest).type, FrameType::kReply);
}

TEST_P(LendsTest, WhatIsLentIsFreeWhenTheClientIsCutOff) {
  auto keep = std::make_shared<int>();
  const std::weak_ptr<int> kept = keep;
  const std::string address =
      ListenQuick([&](CallPtr call) { return LendParts(pool_, 100'000, std::move(keep), std::move(call)); });
  RawSocket socket = HalfAClient(address, 100'000);
  EXPECT_TRUE(socket.WaitForEnd());
  EXPECT_TRUE(Eventually([&] { return kept.expired(); }));
}

INSTANTIATE_TEST_SUITE_P(All, LendsTest, ::testing::ValuesIn(ShmKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre
