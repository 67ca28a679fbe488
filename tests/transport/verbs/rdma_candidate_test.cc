// The offers that a server makes of its RDMA devices, and what it costs to make them.
#include "transport/verbs/rdma_candidate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/transport/transport_fixture.h"
#include "tests/transport/verbs/fake_rdma.h"
#include "transport/select/select_transport.h"
#include "transport/tcp/tcp_peer.h"

namespace nacre::verbs {
namespace {

class RdmaOfferTest : public TransportTest {
 protected:
  void SetUp() override {
    TransportTest::SetUp();
    SelectOptions options;
    options.candidates = {MakeRdmaCandidate(executor(), RealClock(), {})};
    transport_ = MakeSelectTransport(executor(), RealClock(), std::move(options));
    listener_ = transport_->Listen("127.0.0.1:0", Echo).value();
  }
  void TearDown() override {
    listener_.reset();
    transport_.reset();
    TransportTest::TearDown();
  }

  // The paths that the server offers to whoever greets it.
  std::vector<std::string> Greet() {
    StatusOr<Hello> hello = Run(AskForHello(executor(), RealClock(), TcpOptions(), listener_->address()));
    EXPECT_TRUE(hello.ok()) << hello.status();
    std::vector<std::string> paths;
    if (!hello.ok()) return paths;
    for (const PathOffer& offer : hello->offers) paths.push_back(offer.path);
    return paths;
  }

  FakeRdma device_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Listener> listener_;
};

INSTANTIATE_TEST_SUITE_P(, RdmaOfferTest, testing::ValuesIn(TcpKinds()),
                         [](const auto& info) { return info.param.name; });

// To open a device takes milliseconds, and after a restart all clients greet at once.
TEST_P(RdmaOfferTest, GreetingsDoNotOpenTheDevices) {
  const auto begin = std::chrono::steady_clock::now();
  const int opened = device_.opened();
  for (int i = 0; i < 100; ++i) EXPECT_THAT(Greet(), testing::ElementsAre("rdma"));
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_LE(device_.opened() - opened, seconds + 2);
}

// An offer is a second old at most.
TEST_P(RdmaOfferTest, ADeviceThatGoesIsOfferedNoMore) {
  EXPECT_THAT(Greet(), testing::ElementsAre("rdma"));
  device_.Remove();
  EXPECT_TRUE(Eventually([&] { return Greet().empty(); }));
  device_.Restore();
  EXPECT_TRUE(Eventually([&] { return !Greet().empty(); }));
}

}  // namespace
}  // namespace nacre::verbs
