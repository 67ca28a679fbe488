// The work of one lane of a warp on a piece: the kernels' arithmetic, which the CPU can run too (its tests
// do, and so need no GPU). Pure functions. A piece is at most kKernelPieceSize bytes at any address.
//
// The checksum: imagine the piece at the end of 4 KiB of zeros, which change nothing. Each lane takes 128 of
// these bytes, and multiplies what it gets with the power of x that stands for what follows; the sum of all
// lanes is the checksum. The initial ones enter with the first byte.
#pragma once

#include <cstdint>

#include "gpu/kernel_pieces.h"

#ifdef __CUDACC__
#define NACRE_LANE __host__ __device__ inline
#else
#define NACRE_LANE inline
#endif

namespace nacre::gpu {

inline constexpr uint32_t kCrcPolynomial = 0x82f63b78;  // CRC32C, reflected: bit 31 is x^0
inline constexpr uint32_t kLaneBytes = kKernelPieceSize / kWarpSize;

// Where a lane looks up a byte: each lane has its own copy of the table, so that no two meet in one memory
// bank.
struct LaneTable {
  const uint32_t* entries;
  uint32_t stride;  // from one entry to the next

  NACRE_LANE uint32_t operator[](uint32_t byte) const { return entries[byte * stride]; }
};

struct alignas(16) Words {
  uint32_t word[4];
};

NACRE_LANE uint32_t CrcByte(LaneTable table, uint32_t crc, uint8_t byte) {
  return (crc >> 8) ^ table[(crc ^ byte) & 0xff];
}

NACRE_LANE uint32_t CrcWord(LaneTable table, uint32_t crc, uint32_t word) {
  crc ^= word;
  for (int byte = 0; byte < 4; ++byte) crc = (crc >> 8) ^ table[crc & 0xff];
  return crc;
}

NACRE_LANE uint32_t CrcWords(LaneTable table, uint32_t crc, const Words& words) {
  for (int i = 0; i < 4; ++i) crc = CrcWord(table, crc, words.word[i]);
  return crc;
}

// a * b modulo the polynomial.
NACRE_LANE constexpr uint32_t CrcMultiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    if ((a >> bit & 1) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kCrcPolynomial : 0);
  }
  return product;
}

// Constants that the compiler computes.
struct CrcConstants {
  uint32_t table[256] = {};             // of a byte
  uint32_t lane_shift[kWarpSize] = {};  // x^(8 * the bytes that follow those of a lane)

  constexpr CrcConstants() {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      table[byte] = byte;
      for (int bit = 0; bit < 8; ++bit)
        table[byte] = (table[byte] >> 1) ^ ((table[byte] & 1) != 0 ? kCrcPolynomial : 0);
    }
    uint32_t step = 1u << 23;  // x^8
    for (uint32_t bytes = 1; bytes < kLaneBytes; bytes *= 2) step = CrcMultiply(step, step);
    lane_shift[kWarpSize - 1] = 1u << 31;
    for (uint32_t lane = kWarpSize - 1; lane > 0; --lane)
      lane_shift[lane - 1] = CrcMultiply(lane_shift[lane], step);
  }
};

NACRE_LANE bool IsAligned(const uint8_t* address, uint32_t to) {
  return (reinterpret_cast<uintptr_t>(address) & (to - 1)) == 0;
}

NACRE_LANE uint32_t CrcRange(LaneTable table, uint32_t crc, const uint8_t* at, const uint8_t* end) {
  if (!IsAligned(end, sizeof(Words))) {
    for (; at < end; ++at) crc = CrcByte(table, crc, *at);
    return crc;
  }
  for (; at < end && !IsAligned(at, sizeof(Words)); ++at) crc = CrcByte(table, crc, *at);
  // Two loads at once: they are one sector of the memory.
  for (; at + 2 * sizeof(Words) <= end; at += 2 * sizeof(Words)) {
    Words first = *reinterpret_cast<const Words*>(at);
    Words second = *reinterpret_cast<const Words*>(at + sizeof(Words));
    crc = CrcWords(table, crc, first);
    crc = CrcWords(table, crc, second);
  }
  if (at < end) crc = CrcWords(table, crc, *reinterpret_cast<const Words*>(at));
  return crc;
}

// The part of a run that one warp sums up; its length is 0 if the run is not so long.
NACRE_LANE KernelPiece PartOfRun(const KernelPiece& run, uint32_t part) {
  const uint64_t begin = uint64_t{part} * kKernelPieceSize;
  const uint64_t left = begin < run.length ? run.length - begin : 0;
  return {run.address + begin, 0, left < kKernelPieceSize ? left : kKernelPieceSize};
}

// This lane's part of the checksum before the final inversion; the parts are to be xor-ed. `lane_shift` is
// that of the lane.
NACRE_LANE uint32_t CrcLane(LaneTable table, const KernelPiece& piece, uint32_t lane, uint32_t lane_shift) {
  uint32_t zeros = kKernelPieceSize - static_cast<uint32_t>(piece.length);
  uint32_t begin = lane * kLaneBytes;
  uint32_t end = begin + kLaneBytes;
  if (end <= zeros) return 0;
  bool first = begin <= zeros;
  if (first) begin = zeros;
  const auto* data = reinterpret_cast<const uint8_t*>(piece.address);
  uint32_t crc = CrcRange(table, first ? ~0u : 0, data + (begin - zeros), data + (end - zeros));
  return CrcMultiply(crc, lane_shift);
}

// Every kWarpSize-th of `count` things.
template <typename Function>
NACRE_LANE void EachOfLane(uint64_t count, uint32_t lane, Function function) {
  for (uint64_t i = lane; i < count; i += kWarpSize) function(i);
}

// The bytes before the first aligned one.
NACRE_LANE uint64_t HeadBytes(const uint8_t* address, uint64_t length) {
  uint64_t head = -reinterpret_cast<uintptr_t>(address) & (sizeof(Words) - 1);
  return head < length ? head : length;
}

NACRE_LANE void ZeroLane(const KernelPiece& piece, uint32_t lane) {
  auto* to = reinterpret_cast<uint8_t*>(piece.address);
  uint64_t head = HeadBytes(to, piece.length);
  uint64_t words = (piece.length - head) / sizeof(Words);
  uint64_t tail = head + words * sizeof(Words);
  EachOfLane(head, lane, [=](uint64_t i) { to[i] = 0; });
  EachOfLane(words, lane, [=](uint64_t i) { reinterpret_cast<Words*>(to + head)[i] = Words{}; });
  EachOfLane(piece.length - tail, lane, [=](uint64_t i) { to[tail + i] = 0; });
}

NACRE_LANE void CopyLane(const KernelPiece& piece, uint32_t lane) {
  auto* to = reinterpret_cast<uint8_t*>(piece.address);
  const auto* from = reinterpret_cast<const uint8_t*>(piece.source);
  uint64_t head = HeadBytes(to, piece.length);
  if (!IsAligned(from + head, sizeof(Words))) head = piece.length;  // byte by byte
  uint64_t words = (piece.length - head) / sizeof(Words);
  uint64_t tail = head + words * sizeof(Words);
  EachOfLane(words, lane, [=](uint64_t i) {
    reinterpret_cast<Words*>(to + head)[i] = reinterpret_cast<const Words*>(from + head)[i];
  });
  EachOfLane(head, lane, [=](uint64_t i) { to[i] = from[i]; });
  EachOfLane(piece.length - tail, lane, [=](uint64_t i) { to[tail + i] = from[tail + i]; });
}

}  // namespace nacre::gpu
