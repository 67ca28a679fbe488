// The frames of the data plane over TCP and unix sockets: what proto/FORMAT.md ("The data plane over TCP")
// describes byte by byte. Pure functions on bytes, no sockets; everything that arrives is checked here before
// anybody acts on it. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/status.h"
#include "transport/transport.h"

namespace nacre {

inline constexpr size_t kFrameHeaderSize = 32;
inline constexpr uint8_t kFrameVersion = 1;
inline constexpr uint32_t kMaxPayload = 16 << 20;  // of one put or data frame; larger transfers take several
inline constexpr uint32_t kMaxEagerSize = 64 << 10;  // a get source up to this size travels with its call
inline constexpr uint32_t kMaxHelloSize = 4096;
inline constexpr uint32_t kSharedPieceSize = 24;
inline constexpr uint32_t kMaxSharedPieces = 4096;  // of one frame

inline constexpr uint32_t kMaxAttachSize = 1024;

enum class FrameType : uint8_t {
  kHello = 1,
  kCall = 2,
  kPut = 3,
  kGet = 4,
  kData = 5,
  kReply = 6,
  // Only where the two sides see each other's memory (transport/shm).
  kSharedCall = 7,
  kSharedPut = 8,
  kTaken = 9,
  // Something else to live on the connection (transport/tcp/attachment.h).
  kAttach = 10,
};

struct FrameHeader {
  FrameType type = FrameType::kHello;
  // Call: what its memory is for. Hello, reply and attach: kFrameFailed.
  uint8_t flags = 0;
  uint64_t call_id = 0;
  // Call: size of its memory. Put, get, data: place in it. Hello from a server: calls at once.
  uint64_t offset = 0;
  uint32_t body_length = 0;
  // Bytes behind the body; in a get, a shared put and its answer, which have none, the number of bytes meant.
  uint32_t payload_length = 0;

  bool operator==(const FrameHeader&) const = default;
};

// The body says what went wrong.
inline constexpr uint8_t kFrameFailed = 1;

enum class FrameReceiver { kServer, kClient };

void EncodeFrameHeader(const FrameHeader& header, std::byte* out);

// INVALID_ARGUMENT: no such frame may arrive at this side. The lengths that the header names are within the
// limits.
StatusOr<FrameHeader> ParseFrameHeader(std::span<const std::byte, kFrameHeaderSize> bytes,
                                       FrameReceiver receiver);

}  // namespace nacre
