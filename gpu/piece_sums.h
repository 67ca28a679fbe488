// How checksums of pieces of any length are made out of checksums of at most 4 KiB, which is what one warp of
// the kernel does: cut into parts, and put together. Pure functions, thread-safe.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/kernel_pieces.h"

namespace nacre::gpu {

// The parts of the pieces, in order.
void AppendParts(std::span<const iovec> pieces, std::vector<KernelPiece>* parts);
size_t CountParts(std::span<const iovec> pieces);

// The same parts in the same order, those that follow each other in memory as runs.
std::vector<KernelPiece> RunsOf(std::span<const iovec> pieces);
size_t PartsOfRun(const KernelPiece& run);

// The checksums of the pieces from those of their parts.
std::vector<uint32_t> JoinSums(std::span<const iovec> pieces, std::span<const uint32_t> part_sums);

// The CRC32C of two texts side by side, the second `length` bytes long.
uint32_t JoinCrc32c(uint32_t first, uint32_t second, size_t length);

}  // namespace nacre::gpu
