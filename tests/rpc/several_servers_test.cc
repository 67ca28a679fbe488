// A list of servers of which one serves: those that are dead, frozen or not the primary.
#include "rpc/several_servers.h"

#include <absl/strings/str_join.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <thread>

#include "rpc/grpc_backup.h"
#include "rpc/grpc_channel.h"
#include "rpc/grpc_server.h"
#include "tests/rpc/test_mds.h"

namespace nacre {
namespace {

using testing::HasSubstr;

TEST(SplitAddresses, NamesWhatIsWrong) {
  EXPECT_EQ(*SplitAddresses("a:1"), std::vector<std::string>{"a:1"});
  EXPECT_EQ(*SplitAddresses("a:1,unix:/b"), (std::vector<std::string>{"a:1", "unix:/b"}));
  for (std::string addresses : {"a:1,", ",a:1", "a:1,,b:2", ","}) {
    Status status = SplitAddresses(addresses).status();
    EXPECT_EQ(ToErrno(status), EINVAL) << addresses;
    EXPECT_THAT(std::string(status.message()), HasSubstr("'" + addresses + "'"));
  }
  for (Status status :
       {NewGrpcConnector("a:1,b,c:3").status(), NewGrpcClusterChannel("a:1,b,c:3", 1s).status(),
        FetchBackup("a:1,b,c:3", [](const std::string&, uint64_t) { return OkStatus(); })}) {
    EXPECT_EQ(ToErrno(status), EINVAL);
    EXPECT_THAT(std::string(status.message()), HasSubstr("'b'"));
  }
  EXPECT_TRUE(ShareServer("a:1,b:2", "c:3,b:2"));
  EXPECT_FALSE(ShareServer("a:1,b:2", "a:11,b"));
  EXPECT_EQ((*NewGrpcConnector("a:1,b:2"))->address(), "a:1,b:2");
  EXPECT_EQ((*NewGrpcConnector("a:1,b:2"))->servers(), 2u);
  EXPECT_EQ((*NewGrpcConnector("a:1"))->servers(), 1u);
}

// Three MDSes over gRPC; where one does not run nobody listens.
class SeveralServersTest : public testing::Test {
 protected:
  static constexpr size_t kServers = 3;

  SeveralServersTest() {
    std::string pattern = testing::TempDir() + "/nacre-several.XXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    directory = pattern;
    for (size_t i = 0; i < kServers; ++i) {
      addresses.push_back("unix:" + directory + "/" + std::to_string(i));
      mds[i].number = i;
    }
  }
  ~SeveralServersTest() override {
    for (size_t i = 0; i < kServers; ++i) Kill(i);
    runtime.Stop();
    std::filesystem::remove_all(directory);
  }

  void Start(size_t i) {
    auto started = GrpcServer::Start(runtime.executor(), {&mds[i], &mds[i], &mds[i]}, {addresses[i]});
    ASSERT_TRUE(started.ok()) << started.status();
    servers[i] = *std::move(started);
  }
  void Kill(size_t i) {
    if (servers[i] != nullptr) servers[i]->Stop();
    servers[i].reset();
  }
  std::string All() const { return absl::StrJoin(addresses, ","); }

  // The number of the MDS that a session was opened at, as a client does it; how often it had to try.
  uint64_t Open(MetadataConnector* connector, int* attempts) {
    for (*attempts = 1; *attempts < 20; ++*attempts) {
      auto stream = runtime.Run(connector->Connect({}, 5s));
      if (!stream.ok()) continue;
      auto reply = runtime.Run((*stream)->Call(ConnectRequest()));
      if (reply.ok() && reply->status().error() == 0) {
        channel = *stream;
        return reply->connect().session();
      }
      (*stream)->Close();
    }
    return 99;
  }

