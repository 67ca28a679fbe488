#include "transport/tcp/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "common/random.h"

namespace nacre {
namespace {

using ::testing::HasSubstr;
using Wire = std::array<std::byte, kFrameHeaderSize>;

Wire Encode(const FrameHeader& header) {
  Wire wire;
  EncodeFrameHeader(header, wire.data());
  return wire;
}

Status Check(const FrameHeader& header, FrameReceiver receiver) {
  return ParseFrameHeader(Encode(header), receiver).status();
}

FrameHeader Header(FrameType type, uint8_t flags, uint64_t offset, uint32_t body, uint32_t payload) {
  return {type, flags, 42, offset, body, payload};
}

TEST(Frame, LiesOnTheWireAsFormatMdSays) {
  FrameHeader header = Header(FrameType::kCall, 2, 0x1122334455667788, 0x01020304, 0);
  header.call_id = 0x99aabbccddeeff00;
  const unsigned char expected[kFrameHeaderSize] = {
      'N',  'A',  'C',  1,    2,    2,    0,    0,    0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99,
      0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x04, 0x03, 0x02, 0x01, 0,    0,    0,    0};
  EXPECT_EQ(std::memcmp(Encode(header).data(), expected, sizeof expected), 0);
}

TEST(Frame, ComesBackAsItWas) {
  const std::vector<std::pair<FrameHeader, FrameReceiver>> frames = {
      {Header(FrameType::kHello, 0, 256, 10, 0), FrameReceiver::kClient},
      {Header(FrameType::kHello, 0, 0, kMaxHelloSize, 0), FrameReceiver::kServer},
      {Header(FrameType::kCall, 0, 0, kMaxBodySize, 0), FrameReceiver::kServer},
      {Header(FrameType::kCall, 1, 1 << 30, 0, 0), FrameReceiver::kServer},
      {Header(FrameType::kCall, 2, kMaxEagerSize, 5, kMaxEagerSize), FrameReceiver::kServer},
      {Header(FrameType::kPut, 0, 99, 0, kMaxPayload), FrameReceiver::kClient},
      {Header(FrameType::kGet, 0, 99, 0, 1), FrameReceiver::kClient},
      {Header(FrameType::kData, 0, 99, 0, 1), FrameReceiver::kServer},
      {Header(FrameType::kReply, 1, 0, 77, 0), FrameReceiver::kClient},
  };
  for (const auto& [header, receiver] : frames) {
    auto parsed = ParseFrameHeader(Encode(header), receiver);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, header);
  }
}

TEST(Frame, RefusesWhatBreaksALimit) {
  const std::vector<std::pair<FrameHeader, FrameReceiver>> frames = {
      {Header(FrameType::kHello, 0, 0, kMaxHelloSize + 1, 0), FrameReceiver::kServer},
      {Header(FrameType::kHello, 0, 0, 0, 1), FrameReceiver::kServer},
      {Header(FrameType::kCall, 0, 0, kMaxBodySize + 1, 0), FrameReceiver::kServer},
      {Header(FrameType::kCall, 3, 0, 0, 0), FrameReceiver::kServer},
      {Header(FrameType::kCall, 0, 1, 0, 0), FrameReceiver::kServer},
      {Header(FrameType::kCall, 1, 100, 0, 100), FrameReceiver::kServer},
      {Header(FrameType::kCall, 2, 101, 0, 100), FrameReceiver::kServer},
      {Header(FrameType::kCall, 2, kMaxEagerSize + 1, 0, kMaxEagerSize + 1), FrameReceiver::kServer},
      {Header(FrameType::kPut, 0, 0, 1, 1), FrameReceiver::kClient},
      {Header(FrameType::kPut, 0, 0, 0, 0), FrameReceiver::kClient},
      {Header(FrameType::kPut, 0, 0, 0, kMaxPayload + 1), FrameReceiver::kClient},
      {Header(FrameType::kGet, 0, UINT64_MAX, 0, 1), FrameReceiver::kClient},
      {Header(FrameType::kReply, 0, 0, 0, 1), FrameReceiver::kClient},
      {Header(FrameType::kReply, 0, 0, kMaxBodySize + 1, 0), FrameReceiver::kClient},
      {Header(FrameType::kCall, 0, 0, 0, 0), FrameReceiver::kClient},
      {Header(FrameType::kData, 0, 0, 0, 1), FrameReceiver::kClient},
      {Header(FrameType::kPut, 0, 0, 0, 1), FrameReceiver::kServer},
      {Header(FrameType::kGet, 0, 0, 0, 1), FrameReceiver::kServer},
      {Header(FrameType::kReply, 0, 0, 0, 0), FrameReceiver::kServer},
      {Header(static_cast<FrameType>(0), 0, 0, 0, 0), FrameReceiver::kServer},
      {Header(static_cast<FrameType>(11), 0, 0, 0, 0), FrameReceiver::kClient},
  };
  for (const auto& [header, receiver] : frames) {
    EXPECT_EQ(Check(header, receiver).code(), absl::StatusCode::kInvalidArgument)
        << static_cast<int>(header.type) << " " << header.payload_length;
  }
}

TEST(Frame, SaysWhatIsWrongWithTheBeginning) {
  auto message = [](Wire wire) {
    return std::string(ParseFrameHeader(wire, FrameReceiver::kServer).status().message());
  };
  Wire wire = Encode(Header(FrameType::kHello, 0, 0, 0, 0));
  EXPECT_EQ(message(wire), "");
  wire[3] = std::byte{2};
  EXPECT_THAT(message(wire), HasSubstr("version 2 of the data plane, this side version 1"));
  wire[3] = std::byte{1};
  wire[6] = std::byte{5};
  EXPECT_THAT(message(wire), HasSubstr("0x5"));
  wire[0] = std::byte{'G'};
  EXPECT_THAT(message(wire), HasSubstr("GAC"));
}

TEST(Frame, RandomBytesAreRefusedOrWithinTheLimits) {
  SeededRandom random(1);
  for (int i = 0; i < 20'000; ++i) {
    Wire wire = Encode(Header(static_cast<FrameType>(random.Below(12)), 0, 0, 0, 0));
    for (size_t byte = 5; byte < wire.size(); ++byte) {
      if (random.OneIn(3)) wire[byte] = static_cast<std::byte>(random.Next());
    }
    for (FrameReceiver receiver : {FrameReceiver::kServer, FrameReceiver::kClient}) {
      auto header = ParseFrameHeader(wire, receiver);
      if (!header.ok()) continue;
      EXPECT_LE(header->body_length, kMaxBodySize);
      EXPECT_LE(header->payload_length, kMaxPayload);
    }
  }
}

}  // namespace
}  // namespace nacre
