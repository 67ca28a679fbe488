#include "transport/verbs/message.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_format.h>

#include <bit>
#include <charconv>
#include <cstring>

namespace nacre::verbs {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are written without byte swaps");

constexpr char kMagic[4] = {'N', 'V', 'B', '1'};

// As the bytes lie in the attach frames.
struct WireEndpoint {
  char magic[4];
  uint8_t link;
  uint8_t mtu;
  uint8_t reads_served;
  uint8_t reserved;
  uint16_t lid;
  uint16_t receive;
  uint32_t queue_pair;
  uint32_t sequence;
  uint32_t credits;
  uint32_t calls;
  uint8_t gid[16];
};
static_assert(sizeof(WireEndpoint) == 44);

// As the bytes lie at the beginning of a receive.
struct WireFragment {
  uint8_t kind;
  uint8_t flags;
  uint16_t length;
  uint32_t credits;
  uint64_t call_id;
  uint32_t offset;
  uint32_t total;
  uint64_t reserved;
};
static_assert(sizeof(WireFragment) == kFragmentHeaderSize);

// At the beginning of a call message; then the spans, then the body.
struct WireCall {
  uint8_t kind;
  uint8_t with_reply;
  uint8_t reserved[2];
  uint32_t spans;
};
static_assert(sizeof(WireCall) == 8);
static_assert(sizeof(RemoteSpan) == 24);

// At the beginning of a reply with data; then the ranges, the body, the data.
struct WireDataReply {
  uint32_t ranges;
  uint32_t body;
};
static_assert(sizeof(DataRange) == 8);
static_assert(kMaxMessageSize == kMaxBodySize + sizeof(WireCall) + kMaxSpans * sizeof(RemoteSpan));

template <typename... Args>
Status Malformed(const absl::FormatSpec<Args...>& format, const Args&... args) {
  return ErrnoError(EPROTO, absl::StrFormat(format, args...));
}

}  // namespace

std::string EncodeEndpoint(const Endpoint& endpoint) {
  WireEndpoint wire{};
  std::memcpy(wire.magic, kMagic, sizeof kMagic);
  wire.link = static_cast<uint8_t>(endpoint.link);
  wire.mtu = endpoint.mtu;
  wire.reads_served = endpoint.reads_served;
  wire.lid = endpoint.lid;
  wire.receive = endpoint.receive;
  wire.queue_pair = endpoint.queue_pair;
  wire.sequence = endpoint.sequence;
  wire.credits = endpoint.credits;
  wire.calls = endpoint.calls;
  std::memcpy(wire.gid, endpoint.gid.data(), sizeof wire.gid);
  return std::string(reinterpret_cast<const char*>(&wire), sizeof wire);
}

StatusOr<Endpoint> ParseEndpoint(std::string_view bytes) {
  WireEndpoint wire;
  if (bytes.size() != sizeof wire) {
    return Malformed("an endpoint of %d bytes, not %d", bytes.size(), sizeof wire);
  }
  std::memcpy(&wire, bytes.data(), sizeof wire);
  if (std::memcmp(wire.magic, kMagic, sizeof kMagic) != 0) {
    const absl::string_view magic(wire.magic, sizeof wire.magic);
    return Malformed("an endpoint that begins with \"%s\"", absl::CHexEscape(magic));
  }
  if (wire.link != static_cast<uint8_t>(LinkLayer::kInfiniband) &&
      wire.link != static_cast<uint8_t>(LinkLayer::kEthernet)) {
    return Malformed("an endpoint on link layer %d", wire.link);
  }
  if (wire.mtu < IBV_MTU_256 || wire.mtu > IBV_MTU_4096)
    return Malformed("an endpoint with MTU code %d", wire.mtu);
  if (wire.queue_pair >= 1 << 24 || wire.sequence >= 1 << 24) {
    return Malformed("queue pair %#x, sequence %#x: beyond 24 bits", wire.queue_pair, wire.sequence);
  }
  if (wire.credits == 0 || wire.credits > UINT16_MAX)
    return Malformed("an endpoint with %d credits", wire.credits);
  if (wire.calls > kMaxCalls) return Malformed("an endpoint for %d calls at once", wire.calls);
  if (wire.receive < kMinReceive || wire.receive > kMaxReceive)
    return Malformed("an endpoint with receives of %d bytes", wire.receive);
  if (wire.reserved != 0) return Malformed("an endpoint with reserved bytes set");
  Endpoint endpoint;
  endpoint.link = static_cast<LinkLayer>(wire.link);
  endpoint.mtu = wire.mtu;
  endpoint.reads_served = wire.reads_served;
  endpoint.lid = wire.lid;
  endpoint.receive = wire.receive;
  endpoint.queue_pair = wire.queue_pair;
  endpoint.sequence = wire.sequence;
  endpoint.credits = wire.credits;
  endpoint.calls = wire.calls;
  std::memcpy(endpoint.gid.data(), wire.gid, sizeof wire.gid);
  return endpoint;
}

