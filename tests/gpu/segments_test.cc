#include "gpu/segments.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "transport/memory_device.h"

namespace nacre::gpu {
namespace {

constexpr uint64_t kUnit = MemoryDevice::kPinUnit;

// Nothing is followed: the addresses need not be there.
iovec At(uint64_t address, size_t length) { return {reinterpret_cast<void*>(address), length}; }

using Lengths = std::vector<uint64_t>;
Lengths LengthsOf(const std::vector<Segment>& segments) {
  Lengths lengths;
  for (const Segment& segment : segments) lengths.push_back(segment.length);
  return lengths;
}

TEST(Segments, WhatIsAdjacentOnBothSidesIsOne) {
  const std::vector<iovec> device = {At(0x1000, 100), At(0x1064, 50)};
  EXPECT_EQ(LengthsOf(*PairPieces(device, std::vector<iovec>{At(0x9000, 60), At(0x903c, 90)})), Lengths{150});
  EXPECT_EQ(LengthsOf(*PairPieces(device, std::vector<iovec>{At(0x9000, 60), At(0xa000, 90)})),
            (Lengths{60, 90}));
}

TEST(Segments, NoneReachesOverTheEndOfAPinnedUnit) {
  const std::vector<iovec> device = {At(0x1000, 3 * kUnit)};
  const std::vector<iovec> host = {At(5 * kUnit - 10, 7), At(5 * kUnit - 3, 3), At(5 * kUnit, 20),
                                   At(5 * kUnit + 20, 3 * kUnit - 30)};
  EXPECT_EQ(LengthsOf(*PairPieces(device, host)), (Lengths{10, kUnit, kUnit, kUnit - 10}));
}

TEST(Segments, BothSidesAreOfOneLength) {
  EXPECT_EQ(ToErrno(PairPieces(std::vector<iovec>{At(1, 2)}, std::vector<iovec>{At(3, 4)}).status()), EINVAL);
}

}  // namespace
}  // namespace nacre::gpu
