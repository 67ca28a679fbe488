// Runs nacre ost rebalance as a program, and looks at its words and its exit status.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/daemon/servers_fixture.h"

namespace nacre {
namespace {

using testing::HasSubstr;

class OstRebalanceTest : public ServersTest {
 protected:
  Ended Rebalance(std::vector<std::string> words) {
    std::vector<std::string> all = {"nacre", "ost", "rebalance", "--mds", mds_};
    all.insert(all.end(), words.begin(), words.end());
    return RunProgram(std::move(all));
  }
};

TEST_F(OstRebalanceTest, WrongThresholdsAreNamed) {
  for (const char* threshold : {"0", "-3", "101", "nan", "much", "5%"}) {
    const Ended ended = Rebalance({"--threshold", threshold});
    EXPECT_EQ(ended.exit, 2) << threshold << ": " << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(threshold));
  }
}

TEST_F(OstRebalanceTest, WhatExcludesEachOtherIsRefused) {
  EXPECT_EQ(Rebalance({"--stop", "--wait"}).exit, 2);
  EXPECT_EQ(Rebalance({"--stop", "--dry-run"}).exit, 2);
  EXPECT_EQ(Rebalance({"--dry-run", "--wait"}).exit, 2);
  EXPECT_EQ(Rebalance({"3"}).exit, 2);
}

TEST_F(OstRebalanceTest, WithoutAnMdsItFails) { EXPECT_EQ(Rebalance({"--dry-run"}).exit, 1); }

TEST_F(OstRebalanceTest, OstsThatAreEvenAreSaidToBe) {
  Format();
  Program mds(MdsWords());
  ASSERT_TRUE(WaitForOsts(0));
  Program oss(OssWords());
  ASSERT_TRUE(WaitForOsts(2));
  for (const char* option : {"--dry-run", "--wait", "--threshold=1"}) {
    const Ended ended = Rebalance({option});
    EXPECT_EQ(ended.exit, 0) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("2 OSTs: from"));
    EXPECT_THAT(ended.output, HasSubstr("they are even"));
  }
  const Ended stopped = Rebalance({"--stop"});
  EXPECT_EQ(stopped.exit, 0) << "that it does not run is no error: " << stopped.output;
  const Ended status = RunProgram({"nacre", "status", "--mds", mds_, "--json"});
  EXPECT_FALSE(nlohmann::json::parse(status.output).contains("rebalance"));
}

// One whose OSTs are down has begun, and waits for them.
TEST_F(OstRebalanceTest, ItIsShownWhileItRunsAndAfterItWasStopped) {
  Format();
  Program mds(MdsWords());
  ASSERT_TRUE(WaitForOsts(0));
  {
    Program oss(OssWords());
    ASSERT_TRUE(WaitForOsts(2));
    oss.Signal(SIGTERM);
    EXPECT_EQ(oss.Wait().exit, 0);
  }
  ASSERT_TRUE(WaitForStatus([](const proto::ClusterStatus& status) {
    return status.map().osts_size() == 2 && !status.map().osts(0).up() && !status.map().osts(1).up();
  }));
  const Ended begun = Rebalance({});
  EXPECT_EQ(begun.exit, 0) << begun.output;
  const Ended status = RunProgram({"nacre", "status", "--mds", mds_});
  EXPECT_THAT(status.output, HasSubstr("rebalancing: 0 files"));
  EXPECT_THAT(status.output, HasSubstr("2 down"));
  EXPECT_EQ(Rebalance({"--stop"}).exit, 0);
  const Ended json = RunProgram({"nacre", "status", "--mds", mds_, "--json"});
  const nlohmann::json shown = nlohmann::json::parse(json.output)["rebalance"];
  EXPECT_EQ(shown["running"], false);
  EXPECT_THAT(shown["end"].get<std::string>(), HasSubstr("stopped"));
}

}  // namespace
}  // namespace nacre