std::string EncodeAttach(const AttachMessage& message) {
  std::string bytes = EncodeEndpoint(message.endpoint);
  if (message.wanted) bytes.append(message.wanted->begin(), message.wanted->end());
  return bytes;
}

StatusOr<AttachMessage> ParseAttach(std::string_view bytes) {
  AttachMessage message;
  if (bytes.size() == sizeof(WireEndpoint) + sizeof(Gid)) {
    message.wanted.emplace();
    std::memcpy(message.wanted->data(), bytes.data() + sizeof(WireEndpoint), sizeof(Gid));
    bytes.remove_suffix(sizeof(Gid));
  }
  ASSIGN_OR_RETURN(message.endpoint, ParseEndpoint(bytes));
  return message;
}

std::string EncodePort(const RemotePort& port) {
  std::string text = port.link == LinkLayer::kEthernet ? "ethernet " : "infiniband ";
  for (uint8_t byte : port.gid) absl::StrAppendFormat(&text, "%02x", byte);
  return text;
}

StatusOr<RemotePort> ParsePort(std::string_view text) {
  RemotePort port;
  const size_t space = std::min(text.find(' '), text.size());
  const std::string_view link = text.substr(0, space), digits = text.substr(std::min(space + 1, text.size()));
  if (link == "infiniband") port.link = LinkLayer::kInfiniband;
  bool good = (link == "ethernet" || link == "infiniband") && digits.size() == 2 * port.gid.size();
  for (size_t i = 0; good && i < port.gid.size(); ++i) {
    const char* begin = digits.data() + 2 * i;
    good = std::from_chars(begin, begin + 2, port.gid[i], 16).ptr == begin + 2;
  }
  if (good) return port;
  return Malformed("\"%s\" is not a port", absl::CHexEscape(AbslView(text)));
}

void EncodeFragmentHeader(const FragmentHeader& header, std::byte* out) {
  WireFragment wire{};
  wire.kind = static_cast<uint8_t>(header.kind);
  wire.flags = header.flags;
  wire.length = header.length;
  wire.credits = header.credits;
  wire.call_id = header.call_id;
  wire.offset = header.offset;
  wire.total = header.total;
  std::memcpy(out, &wire, sizeof wire);
}

StatusOr<FragmentHeader> ParseFragment(std::span<const std::byte> bytes) {
  WireFragment wire;
  if (bytes.size() < sizeof wire) return Malformed("a fragment of %d bytes", bytes.size());
  std::memcpy(&wire, bytes.data(), sizeof wire);
  if (wire.kind < static_cast<uint8_t>(FragmentKind::kCall) ||
      wire.kind > static_cast<uint8_t>(FragmentKind::kPong)) {
    return Malformed("a fragment of unknown kind %d", wire.kind);
  }
  if (wire.length != bytes.size() - sizeof wire) {
    return Malformed("a fragment that says it has %d bytes and has %d", wire.length,
                     bytes.size() - sizeof wire);
  }
  if (wire.total > kMaxMessageSize || wire.offset > wire.total || wire.length > wire.total - wire.offset) {
    return Malformed("a fragment of %d bytes at %d of a message of %d", wire.length, wire.offset, wire.total);
  }
  if (wire.length == 0 && wire.total > 0)
    return Malformed("an empty fragment of a message of %d", wire.total);
  if (wire.credits > UINT16_MAX) return Malformed("a fragment that grants %d credits", wire.credits);
  const bool reply = wire.kind == static_cast<uint8_t>(FragmentKind::kReply);
  if (wire.reserved != 0 || wire.flags > (reply ? kReplyData : 0)) {
    return Malformed("a fragment with unknown flags %#x", wire.flags);
  }
  FragmentHeader header;
  header.kind = static_cast<FragmentKind>(wire.kind);
  header.flags = wire.flags;
  header.length = wire.length;
  header.credits = wire.credits;
  header.call_id = wire.call_id;
  header.offset = wire.offset;
  header.total = wire.total;
  return header;
}

