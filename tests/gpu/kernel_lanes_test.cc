// The kernels' arithmetic, run by the CPU lane by lane.
#include "gpu/kernel_lanes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "common/crc32c.h"
#include "gpu/piece_sums.h"

namespace nacre::gpu {
namespace {

constexpr CrcConstants kConstants;

KernelPiece Piece(const std::byte* data, size_t length, const std::byte* source = nullptr) {
  return {reinterpret_cast<uint64_t>(data), reinterpret_cast<uint64_t>(source), length};
}

uint32_t SumOfLanes(std::span<const std::byte> data) {
  LaneTable table{kConstants.table, 1};
  uint32_t sum = 0;
  for (uint32_t lane = 0; lane < kWarpSize; ++lane)
    sum ^= CrcLane(table, Piece(data.data(), data.size()), lane, kConstants.lane_shift[lane]);
  return ~sum;
}

class KernelLanes : public testing::Test {
 public:
  KernelLanes() {
    for (std::byte& byte : memory_) byte = static_cast<std::byte>(random_());
  }

  size_t Random(size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(random_); }

  std::mt19937_64 random_{7};
  alignas(64) std::vector<std::byte> memory_ = std::vector<std::byte>(16 << 10);
};

TEST_F(KernelLanes, SumsEveryLength) {
  for (size_t length = 1; length <= kKernelPieceSize; ++length) {
    auto data = std::span(memory_).subspan(Random(64), length);
    ASSERT_EQ(SumOfLanes(data), Crc32cPortable(data)) << length;
  }
}

TEST_F(KernelLanes, SumsEveryAlignment) {
  for (size_t offset = 0; offset < 64; ++offset) {
    for (size_t length : {size_t{127}, size_t{128}, size_t{129}, size_t{4000}, size_t{4096}}) {
      auto data = std::span(memory_).subspan(offset, length);
      ASSERT_EQ(SumOfLanes(data), Crc32cPortable(data)) << offset << "+" << length;
    }
  }
}

TEST_F(KernelLanes, ZeroesAndCopiesNothingElse) {
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> before = memory_;
    size_t length = 1 + Random(round % 2 == 0 ? 40 : kKernelPieceSize);
    size_t to = Random(4000), from = 8192 + Random(4000);
    bool copies = round % 3 != 0;
    KernelPiece piece = Piece(memory_.data() + to, length, memory_.data() + from);
    for (uint32_t lane = 0; lane < kWarpSize; ++lane) copies ? CopyLane(piece, lane) : ZeroLane(piece, lane);
    if (copies)
      std::memcpy(before.data() + to, before.data() + from, length);
    else
      std::memset(before.data() + to, 0, length);
    ASSERT_TRUE(before == memory_) << length << " bytes at " << to << " from " << from;
  }
}

TEST_F(KernelLanes, SumsJoin) {
  for (int round = 0; round < 500; ++round) {
    auto whole = std::span(memory_).first(2 + Random(memory_.size() - 1));
    size_t split = Random(whole.size());
    auto first = whole.first(split), second = whole.subspan(split);
    ASSERT_EQ(JoinCrc32c(Crc32cPortable(first), Crc32cPortable(second), second.size()),
              Crc32cPortable(whole));
  }
}

TEST_F(KernelLanes, PartsJoin) {
  std::vector<iovec> pieces;
  std::vector<uint32_t> expected;
  for (size_t length : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, size_t{4097}, size_t{12'289}}) {
    pieces.push_back({memory_.data(), length});
    expected.push_back(Crc32cPortable(std::span(memory_).first(length)));
  }
  std::vector<KernelPiece> parts;
  AppendParts(pieces, &parts);
  EXPECT_EQ(parts.size(), CountParts(pieces));
  std::vector<uint32_t> sums;
  for (const KernelPiece& part : parts)
    sums.push_back(Crc32cPortable({reinterpret_cast<const std::byte*>(part.address), part.length}));
  EXPECT_EQ(JoinSums(pieces, sums), expected);
}

// Pieces that follow each other, blocks and others, as a run's warps sum them up.
TEST_F(KernelLanes, RunsHaveTheSameParts) {
  for (int round = 0; round < 200; ++round) {
    std::vector<iovec> pieces;
    std::vector<uint32_t> expected;
    for (size_t at = Random(100); at < memory_.size();) {
      const size_t wanted = Random(3) == 0 ? Random(9000) : kKernelPieceSize * Random(3);
      const size_t length = std::min(wanted, memory_.size() - at);
      pieces.push_back({memory_.data() + at, length});
      expected.push_back(Crc32cPortable(std::span(memory_).subspan(at, length)));
      at += length + (Random(4) == 0 ? 1 + Random(50) : 0);
    }
    const std::vector<KernelPiece> runs = RunsOf(pieces);
    std::vector<uint32_t> sums;
    for (const KernelPiece& run : runs) {
      ASSERT_LE(PartsOfRun(run), kPartsOfRun);
      for (uint32_t part = 0; part < kPartsOfRun; ++part) {
        const KernelPiece piece = PartOfRun(run, part);
        ASSERT_EQ(piece.length > 0, part < PartsOfRun(run));
        if (piece.length > 0)
          sums.push_back(SumOfLanes({reinterpret_cast<const std::byte*>(piece.address), piece.length}));
      }
    }
    ASSERT_EQ(sums.size(), CountParts(pieces));
    ASSERT_EQ(JoinSums(pieces, sums), expected) << round;
  }
}

TEST_F(KernelLanes, BlocksThatFollowEachOtherAreFewRuns) {
  std::vector<iovec> blocks;
  std::vector<std::byte> memory(17 * kKernelPieceSize);
  for (size_t at = 0; at < memory.size(); at += kKernelPieceSize)
    blocks.push_back({memory.data() + at, kKernelPieceSize});
  EXPECT_EQ(RunsOf(blocks).size(), 3u);
}

}  // namespace
}  // namespace nacre::gpu
