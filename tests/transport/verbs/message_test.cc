#include "transport/verbs/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

namespace nacre::verbs {
namespace {

using ::testing::HasSubstr;

Endpoint SomeEndpoint() {
  Endpoint endpoint;
  endpoint.mtu = 5;
  endpoint.reads_served = 16;
  endpoint.lid = 0x0102;
  endpoint.queue_pair = 0x030405;
  endpoint.sequence = 0x060708;
  endpoint.credits = 16;
  endpoint.calls = 256;
  for (size_t i = 0; i < endpoint.gid.size(); ++i) endpoint.gid[i] = static_cast<uint8_t>(i);
  return endpoint;
}

TEST(Endpoint, IsWrittenAsDocumented) {
  const std::string bytes = EncodeEndpoint(SomeEndpoint());
  const unsigned char expected[44] = {'N', 'V', 'B', '1', 2, 5,  16, 0, 2,  1,  0,  8,  5,  4, 3,
                                      0,   8,   7,   6,   0, 16, 0,  0, 0,  0,  1,  0,  0,  0, 1,
                                      2,   3,   4,   5,   6, 7,  8,  9, 10, 11, 12, 13, 14, 15};
  ASSERT_EQ(bytes.size(), sizeof expected);
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof expected), 0);
  StatusOr<Endpoint> parsed = ParseEndpoint(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, SomeEndpoint());
}

TEST(Endpoint, RefusesWhatCannotBe) {
  const std::string good = EncodeEndpoint(SomeEndpoint());
  EXPECT_FALSE(ParseEndpoint("").ok());
  EXPECT_FALSE(ParseEndpoint(good.substr(0, 43)).ok());
  EXPECT_FALSE(ParseEndpoint(good + "x").ok());
  const std::pair<size_t, char> changes[] = {{0, 'X'}, {4, 0},       {4, 3},  {5, 0},  {5, 6},  {7, 1},
                                             {11, 7},  {11, '\x81'}, {15, 1}, {19, 1}, {22, 1}, {26, 2}};
  for (auto [place, value] : changes) {
    std::string bad = good;
    bad[place] = value;
    EXPECT_EQ(ParseEndpoint(bad).status().code(), absl::StatusCode::kInvalidArgument) << place;
  }
  Endpoint none = SomeEndpoint();
  none.credits = 0;
  EXPECT_THAT(std::string(ParseEndpoint(EncodeEndpoint(none)).status().message()), HasSubstr("0 credits"));
}

TEST(Attach, MayNameTheServersPort) {
  AttachMessage message{SomeEndpoint(), std::nullopt};
  EXPECT_EQ(EncodeAttach(message), EncodeEndpoint(SomeEndpoint()));
  EXPECT_EQ(*ParseAttach(EncodeAttach(message)), message);
  message.wanted = Gid{1, 2, 3};
  const std::string bytes = EncodeAttach(message);
  EXPECT_EQ(bytes.size(), 60u);
  EXPECT_EQ(bytes.substr(44, 4), std::string("\1\2\3\0", 4));
  EXPECT_EQ(*ParseAttach(bytes), message);
  EXPECT_FALSE(ParseAttach(bytes.substr(0, 59)).ok());
  EXPECT_FALSE(ParseAttach(bytes + "x").ok());
  EXPECT_FALSE(ParseAttach(std::string(60, 'x')).ok());
}