StatusOr<std::string> EncodeCall(CallMemory kind, std::span<const RemoteSpan> memory, std::string_view body,
                                 bool with_reply) {
  const size_t size = sizeof(WireCall) + memory.size_bytes() + body.size();
  if (body.size() > kMaxBodySize || memory.size() > kMaxSpans) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("a call with a body of %d bytes and memory in %d pieces is too large",
                                      body.size(), memory.size()));
  }
  WireCall wire{};
  wire.kind = static_cast<uint8_t>(kind);
  wire.with_reply = with_reply ? 1 : 0;
  wire.spans = static_cast<uint32_t>(memory.size());
  std::string out;
  out.reserve(size);
  out.append(reinterpret_cast<const char*>(&wire), sizeof wire);
  out.append(reinterpret_cast<const char*>(memory.data()), memory.size_bytes());
  out.append(body);
  return out;
}

StatusOr<CallMessage> ParseCall(std::string_view bytes) {
  WireCall wire;
  if (bytes.size() < sizeof wire) return Malformed("a call of %d bytes", bytes.size());
  std::memcpy(&wire, bytes.data(), sizeof wire);
  bytes.remove_prefix(sizeof wire);
  if (wire.kind > static_cast<uint8_t>(CallMemory::kGetSource)) {
    return Malformed("a call with memory of unknown kind %d", wire.kind);
  }
  if (wire.with_reply > 1 || wire.reserved[0] != 0 || wire.reserved[1] != 0) {
    return Malformed("a call with reserved bytes set");
  }
  const auto kind = static_cast<CallMemory>(wire.kind);
  if (kind == CallMemory::kNone && wire.spans > 0) return Malformed("a call without memory that names some");
  if (wire.spans > kMaxSpans || wire.spans > bytes.size() / sizeof(RemoteSpan)) {
    return Malformed("a call of %d bytes that names %d pieces of memory", bytes.size(), wire.spans);
  }
  CallMessage call;
  call.kind = kind;
  call.memory.resize(wire.spans);
  if (wire.spans > 0) std::memcpy(call.memory.data(), bytes.data(), wire.spans * sizeof(RemoteSpan));
  bytes.remove_prefix(wire.spans * sizeof(RemoteSpan));
  if (bytes.size() > kMaxBodySize) return Malformed("a call with a body of %d bytes", bytes.size());
  uint64_t total = 0;
  for (const RemoteSpan& span : call.memory) {
    if (span.key > UINT32_MAX) return Malformed("a call with the key %#x", span.key);
    if (span.length <= UINT64_MAX - span.address && span.length <= UINT64_MAX - total) {
      total += span.length;
      continue;
    }
    return Malformed("a call with memory of %d bytes at %#x", span.length, span.address);
  }
  call.with_reply = wire.with_reply == 1;
  if (call.with_reply && (kind != CallMemory::kPutTarget || wire.spans != 1 || total > kMaxWithReply)) {
    return Malformed("a call that wants %d bytes in %d pieces with its reply", total, wire.spans);
  }
  call.body = std::string(bytes);
  return call;
}

std::string EncodeDataReply(std::span<const DataRange> ranges, std::string_view body) {
  const WireDataReply wire{static_cast<uint32_t>(ranges.size()), static_cast<uint32_t>(body.size())};
  std::string out;
  out.reserve(sizeof wire + ranges.size_bytes() + body.size());
  out.append(reinterpret_cast<const char*>(&wire), sizeof wire);
  out.append(reinterpret_cast<const char*>(ranges.data()), ranges.size_bytes());
  out.append(body);
  return out;
}

StatusOr<DataReply> ParseDataReply(std::string_view bytes, uint64_t memory_size) {
  WireDataReply wire;
  if (bytes.size() < sizeof wire) return Malformed("a reply of %d bytes that has data", bytes.size());
  std::memcpy(&wire, bytes.data(), sizeof wire);
  bytes.remove_prefix(sizeof wire);
  const uint64_t head = uint64_t{wire.ranges} * sizeof(DataRange) + wire.body;
  if (wire.body > kMaxBodySize || head > bytes.size()) {
    return Malformed("a reply of %d bytes with data for %d ranges and a body of %d", bytes.size(),
                     wire.ranges, wire.body);
  }
  DataReply reply;
  reply.ranges.resize(wire.ranges);
  if (wire.ranges > 0) std::memcpy(reply.ranges.data(), bytes.data(), wire.ranges * sizeof(DataRange));
  reply.body = bytes.substr(wire.ranges * sizeof(DataRange), wire.body);
  reply.data = bytes.substr(head);
  uint64_t total = 0;
  for (const DataRange& range : reply.ranges) {
    total += range.length;
    if (range.offset <= memory_size && range.length <= memory_size - range.offset) continue;
    return Malformed("a reply with %d bytes for offset %d of a memory of %d", range.length, range.offset,
                     memory_size);
  }
  if (total == reply.data.size()) return reply;
  return Malformed("a reply with %d bytes of data for ranges of %d", reply.data.size(), total);
}

}  // namespace nacre::verbs