  std::string directory;
  std::vector<std::string> addresses;
  TestMds mds[kServers];
  Runtime runtime{2};
  std::unique_ptr<GrpcServer> servers[kServers];
  std::shared_ptr<MetadataChannel> channel;
};

TEST_F(SeveralServersTest, ASessionIsOpenedAtTheOneThatServes) {
  Start(1);
  Start(2);
  mds[1].status = ErrnoError(ENOTCONN, "not the primary");
  auto connector = *NewGrpcConnector(All());
  int attempts = 0;
  const Duration begin = RealClock().Now();
  EXPECT_EQ(Open(connector.get(), &attempts), 2u);
  EXPECT_EQ(attempts, 3);
  EXPECT_LT(RealClock().Now() - begin, 2s);

  // Another session begins there, and goes on when that one dies.
  auto first = channel;
  EXPECT_EQ(Open(connector.get(), &attempts), 2u);
  EXPECT_EQ(attempts, 1);
  mds[1].status = OkStatus();
  Kill(2);
  EXPECT_FALSE(runtime.Run(first->Call(WhoIsThere())).ok());
  EXPECT_EQ(Open(connector.get(), &attempts), 1u);
  EXPECT_LE(attempts, 3);
}

// A stream to the primary that breaks again and again beside one that is frozen: only the first time waits
// for it.
TEST_F(SeveralServersTest, OneThatHasNotAnsweredIsAskedLast) {
  for (size_t i = 0; i < kServers; ++i) Start(i);
  mds[1].waits = true;
  mds[2].status = ErrnoError(ENOTCONN, "not the primary");
  auto connector = *NewGrpcConnector(All());
  int attempts = 0;
  EXPECT_EQ(Open(connector.get(), &attempts), 0u);
  for (int broken = 0; broken < 4; ++broken) {
    Kill(0);
    EXPECT_FALSE(runtime.Run(channel->Call(WhoIsThere())).ok());
    Start(0);
    const bool first = broken == 0;
    if (first) {  // as a session does that has waited for long enough
      auto stream = *runtime.Run(connector->Connect({}, 5s));
      Spawn(runtime.executor(), stream->Call(ConnectRequest()), [](const auto&) {});
      while (mds[1].handled == 0) std::this_thread::sleep_for(1ms);
      stream->Close();
    }
    EXPECT_EQ(Open(connector.get(), &attempts), 0u);
    EXPECT_EQ(attempts, 2) << "the one that refuses, and the primary";
    EXPECT_EQ(mds[1].handled, 1);
  }
  mds[1].go.Set({});
  // When nobody else is left it is asked again.
  Kill(0);
  EXPECT_FALSE(runtime.Run(channel->Call(WhoIsThere())).ok());
  EXPECT_EQ(Open(connector.get(), &attempts), 1u);
  EXPECT_EQ(attempts, 3);
}

TEST_F(SeveralServersTest, AnErrorOfTheSessionIsNoReasonToGoElsewhere) {
  Start(0);
  Start(1);
  auto connector = *NewGrpcConnector(All());
  mds[0].status = ErrnoError(ESTALE, "session 7 has ended");
  for (int i = 0; i < 2; ++i) {
    auto stream = *runtime.Run(connector->Connect({}, 5s));
    auto reply = runtime.Run(stream->Call(ConnectRequest()));
    EXPECT_EQ(reply->connect().session(), 0u);
    stream->Close();
  }
  EXPECT_EQ(mds[0].handled, 2);
}

TEST_F(SeveralServersTest, ClusterCallsGoToTheOneThatAnswers) {
  Start(1);
  Start(2);
  auto cluster = *NewGrpcClusterChannel(All(), 5s);
  mds[1].status = ErrnoError(ENOTCONN, "not the primary");
  EXPECT_TRUE(runtime.Run(cluster->RegisterOss({})).ok());
  EXPECT_EQ(mds[1].handled, 1);
  EXPECT_EQ(mds[2].handled, 1);
  EXPECT_TRUE(runtime.Run(cluster->Heartbeat({})).ok());
  EXPECT_EQ(mds[1].handled, 1) << "the one that has answered is asked first";
  EXPECT_EQ(runtime.Run(cluster->GetStatus())->inodes(), 2u);
  EXPECT_EQ(runtime.Run(cluster->Administer({}))->evicted(), "2");
  mds[1].status = OkStatus();
  Kill(2);
  EXPECT_TRUE(runtime.Run(cluster->ReportChain({})).ok());
  EXPECT_EQ(mds[1].handled, 2);
  // Other errors are the answer.
  mds[1].status = ErrnoError(ENOENT, "register again");
  EXPECT_EQ(runtime.Run(cluster->Heartbeat({}))->status().error(), static_cast<uint32_t>(ENOENT));
}

TEST_F(SeveralServersTest, WhatFailsEverywhereSaysWhatAllSaid) {
  Start(1);
  mds[1].status = ErrnoError(ENOTCONN, "mds-b is not the primary");
  auto cluster = *NewGrpcClusterChannel(All(), 5s);
  Status status = runtime.Run(cluster->Heartbeat({})).status();
  EXPECT_TRUE(IsRetryable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(addresses[0]));
  EXPECT_THAT(std::string(status.message()), HasSubstr("mds-b is not the primary"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(addresses[2]));
}

TEST_F(SeveralServersTest, OneThatDoesNotAnswerDoesNotEatTheTime) {
  Start(0);
  Start(1);
  mds[0].waits = true;
  auto cluster = *NewGrpcClusterChannel(addresses[0] + "," + addresses[1], 400ms);
  const Duration begin = RealClock().Now();
  auto reply = runtime.Run(cluster->Heartbeat({}));
  EXPECT_TRUE(reply.ok()) << reply.status();
  EXPECT_GE(RealClock().Now() - begin, 200ms);
  EXPECT_EQ(mds[1].handled, 1);
  EXPECT_TRUE(runtime.Run(cluster->Heartbeat({})).ok());
  EXPECT_EQ(mds[0].handled, 1);
  mds[0].go.Set({});
}

TEST_F(SeveralServersTest, ThePrimaryOfThePastIsNotListenedTo) {
  Start(0);
  Start(1);
  mds[0].epoch = 5;
  mds[1].epoch = 4;
  auto cluster = *NewGrpcClusterChannel(addresses[0] + "," + addresses[1], 5s);
  EXPECT_EQ(runtime.Run(cluster->RegisterOss({}))->mdt_epoch(), 5u);
  Kill(0);
  Status status = runtime.Run(cluster->Heartbeat({})).status();
  EXPECT_TRUE(IsRetryable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("epoch 4"));
  mds[1].epoch = 6;
  EXPECT_EQ(runtime.Run(cluster->Heartbeat({}))->mdt_epoch(), 6u);
}

TEST_F(SeveralServersTest, ABackupIsTakenFromTheOneThatServes) {
  Start(1);
  Status status = FetchBackup(All(), [](const std::string&, uint64_t) { return OkStatus(); });
  EXPECT_EQ(ToErrno(status), EBUSY);
  EXPECT_EQ(status.message(), "1");
}

constexpr char kServeAt[] = "NACRE_TEST_SERVE_AT=";

// An MDS in a process of its own, which can be frozen.
class Frozen {
 public:
  explicit Frozen(const std::string& address) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    std::string serve_at = kServeAt + address;
    char* environment[] = {serve_at.data(), nullptr};
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(ready[1], 3);
      // Anew, since gRPC does not survive a fork.
      execle("/proc/self/exe", "rpc_test", "--gtest_filter=FrozenServer.DISABLED_Serves",
             "--gtest_also_run_disabled_tests", "--gtest_brief=1", nullptr, environment);
      _exit(127);
    }
    close(ready[1]);
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
  }
  ~Frozen() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  // It stands still when this returns: until all its threads have stopped, it may still answer.
  void Stop() {
    kill(pid_, SIGSTOP);
    EXPECT_EQ(waitpid(pid_, nullptr, WUNTRACED), pid_);
  }