TEST(Port, IsWrittenAsDocumented) {
  const RemotePort port{LinkLayer::kEthernet, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7}};
  EXPECT_EQ(EncodePort(port), "ethernet 00000000000000000000ffff0a000007");
  EXPECT_EQ(*ParsePort(EncodePort(port)), port);
  EXPECT_EQ(ParsePort("infiniband 00000000000000000000ffff0a000007")->link, LinkLayer::kInfiniband);
  for (const char* bad :
       {"", " ", "ethernet", "ethernet ", "token 00000000000000000000ffff0a000007",
        "ethernet 00000000000000000000ffff0a0000", "ethernet 00000000000000000000ffff0a00000x",
        "ethernet 00000000000000000000ffff0a00000700"}) {
    EXPECT_EQ(ParsePort(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

// A receive that holds this header and as much payload as it says.
std::string Fragment(const FragmentHeader& header, size_t payload) {
  std::string bytes(kFragmentHeaderSize + payload, 'p');
  EncodeFragmentHeader(header, reinterpret_cast<std::byte*>(bytes.data()));
  return bytes;
}

StatusOr<FragmentHeader> Parse(const std::string& bytes) {
  return ParseFragment(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

FragmentHeader SomeFragment() {
  FragmentHeader header;
  header.kind = FragmentKind::kReply;
  header.flags = kReplyFailed;
  header.length = 10;
  header.credits = 3;
  header.call_id = 0x1122334455667788;
  header.offset = 5;
  header.total = 15;
  return header;
}

TEST(Fragment, ComesBackAsItWas) {
  StatusOr<FragmentHeader> parsed = Parse(Fragment(SomeFragment(), 10));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, SomeFragment());
}

TEST(Fragment, RefusesWhatBreaksALimit) {
  EXPECT_FALSE(Parse("").ok());
  EXPECT_FALSE(Parse(std::string(31, 0)).ok());
  EXPECT_FALSE(Parse(Fragment(SomeFragment(), 9)).ok());
  EXPECT_FALSE(Parse(Fragment(SomeFragment(), 11)).ok());
  auto refused = [](auto change) {
    FragmentHeader header = SomeFragment();
    change(header);
    return Parse(Fragment(header, header.length)).status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](FragmentHeader& h) { h.kind = static_cast<FragmentKind>(0); }));
  EXPECT_TRUE(refused([](FragmentHeader& h) { h.kind = static_cast<FragmentKind>(6); }));
  EXPECT_TRUE(refused([](FragmentHeader& h) { h.flags = 3; }));
  EXPECT_TRUE(refused([](FragmentHeader& h) { h.kind = FragmentKind::kCall; }));  // with a reply's flag
  EXPECT_TRUE(refused([](FragmentHeader& h) { h.total = 14; }));
  EXPECT_TRUE(refused([](FragmentHeader& h) { h.offset = 16; }));
  EXPECT_TRUE(refused([](FragmentHeader& h) { h.total = kMaxMessageSize + 1; }));
  EXPECT_TRUE(refused([](FragmentHeader& h) { h.credits = 1 << 16; }));
  EXPECT_TRUE(refused([](FragmentHeader& h) { h.length = 0; }));
}

TEST(CallMessage, ComesBackAsItWas) {
  const RemoteSpans memory = {{4096, 100, 7}, {UINT64_MAX - 5, 5, UINT32_MAX}};
  StatusOr<std::string> bytes = EncodeCall(CallMemory::kPutTarget, memory, "request");
  ASSERT_TRUE(bytes.ok());
  StatusOr<CallMessage> call = ParseCall(*bytes);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->kind, CallMemory::kPutTarget);
  EXPECT_EQ(call->memory, memory);
  EXPECT_EQ(call->body, "request");
}

TEST(CallMessage, MayWantWhatIsPutWithTheReply) {
  const RemoteSpans memory = {{0, 4096, 0}};
  const std::string good = EncodeCall(CallMemory::kPutTarget, memory, "request", true).value();
  StatusOr<CallMessage> call = ParseCall(good);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_TRUE(call->with_reply);
  EXPECT_EQ(call->memory, memory);
  EXPECT_FALSE(ParseCall(EncodeCall(CallMemory::kPutTarget, memory, "request").value())->with_reply);
  EXPECT_FALSE(ParseCall(EncodeCall(CallMemory::kGetSource, memory, "", true).value()).ok());
  EXPECT_FALSE(ParseCall(EncodeCall(CallMemory::kNone, {}, "", true).value()).ok());
  const RemoteSpans two(2, RemoteSpan{0, 100, 0}), large = {{0, 4097, 0}};
  EXPECT_FALSE(ParseCall(EncodeCall(CallMemory::kPutTarget, two, "", true).value()).ok());
  EXPECT_FALSE(ParseCall(EncodeCall(CallMemory::kPutTarget, large, "", true).value()).ok());
}

TEST(DataReply, ComesBackAsItWas) {
  const DataRanges ranges = {{10, 4}, {0, 0}, {90, 10}};
  const std::string bytes = EncodeDataReply(ranges, "body") + "the data of it";
  StatusOr<DataReply> reply = ParseDataReply(bytes, 100);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->ranges, ranges);
  EXPECT_EQ(reply->body, "body");
  EXPECT_EQ(reply->data, "the data of it");
  EXPECT_FALSE(ParseDataReply(bytes, 99).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ParseDataReply(bytes.substr(0, size), 100).ok()) << size;
  }
  EXPECT_FALSE(ParseDataReply(bytes + "x", 100).ok());
  EXPECT_TRUE(ParseDataReply(EncodeDataReply({}, std::string(kMaxBodySize, 'b')), 0).ok());
  EXPECT_FALSE(ParseDataReply(EncodeDataReply({}, std::string(kMaxBodySize + 1, 'b')), 0).ok());
}

TEST(CallMessage, RefusesWhatDoesNotFit) {
  const RemoteSpans memory = {{4096, 100, 7}};
  const std::string good = EncodeCall(CallMemory::kGetSource, memory, "request").value();
  EXPECT_FALSE(ParseCall("").ok());
  EXPECT_FALSE(ParseCall(good.substr(0, 7)).ok());
  EXPECT_FALSE(ParseCall(good.substr(0, 8 + 23)).ok());  // cut within the span
  for (auto [place, value] : {std::pair<size_t, char>{0, 3}, {0, 0}, {1, 1}, {2, 1}, {4, 3}, {7, 1}}) {
    std::string bad = good;
    bad[place] = value;
    EXPECT_FALSE(ParseCall(bad).ok()) << place;
  }
  const RemoteSpans wraps = {{UINT64_MAX, 2, 7}};
  EXPECT_FALSE(ParseCall(EncodeCall(CallMemory::kGetSource, wraps, "").value()).ok());
  const RemoteSpans endless = {{0, UINT64_MAX, 7}, {0, 2, 7}};
  EXPECT_FALSE(ParseCall(EncodeCall(CallMemory::kGetSource, endless, "").value()).ok());
  const RemoteSpans wide_key = {{4096, 100, uint64_t{1} << 32}};
  EXPECT_FALSE(ParseCall(EncodeCall(CallMemory::kGetSource, wide_key, "").value()).ok());
  EXPECT_TRUE(ParseCall(std::string(8, '\0') + std::string(kMaxBodySize, 'b')).ok());
  EXPECT_FALSE(ParseCall(std::string(8, '\0') + std::string(kMaxBodySize + 1, 'b')).ok());
  RemoteSpans many(kMaxSpans);
  std::string most = EncodeCall(CallMemory::kPutTarget, many, "").value();
  EXPECT_TRUE(ParseCall(most).ok());
  ++most[4];  // in the number of spans
  EXPECT_FALSE(ParseCall(most + std::string(sizeof(RemoteSpan), '\0')).ok());
  many.emplace_back();
  EXPECT_EQ(EncodeCall(CallMemory::kPutTarget, many, "").status().code(), absl::StatusCode::kInvalidArgument);
  const std::string long_body(kMaxBodySize + 1, 'b');
  EXPECT_EQ(EncodeCall(CallMemory::kNone, {}, long_body).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nacre::verbs
