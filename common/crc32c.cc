#include "common/crc32c.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "common/ids.h"

#ifdef __SSE4_2__
#include <nmmintrin.h>
#include <x86intrin.h>
#endif

namespace nacre {
namespace {

// How many bytes are looked up side by side.
constexpr size_t kSlices = 16;
using Tables = std::array<std::array<uint32_t, 256>, kSlices>;

// tables[k][b]: what byte b does to the checksum when k bytes follow it.
constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    tables[0][i] = crc;
  }
  for (size_t k = 1; k < kSlices; ++k) {
    for (uint32_t i = 0; i < 256; ++i) {
      const uint32_t before = tables[k - 1][i];
      tables[k][i] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}
constexpr Tables kTables = MakeTables();

static_assert(std::endian::native == std::endian::little, "words are taken as they lie");

uint64_t Load(const std::byte* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// Effect of the eight bytes of `word` when `behind` bytes follow them. No loop: compilers would keep it one.
template <size_t behind, size_t... i>
uint32_t LookUp(uint64_t word, std::index_sequence<i...>) {
  return (kTables[behind + 7 - i][word >> (8 * i) & 0xff] ^ ...);
}

#ifdef __SSE4_2__
uint32_t Crc32cByInstruction(std::span<const std::byte> data, uint32_t crc) {
  uint64_t state = ~crc;
  const std::byte* p = data.data();
  size_t left = data.size();
  for (; left >= 8; left -= 8, p += 8) state = _mm_crc32_u64(state, Load(p));
  auto tail = static_cast<uint32_t>(state);
  for (; left > 0; --left, ++p) tail = _mm_crc32_u8(tail, static_cast<uint8_t>(*p));
  return ~tail;
}

// The least of some times that a block takes, in ticks of the CPU's counter: this file needs no other, and
// tests build it into a library by itself.
template <typename Sum>
uint64_t TicksOf(Sum sum) {
  static constexpr std::array<std::byte, kBlockSize> kBlock{};
  uint64_t least = ~uint64_t{0};
  volatile uint32_t crc = 0;
  for (int i = 0; i < 4; ++i) {
    const uint64_t begin = __rdtsc();
    crc = sum(kBlock, crc);
    least = std::min<uint64_t>(least, __rdtsc() - begin);
  }
  return least;
}

// An emulated CPU has the instruction, too, and may compute it bit by bit: QEMU needs seven times as long for
// it as for the tables.
bool InstructionIsQuicker() {
  static const bool quicker = TicksOf(Crc32cByInstruction) <= TicksOf(Crc32cPortable);
  return quicker;
}

// The instruction has a latency of three cycles and a throughput of one: three blocks side by side fill it.
void ThreeBlocks(const std::byte* p, uint32_t* out) {
  uint64_t a = ~0u, b = ~0u, c = ~0u;
  for (size_t i = 0; i < kBlockSize; i += 8) {
    a = _mm_crc32_u64(a, Load(p + i));
    b = _mm_crc32_u64(b, Load(p + kBlockSize + i));
    c = _mm_crc32_u64(c, Load(p + 2 * kBlockSize + i));
  }
  out[0] = ~static_cast<uint32_t>(a);
  out[1] = ~static_cast<uint32_t>(b);
  out[2] = ~static_cast<uint32_t>(c);
}
#endif

}  // namespace

uint32_t Crc32cPortable(std::span<const std::byte> data, uint32_t crc) {
  constexpr auto kEight = std::make_index_sequence<8>();
  crc = ~crc;
  for (; data.size() >= kSlices; data = data.subspan(kSlices))
    crc = LookUp<8>(Load(data.data()) ^ crc, kEight) ^ LookUp<0>(Load(data.data() + 8), kEight);
  for (std::byte b : data) crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint8_t>(b)) & 0xff];
  return ~crc;
}

uint32_t Crc32c(std::span<const std::byte> data, uint32_t crc) {
#ifdef __SSE4_2__
  if (InstructionIsQuicker()) return Crc32cByInstruction(data, crc);
#endif
  return Crc32cPortable(data, crc);
}

// Checksums are linear over bytes of equal number: those of "first, then zeros" and of "nothing, then second"
// differ from that of "first, then second" by that of "nothing, then zeros".
uint32_t Crc32cConcat(uint32_t first, uint32_t second, size_t size) {
  if (first == 0) return second;  // as of no bytes: both sides below would be equal
  static constexpr std::array<std::byte, kBlockSize> kZeros{};
  uint32_t nothing = 0;
  while (size > 0) {
    const auto zeros = std::span(kZeros).first(std::min<size_t>(size, kZeros.size()));
    first = Crc32c(zeros, first);
    nothing = Crc32c(zeros, nothing);
    size -= zeros.size();
  }
  return first ^ nothing ^ second;
}

size_t CrcCount(uint64_t offset, uint64_t length) {
  if (length == 0) return 0;
  return (offset + length - 1) / kBlockSize - offset / kBlockSize + 1;
}

void Crc32cBlocks(uint64_t offset, std::span<const std::byte> data, uint32_t* out) {
  if (uint64_t into = offset % kBlockSize; into != 0 && !data.empty()) {
    size_t first = std::min<size_t>(kBlockSize - into, data.size());
    *out++ = Crc32c(data.first(first));
    data = data.subspan(first);
  }
#ifdef __SSE4_2__
  for (; InstructionIsQuicker() && data.size() >= 3 * kBlockSize;
       data = data.subspan(3 * kBlockSize), out += 3)
    ThreeBlocks(data.data(), out);
#endif
  while (!data.empty()) {
    size_t next = std::min<size_t>(kBlockSize, data.size());
    *out++ = Crc32c(data.first(next));
    data = data.subspan(next);
  }
}

}  // namespace nacre
