#include "transport/data_plane.h"

#include <gtest/gtest.h>

#include "common/clock.h"
#include "common/runtime.h"
#include "transport/verbs/verbs_transport.h"

namespace nacre {
namespace {

class DataPlane : public ::testing::Test {
 protected:
  ~DataPlane() override { runtime_.Stop(); }

  std::unique_ptr<Transport> Make(const std::string& choice) {
    auto transport = MakeDataPlane(runtime_.executor(), RealClock(), choice);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  }

  // The path that a client takes to a server; empty: the call fails.
  PathInfo PathBetween(const std::string& client, const std::string& server) {
    auto serving = Make(server), calling = Make(client);
    auto listener = serving
                        ->Listen("127.0.0.1:0",
                                 [](std::shared_ptr<IncomingCall> call) -> Task<void> {
                                   (void)co_await call->Reply(std::string("here"));
                                 })
                        .value();
    auto peer = calling->Connect(listener->address()).value();
    CallRequest request;
    auto reply = runtime_.Run(peer->Call(std::move(request), 10s));
    if (!reply.ok()) return {"", std::string(reply.status().message())};
    EXPECT_EQ(*reply, "here");
    return peer->path();
  }

  Runtime runtime_{2};
};

TEST_F(DataPlane, TheBestPathByItself) {
  EXPECT_EQ(PathBetween("auto", "auto").path, "shm");
  EXPECT_EQ(PathBetween("shm", "auto").path, "shm");
  EXPECT_EQ(PathBetween("shm", "shm").path, "shm");
}

TEST_F(DataPlane, TcpWhereItIsConfigured) {
  const PathInfo client = PathBetween("tcp", "auto");
  EXPECT_EQ(client.path, "tcp");
  EXPECT_EQ(client.reason, "transport = \"tcp\" is configured");
  const PathInfo server = PathBetween("auto", "tcp");
  EXPECT_EQ(server.path, "tcp");
  EXPECT_NE(server.reason.find("no shm: the server does not offer it"), std::string::npos) << server.reason;
}

TEST_F(DataPlane, NothingElseWhereOnePathIsConfigured) {
  const PathInfo none = PathBetween("shm", "tcp");
  EXPECT_EQ(none.path, "");
  EXPECT_NE(none.reason.find("cannot be used as configured: no shm"), std::string::npos) << none.reason;
}

TEST_F(DataPlane, EveryChoiceIsKnown) {
  for (const std::string& choice : TransportChoices()) {
    const Status status = MakeDataPlane(runtime_.executor(), RealClock(), choice).status();
    EXPECT_EQ(status.ok(), choice != "rdma" || LookForRdma().ok()) << choice << " " << status;
  }
}

}  // namespace
}  // namespace nacre
