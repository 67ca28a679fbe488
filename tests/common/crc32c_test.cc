#include "common/crc32c.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/ids.h"
#include "common/random.h"

namespace nacre {
namespace {

std::vector<std::byte> RandomBytes(size_t n, uint64_t seed) {
  SeededRandom random(seed);
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.Next());
  return bytes;
}

TEST(Crc32c, KnownVectors) {  // RFC 3720, B.4
  std::vector<std::byte> zeros(32), ones(32, std::byte{0xff});
  EXPECT_EQ(Crc32c(zeros), 0x8a9136aau);
  EXPECT_EQ(Crc32c(ones), 0x62a8ab43u);
  EXPECT_EQ(Crc32cPortable(zeros), 0x8a9136aau);
}

TEST(Crc32c, InstructionAgreesWithPortableAndContinues) {
  for (size_t n : {0, 1, 7, 8, 9, 15, 16, 17, 31, 4095, 4096, 10000}) {
    auto bytes = RandomBytes(n, n);
    std::span<const std::byte> all(bytes);
    EXPECT_EQ(Crc32c(all), Crc32cPortable(all));
    EXPECT_EQ(Crc32cPortable(all.subspan(n / 3), Crc32cPortable(all.first(n / 3))), Crc32c(all));
    EXPECT_EQ(Crc32c(all.subspan(n / 3), Crc32c(all.first(n / 3))), Crc32c(all));
  }
}

TEST(Crc32c, ChecksumsOfPartsMakeTheWhole) {
  auto bytes = RandomBytes(20000, 3);
  std::span<const std::byte> all(bytes);
  for (size_t n : {0, 1, 7, 4096, 9000, 20000}) {
    EXPECT_EQ(Crc32cConcat(Crc32c(all.first(n)), Crc32c(all.subspan(n)), all.size() - n), Crc32c(all)) << n;
  }
}

TEST(Crc32c, BlocksAreCutAtBlockBoundaries) {
  auto bytes = RandomBytes(50000, 1);
  for (uint64_t offset : {0, 1, 4095, 4096, 6000}) {
    for (size_t length : {0, 1, 4096, 8191, 12288, 50000}) {
      std::span<const std::byte> data(bytes.data(), length);
      std::vector<uint32_t> crcs(CrcCount(offset, length));
      Crc32cBlocks(offset, data, crcs.data());
      for (uint32_t crc : crcs) {
        size_t n = std::min<size_t>(kBlockSize - offset % kBlockSize, data.size());
        EXPECT_EQ(crc, Crc32c(data.first(n)));
        data = data.subspan(n);
        offset += n;
      }
      EXPECT_TRUE(data.empty());
    }
  }
}

}  // namespace
}  // namespace nacre
