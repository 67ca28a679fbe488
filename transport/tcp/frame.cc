#include "transport/tcp/frame.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_format.h>

#include <bit>
#include <cstring>

namespace nacre {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are written without byte swaps");

constexpr char kMagic[3] = {'N', 'A', 'C'};

// As the bytes lie on the wire.
struct WireHeader {
  char magic[3];
  uint8_t version;
  uint8_t type;
  uint8_t flags;
  uint16_t reserved;
  uint64_t call_id;
  uint64_t offset;
  uint32_t body_length;
  uint32_t payload_length;
};
static_assert(sizeof(WireHeader) == kFrameHeaderSize);

Status Malformed(std::string_view what) { return ErrnoError(EPROTO, what); }

Status CheckLength(const char* what, uint32_t length, uint32_t limit) {
  if (length <= limit) return OkStatus();
  return Malformed(
      absl::StrFormat("a frame with a %s of %d bytes (at most %d are allowed)", what, length, limit));
}

Status CheckPreamble(const WireHeader& wire) {
  if (std::memcmp(wire.magic, kMagic, sizeof kMagic) != 0) {
    absl::string_view bytes(wire.magic, sizeof wire.magic);
    return Malformed(absl::StrFormat("this is not Nacre's data plane: a frame begins with \"%s\"",
                                     absl::CHexEscape(bytes)));
  }
  if (wire.version != kFrameVersion) {
    return Malformed(absl::StrFormat("it speaks version %d of the data plane, this side version %d",
                                     wire.version, kFrameVersion));
  }
  if (wire.reserved != 0) return Malformed(absl::StrFormat("reserved bytes are %#x, not 0", wire.reserved));
  return OkStatus();
}

Status CheckHello(const FrameHeader& header) {
  RETURN_IF_ERROR(CheckLength("body", header.body_length, kMaxHelloSize));
  return CheckLength("payload", header.payload_length, 0);
}

Status CheckCall(const FrameHeader& header) {
  RETURN_IF_ERROR(CheckLength("body", header.body_length, kMaxBodySize));
  if (header.flags > static_cast<uint8_t>(CallMemory::kGetSource)) {
    return Malformed(absl::StrFormat("a call with memory of unknown kind %d", header.flags));
  }
  const auto kind = static_cast<CallMemory>(header.flags);
  if (kind == CallMemory::kNone && header.offset != 0) {
    return Malformed(absl::StrFormat("a call without memory that has %d bytes of it", header.offset));
  }
  if (header.payload_length == 0) return OkStatus();
  RETURN_IF_ERROR(CheckLength("payload", header.payload_length, kMaxEagerSize));
  if (kind == CallMemory::kGetSource && header.payload_length == header.offset) return OkStatus();
  return Malformed(absl::StrFormat("a call that brings %d bytes of a memory of %d bytes",
                                   header.payload_length, header.offset));
}

Status CheckTransferFrame(const FrameHeader& header) {
  RETURN_IF_ERROR(CheckLength("body", header.body_length, 0));
  RETURN_IF_ERROR(CheckLength("payload", header.payload_length, kMaxPayload));
  if (header.payload_length == 0) return Malformed("a transfer of no bytes");
  if (header.offset <= UINT64_MAX - header.payload_length) return OkStatus();
  return Malformed(absl::StrFormat("a transfer of %d bytes at %d", header.payload_length, header.offset));
}

Status CheckSharedCall(const FrameHeader& header) {
  constexpr uint32_t kMaxBody = 4 + kMaxSharedPieces * kSharedPieceSize + kMaxBodySize;
  RETURN_IF_ERROR(CheckLength("body", header.body_length, kMaxBody));
  RETURN_IF_ERROR(CheckLength("payload", header.payload_length, 0));
  if (header.flags == static_cast<uint8_t>(CallMemory::kGetSource)) return OkStatus();
  return Malformed(absl::StrFormat("a call that shows memory of kind %d", header.flags));
}

Status CheckSharedPut(const FrameHeader& header) {
  RETURN_IF_ERROR(CheckLength("body", header.body_length, kMaxSharedPieces * kSharedPieceSize));
  FrameHeader transfer = header;
  transfer.body_length = 0;
  return CheckTransferFrame(transfer);
}

Status CheckReply(const FrameHeader& header) {
  RETURN_IF_ERROR(CheckLength("body", header.body_length, kMaxBodySize));
  return CheckLength("payload", header.payload_length, 0);
}

Status CheckAttach(const FrameHeader& header) {
  RETURN_IF_ERROR(CheckLength("body", header.body_length, kMaxAttachSize));
  return CheckLength("payload", header.payload_length, 0);
}

Status CheckFields(const FrameHeader& header, FrameReceiver receiver) {
  const bool server = receiver == FrameReceiver::kServer;
  switch (header.type) {
    case FrameType::kHello:
      return CheckHello(header);
    case FrameType::kAttach:
      return CheckAttach(header);
    case FrameType::kCall:
      if (server) return CheckCall(header);
      break;
    case FrameType::kData:
    case FrameType::kTaken:
      if (server) return CheckTransferFrame(header);
      break;
    case FrameType::kSharedCall:
      if (server) return CheckSharedCall(header);
      break;
    case FrameType::kSharedPut:
      if (!server) return CheckSharedPut(header);
      break;
    case FrameType::kPut:
    case FrameType::kGet:
      if (!server) return CheckTransferFrame(header);
      break;
    case FrameType::kReply:
      if (!server) return CheckReply(header);
      break;
  }
  return Malformed(absl::StrFormat("a frame of type %d may not come to a %s", static_cast<int>(header.type),
                                   server ? "server" : "client"));
}

}  // namespace

void EncodeFrameHeader(const FrameHeader& header, std::byte* out) {
  WireHeader wire{};
  std::memcpy(wire.magic, kMagic, sizeof kMagic);
  wire.version = kFrameVersion;
  wire.type = static_cast<uint8_t>(header.type);
  wire.flags = header.flags;
  wire.call_id = header.call_id;
  wire.offset = header.offset;
  wire.body_length = header.body_length;
  wire.payload_length = header.payload_length;
  std::memcpy(out, &wire, sizeof wire);
}

StatusOr<FrameHeader> ParseFrameHeader(std::span<const std::byte, kFrameHeaderSize> bytes,
                                       FrameReceiver receiver) {
  WireHeader wire;
  std::memcpy(&wire, bytes.data(), sizeof wire);
  RETURN_IF_ERROR(CheckPreamble(wire));
  FrameHeader header;
  header.type = static_cast<FrameType>(wire.type);
  header.flags = wire.flags;
  header.call_id = wire.call_id;
  header.offset = wire.offset;
  header.body_length = wire.body_length;
  header.payload_length = wire.payload_length;
  RETURN_IF_ERROR(CheckFields(header, receiver));
  return header;
}

}  // namespace nacre
