#include "transport/verbs/transfer_plan.h"

#include <gtest/gtest.h>

#include <numeric>

#include "common/random.h"
#include "transport/verbs/port.h"

namespace nacre::verbs {
namespace {

TEST(RemoteMemory, FindsThePiecesOfARange) {
  const RemoteMemory memory({{100, 10, 1}, {500, 0, 2}, {200, 20, 3}});
  EXPECT_EQ(memory.size(), 30u);
  EXPECT_EQ(memory.Pieces(0, 30), (RemoteSpans{{100, 10, 1}, {200, 20, 3}}));
  EXPECT_EQ(memory.Pieces(9, 2), (RemoteSpans{{109, 1, 1}, {200, 1, 3}}));
  EXPECT_EQ(memory.Pieces(10, 20), (RemoteSpans{{200, 20, 3}}));
  EXPECT_TRUE(memory.Pieces(30, 0).empty());
  EXPECT_EQ(RemoteMemory({}).size(), 0u);
}

// Byte i of one side meets byte i of the other, within the limits, for all pieces and limits.
TEST(PlanTransfer, PairsEveryByteOnce) {
  SeededRandom random(1);
  for (int round = 0; round < 200; ++round) {
    const uint64_t total = random.Below(5000);
    const TransferLimits limits{static_cast<uint32_t>(1 + random.Below(700)),
                                static_cast<uint32_t>(1 + random.Below(4))};
    RemoteSpans remote;
    std::vector<LocalPiece> local;
    std::vector<uint64_t> remote_at, local_at;  // the address of each byte
    for (uint64_t left = total, base = 10'000; left > 0; base += 10'000) {
      const uint64_t take = 1 + random.Below(left);
      remote.push_back({base, take, base});
      for (uint64_t i = 0; i < take; ++i) remote_at.push_back(base + i);
      left -= take;
    }
    for (uint64_t left = total, base = 70'000'000; left > 0; base += 10'000) {
      const uint64_t take = 1 + random.Below(std::min<uint64_t>(left, 300));
      local.push_back({reinterpret_cast<std::byte*>(base), take, static_cast<uint32_t>(base)});
      for (uint64_t i = 0; i < take; ++i) local_at.push_back(base + i);
      left -= take;
    }
    size_t byte = 0;
    for (const TransferPart& part : PlanTransfer(remote, local, limits)) {
      EXPECT_LE(part.bytes, limits.bytes);
      EXPECT_GT(part.bytes, 0u);
      EXPECT_LE(part.local.size(), limits.pieces);
      EXPECT_EQ(part.remote_key, part.remote_address / 10'000 * 10'000);
      uint64_t within = 0;
      for (const ibv_sge& piece : part.local) {
        for (uint32_t i = 0; i < piece.length; ++i, ++byte, ++within) {
          ASSERT_EQ(remote_at[byte], part.remote_address + within);
          ASSERT_EQ(local_at[byte], piece.addr + i);
        }
      }
      EXPECT_EQ(within, part.bytes);
    }
    EXPECT_EQ(byte, total);
  }
}

PortInfo Port(const char* device, LinkLayer link, std::array<uint8_t, 4> ipv4) {
  PortInfo port;
  port.device = device;
  port.port = 1;
  port.link = link;
  port.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ipv4[0], ipv4[1], ipv4[2], ipv4[3]};
  return port;
}

TEST(ChoosePort, TakesTheOneWithTheConnectionsAddress) {
  const std::vector<PortInfo> ports = {Port("a", LinkLayer::kEthernet, {10, 0, 0, 1}),
                                       Port("b", LinkLayer::kEthernet, {10, 0, 1, 1})};
  EXPECT_EQ(ChoosePort(ports, LinkLayer::kEthernet, 0x0a000101)->device, "b");
  EXPECT_EQ(ChoosePort(ports, std::nullopt, 0x0a000101)->device, "b");
  EXPECT_EQ(ChoosePort(ports, std::nullopt, 0x7f000001)->device, "a");
  EXPECT_EQ(ChoosePort(ports, LinkLayer::kInfiniband, 0x0a000101), nullptr);
  EXPECT_EQ(ChoosePort({}, std::nullopt, 0), nullptr);
  EXPECT_EQ(GidIpv4(ports[1].gid), 0x0a000101u);
  EXPECT_EQ(GidIpv4(Gid{0xfe, 0x80}), 0u);
}

}  // namespace
}  // namespace nacre::verbs
