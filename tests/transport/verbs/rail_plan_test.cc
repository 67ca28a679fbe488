#include "transport/verbs/rail_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/transport/fake_device.h"
#include "transport/memory.h"

namespace nacre::verbs {
namespace {

using ::testing::ElementsAre;

Gid Ipv4(uint8_t last) { return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last}; }
uint32_t Number(uint8_t last) { return 10u << 24 | last; }

std::vector<PortInfo> Local(const std::vector<uint8_t>& addresses) {
  std::vector<PortInfo> ports;
  for (uint8_t address : addresses) {
    PortInfo port;
    port.device = "here" + std::to_string(address);
    port.port = 1;
    port.gid = Ipv4(address);
    ports.push_back(port);
  }
  return ports;
}

std::vector<RemotePort> Remote(const std::vector<uint8_t>& addresses) {
  std::vector<RemotePort> ports;
  for (uint8_t address : addresses) ports.push_back({LinkLayer::kEthernet, Ipv4(address)});
  return ports;
}

std::vector<std::string> Names(const std::vector<RailPair>& pairs) {
  std::vector<std::string> names;
  for (const RailPair& pair : pairs) names.push_back(pair.name());
  return names;
}

TEST(PlanRails, BeginsWithTheAddressesInUseAndUsesEachPortBeforeOneTwice) {
  const auto pairs = PlanRails(Local({1, 2}), Remote({3, 4}), Number(2), Number(4));
  EXPECT_THAT(Names(pairs), ElementsAre("here2 port 1 to 10.0.0.4", "here1 port 1 to 10.0.0.3",
                                        "here2 port 1 to 10.0.0.3", "here1 port 1 to 10.0.0.4"));
}

TEST(PlanRails, JoinsEachPairOnceAndNotTooMany) {
  for (uint8_t here = 1; here <= 5; ++here) {
    for (uint8_t there = 1; there <= 5; ++there) {
      std::vector<uint8_t> local, remote;
      for (uint8_t i = 1; i <= here; ++i) local.push_back(i);
      for (uint8_t i = 1; i <= there; ++i) remote.push_back(static_cast<uint8_t>(100 + i));
      const auto names = Names(PlanRails(Local(local), Remote(remote), 0, 0));
      const size_t all = size_t{here} * there;
      EXPECT_EQ(names.size(), std::min(all, kMaxRails));
      EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
    }
  }
}

TEST(PlanRails, LeavesTheChoiceToAServerThatTellsNoPorts) {
  const auto pairs = PlanRails(Local({1, 2}), {}, Number(2), 0);
  ASSERT_EQ(pairs.size(), 1u);
  EXPECT_EQ(pairs[0].name(), "here2 port 1");
  EXPECT_FALSE(pairs[0].remote.has_value());
}

TEST(PlanRails, JoinsOnlyWhatCanReachEachOther) {
  auto local = Local({1, 2});
  auto remote = Remote({3, 4});
  remote[0].link = LinkLayer::kInfiniband;
  EXPECT_EQ(PlanRails(local, remote, 0, 0).size(), 2u);
  for (PortInfo& port : local) port.link = LinkLayer::kInfiniband;
  local[1].gid[7] = 1;  // another subnet
  EXPECT_THAT(Names(PlanRails(local, remote, 0, 0)), ElementsAre("here1 port 1 to 10.0.0.3"));
  remote[0].link = LinkLayer::kEthernet;
  EXPECT_TRUE(PlanRails(local, remote, 0, 0).empty());
  EXPECT_TRUE(PlanRails({}, remote, 0, 0).empty());
}

TEST(ChooseRail, TakesTheLeastLoaded) {
  const std::vector<RailLoad> rails = {{500, -1, 0}, {100, -1, 100}, {100, -1, 0}};
  EXPECT_EQ(ChooseRail(rails, -1), 2u);
  EXPECT_EQ(ChooseRail(rails, 0), 2u);
}

TEST(ChooseRail, PrefersTheMemorysNodeAndDoesNotInsist) {
  std::vector<RailLoad> rails = {{0, 0, 0}, {900'000, 1, 0}, {0, -1, 0}};
  rails.pop_back();
  EXPECT_EQ(ChooseRail(rails, 1), 1u);
  EXPECT_EQ(ChooseRail(rails, 0), 0u);
  EXPECT_EQ(ChooseRail(rails, -1), 0u);
  rails[1].bytes = 2'000'000;
  EXPECT_EQ(ChooseRail(rails, 1), 0u);
}

TEST(NumaNodeOf, AsksTheDeviceWhoseMemoryItIs) {
  auto device = std::make_shared<FakeDevice>(4096);
  auto region = RegisterDeviceMemory(device, device->data(), 4096);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(NumaNodeOf({{*region, 0, 100}}), device->numa_node());
}

TEST(NumaNodeOf, KnowsNothingOfNoMemory) { EXPECT_EQ(NumaNodeOf({}), -1); }

}  // namespace
}  // namespace nacre::verbs
