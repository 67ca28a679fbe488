// CRC32C (Castagnoli, RFC 3720 B.4), with the CPU's instruction where there is one that is quicker than
// tables (the first call measures that, some microseconds). Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nacre {

// The checksum of `data` appended to bytes whose checksum is `crc` (0 for none).
uint32_t Crc32c(std::span<const std::byte> data, uint32_t crc = 0);

// The checksum of some bytes (`first`) and, behind them, `size` others (`second`). Takes time as summing
// `size` bytes does, unless `first` is 0.
uint32_t Crc32cConcat(uint32_t first, uint32_t second, size_t size);

// One checksum for each 4 KiB block that [offset, offset + data.size()) of an object touches; the first and
// the last may be parts of a block. `out` has CrcCount(offset, data.size()) places. Several blocks go through
// the CPU at once.
void Crc32cBlocks(uint64_t offset, std::span<const std::byte> data, uint32_t* out);
size_t CrcCount(uint64_t offset, uint64_t length);

// The portable form, by tables: for comparison, and for CPUs without the instruction or with a slow one.
uint32_t Crc32cPortable(std::span<const std::byte> data, uint32_t crc = 0);

}  // namespace nacre
