// The messages of verbs endpoints, byte by byte (proto/FORMAT.md, "The data plane over verbs"): the endpoint
// blobs that make a pair of queue pairs, the fragments that messages are cut into, calls, and replies with
// data. Pure functions on bytes; everything that arrives is checked here before anybody acts on it.
// Thread-safe.
#pragma once

#include <absl/container/inlined_vector.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "transport/transport.h"
#include "transport/verbs/port.h"

namespace nacre::verbs {

inline constexpr size_t kFragmentHeaderSize = 32;
inline constexpr uint32_t kMinReceive = 2048;  // of a receive: a fragment with its header
inline constexpr uint32_t kMaxReceive = 32 << 10;
inline constexpr uint64_t kMaxWithReply = 4096;  // bytes of a call's memory that may come with the reply
inline constexpr size_t kMaxSpans = 4096;        // of a call's memory
inline constexpr size_t kMaxMessageSize = kMaxBodySize + 8 + kMaxSpans * 24;  // a call with all it may have
inline constexpr uint32_t kMaxCalls = 1 << 16;                                // at once on a connection

// One end of a queue pair, as the other end has to know it.
struct Endpoint {
  LinkLayer link = LinkLayer::kEthernet;
  uint8_t mtu = 0;                 // as enum ibv_mtu
  uint8_t reads_served = 0;        // RDMA reads at once that this end answers
  uint16_t receive = kMinReceive;  // size of its receives: no fragment may be larger
  uint16_t lid = 0;
  uint32_t queue_pair = 0;
  uint32_t sequence = 0;  // of the first packet
  uint32_t credits = 0;   // fragments that may be sent to this end before it grants more
  uint32_t calls = 0;     // from a server: calls at once
  Gid gid{};

  bool operator==(const Endpoint&) const = default;
};

std::string EncodeEndpoint(const Endpoint& endpoint);
StatusOr<Endpoint> ParseEndpoint(std::string_view bytes);

// A client's request to attach: its end, and the server's port that it wants (none: any).
struct AttachMessage {
  Endpoint endpoint;
  std::optional<Gid> wanted;

  bool operator==(const AttachMessage&) const = default;
};

std::string EncodeAttach(const AttachMessage& message);
StatusOr<AttachMessage> ParseAttach(std::string_view bytes);

// A port of the server's, as its hello offers it: under this name, one offer for each port.
inline constexpr char kPortOffer[] = "port";
struct RemotePort {
  LinkLayer link = LinkLayer::kEthernet;
  Gid gid{};

  bool operator==(const RemotePort&) const = default;
};

std::string EncodePort(const RemotePort& port);
StatusOr<RemotePort> ParsePort(std::string_view text);

enum class FragmentKind : uint8_t { kCall = 1, kReply = 2, kCredit = 3, kPing = 4, kPong = 5 };

// `flags` of a reply: the body says what went wrong; it is a ReplyMessage with data.
inline constexpr uint8_t kReplyFailed = 1, kReplyData = 2;

struct FragmentHeader {
  FragmentKind kind = FragmentKind::kCredit;
  uint8_t flags = 0;
  uint16_t length = 0;   // of the payload behind the header
  uint32_t credits = 0;  // that this end grants in addition to those of before
  uint64_t call_id = 0;
  uint32_t offset = 0;  // of the payload in the message
  uint32_t total = 0;   // size of the message

  bool operator==(const FragmentHeader&) const = default;
};

void EncodeFragmentHeader(const FragmentHeader& header, std::byte* out);
// `bytes`: all that was received. INVALID_ARGUMENT: no such fragment may arrive.
StatusOr<FragmentHeader> ParseFragment(std::span<const std::byte> bytes);

// A piece of the caller's memory as the server's device addresses it.
struct RemoteSpan {
  uint64_t address = 0;
  uint64_t length = 0;
  uint64_t key = 0;  // opaque to all but the device; verbs use 32 bits of it

  bool operator==(const RemoteSpan&) const = default;
};

using RemoteSpans = absl::InlinedVector<RemoteSpan, 2>;

struct CallMessage {
  CallMemory kind = CallMemory::kNone;
  // The bytes that are put come with the reply: the memory is one piece without address and key, of
  // kMaxWithReply bytes at most. So the device need not be told about the caller's memory, and reaches none
  // of it.
  bool with_reply = false;
  RemoteSpans memory;
  std::string body;
};

// INVALID_ARGUMENT: a longer body or more spans than a call may have.
StatusOr<std::string> EncodeCall(CallMemory kind, std::span<const RemoteSpan> memory, std::string_view body,
                                 bool with_reply = false);
StatusOr<CallMessage> ParseCall(std::string_view bytes);

// Says that a reply brings [offset, offset + length) of the call's memory.
struct DataRange {
  uint32_t offset = 0;
  uint32_t length = 0;

  bool operator==(const DataRange&) const = default;
};

// All of a reply with data but the data, which follows in the order of the ranges.
std::string EncodeDataReply(std::span<const DataRange> ranges, std::string_view body);

using DataRanges = absl::InlinedVector<DataRange, 2>;

struct DataReply {
  DataRanges ranges;
  std::string_view body, data;  // within what was parsed
};
// The ranges are inside a memory of this size.
StatusOr<DataReply> ParseDataReply(std::string_view bytes, uint64_t memory_size);

}  // namespace nacre::verbs