 private:
  pid_t pid_;
};

// Not a test, but what Frozen runs.
TEST(FrozenServer, DISABLED_Serves) {
  const char* address = getenv("NACRE_TEST_SERVE_AT");
  if (address == nullptr) GTEST_SKIP() << "it is for another test";
  TestMds mds;
  mds.number = 0;
  Runtime runtime(1);
  auto server = GrpcServer::Start(runtime.executor(), {&mds, &mds}, {address});
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_EQ(write(3, "x", 1), 1);
  pause();
}

TEST_F(SeveralServersTest, AStreamToAFrozenOneIsFoundOutAndTheNextIsReached) {
  Start(1);
  Frozen frozen(addresses[0]);
  auto connector = *NewGrpcConnector(addresses[0] + "," + addresses[1]);
  OneShot<Unit> lost;
  MetadataChannelEvents events;
  events.on_lost = [lost](Status) { lost.Set({}); };
  auto stream = *runtime.Run(connector->Connect(std::move(events), 5s));
  ASSERT_EQ(runtime.Run(stream->Call(ConnectRequest()))->connect().session(), 0u);
  frozen.Stop();
  const Duration begin = RealClock().Now();
  EXPECT_TRUE(IsRetryable(runtime.Run(stream->Call(WhoIsThere())).status()));
  const Duration found = RealClock().Now() - begin;
  EXPECT_LT(found, 6s);
  EXPECT_GT(found, 1s);
  runtime.Run([](OneShot<Unit> lost) -> Task<Unit> { co_return co_await lost.Wait(); }(lost));
  int attempts = 0;
  EXPECT_EQ(Open(connector.get(), &attempts), 1u);
  EXPECT_EQ(attempts, 1);

  // One that was frozen before costs little more than the attempt to connect.
  const Duration again = RealClock().Now();
  connector = *NewGrpcConnector(addresses[0] + "," + addresses[1]);
  EXPECT_EQ(Open(connector.get(), &attempts), 1u);
  EXPECT_EQ(attempts, 2);
  EXPECT_LT(RealClock().Now() - again, 4s);
}

}  // namespace
}  // namespace nacre
