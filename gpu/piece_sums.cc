#include "gpu/piece_sums.h"

#include <algorithm>
#include <array>

#include "gpu/kernel_lanes.h"

namespace nacre::gpu {
namespace {

// x^(8 * 2^k).
constexpr std::array<uint32_t, 64> MakePowers() {
  std::array<uint32_t, 64> powers{};
  powers[0] = 1u << 23;
  for (size_t k = 1; k < powers.size(); ++k) powers[k] = CrcMultiply(powers[k - 1], powers[k - 1]);
  return powers;
}
constexpr std::array<uint32_t, 64> kPowers = MakePowers();

constexpr uint32_t ByteShift(size_t length) {
  uint32_t power = 1u << 31;
  for (size_t k = 0; length != 0; ++k, length >>= 1) {
    if ((length & 1) != 0) power = CrcMultiply(power, kPowers[k]);
  }
  return power;
}

// Multiplication by x^(8 * kKernelPieceSize), byte by byte: what joining whole parts takes.
constexpr std::array<std::array<uint32_t, 256>, 4> MakeWholeShift() {
  std::array<std::array<uint32_t, 256>, 4> table{};
  uint32_t shift = ByteShift(kKernelPieceSize);
  for (uint32_t byte = 0; byte < 4; ++byte) {
    for (uint32_t value = 0; value < 256; ++value)
      table[byte][value] = CrcMultiply(value << (8 * byte), shift);
  }
  return table;
}

uint32_t ShiftWhole(uint32_t crc) {
  static const auto table = MakeWholeShift();
  return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^ table[3][crc >> 24];
}

constexpr uint64_t kMostOfRun = uint64_t{kPartsOfRun} * kKernelPieceSize;

size_t PartsOf(const iovec& piece) { return (piece.iov_len + kKernelPieceSize - 1) / kKernelPieceSize; }

}  // namespace

uint32_t JoinCrc32c(uint32_t first, uint32_t second, size_t length) {
  uint32_t shifted = length == kKernelPieceSize ? ShiftWhole(first) : CrcMultiply(first, ByteShift(length));
  return shifted ^ second;
}

size_t CountParts(std::span<const iovec> pieces) {
  size_t count = 0;
  for (const iovec& piece : pieces) count += PartsOf(piece);
  return count;
}

void AppendParts(std::span<const iovec> pieces, std::vector<KernelPiece>* parts) {
  for (const iovec& piece : pieces) {
    auto address = reinterpret_cast<uint64_t>(piece.iov_base);
    for (size_t done = 0; done < piece.iov_len; done += kKernelPieceSize)
      parts->push_back({address + done, 0, std::min<uint64_t>(kKernelPieceSize, piece.iov_len - done)});
  }
}

size_t PartsOfRun(const KernelPiece& run) { return (run.length + kKernelPieceSize - 1) / kKernelPieceSize; }

std::vector<KernelPiece> RunsOf(std::span<const iovec> pieces) {
  std::vector<KernelPiece> runs;
  runs.reserve(pieces.size());
  for (const iovec& piece : pieces) {
    auto address = reinterpret_cast<uint64_t>(piece.iov_base);
    for (uint64_t left = piece.iov_len; left > 0;) {
      KernelPiece* last = runs.empty() ? nullptr : &runs.back();
      const bool goes_on = last != nullptr && last->address + last->length == address &&
                           last->length % kKernelPieceSize == 0 && last->length < kMostOfRun;
      if (!goes_on) last = &runs.emplace_back(KernelPiece{address, 0, 0});
      const uint64_t take = std::min(left, kMostOfRun - last->length);
      last->length += take;
      address += take;
      left -= take;
    }
  }
  return runs;
}

std::vector<uint32_t> JoinSums(std::span<const iovec> pieces, std::span<const uint32_t> part_sums) {
  std::vector<uint32_t> sums;
  sums.reserve(pieces.size());
  for (const iovec& piece : pieces) {
    uint32_t sum = 0;
    for (size_t done = 0; done < piece.iov_len; done += kKernelPieceSize) {
      sum = JoinCrc32c(sum, part_sums.front(), std::min<size_t>(kKernelPieceSize, piece.iov_len - done));
      part_sums = part_sums.subspan(1);
    }
    sums.push_back(sum);
  }
  return sums;
}

}  // namespace nacre::gpu
