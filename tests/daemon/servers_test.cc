// nacre-mds, nacre-oss and the commands that ask them, as processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/daemon/servers_fixture.h"
#include "transport/tcp/address.h"

namespace nacre {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

TEST_F(ServersTest, AClusterShowsItsStateAndEndsWhenAsked) {
  Format();
  Program mds(MdsWords());
  ASSERT_TRUE(WaitForOsts(0));
  Program oss(OssWords());
  ASSERT_TRUE(WaitForOsts(2));

  Ended status = RunProgram({"nacre", "status", "--mds", mds_, "--json"});
  EXPECT_EQ(status.exit, 0) << status.output;
  json shown = json::parse(status.output, nullptr, false);
  ASSERT_TRUE(shown.is_object()) << status.output;
  ASSERT_EQ(shown["osts"].size(), 2u);
  EXPECT_EQ(shown["osts"][1]["up"], true);
  EXPECT_GT(shown["osts"][1]["total_bytes"], 0);
  EXPECT_GT(shown["mds"]["resident_bytes"], 0);
  EXPECT_TRUE(shown["mds"]["requests"].is_object());  // nobody has asked for anything
  EXPECT_EQ(shown["mds"]["revocations"], 0);

  status = RunProgram({"nacre", "status", "--mds", mds_});
  EXPECT_THAT(status.output, AllOf(HasSubstr("OST 0"), HasSubstr("OST 1"), HasSubstr("0 clients")));
  Ended df = RunProgram({"nacre", "df", "--mds", mds_});
  EXPECT_EQ(df.exit, 0) << df.output;
  EXPECT_THAT(df.output, AllOf(HasSubstr("MDT"), HasSubstr("OST 1"), HasSubstr("all OSTs")));
  df = RunProgram({"nacre", "df", "--mds", mds_, "--json"});
  EXPECT_GT(json::parse(df.output, nullptr, false)["available_bytes"], 0) << df.output;

  oss.Signal(SIGTERM);
  Ended ended = oss.Wait();
  EXPECT_EQ(ended.exit, 0) << ended.output;
  mds.Signal(SIGTERM);
  ended = mds.Wait();
  EXPECT_EQ(ended.exit, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("everything is on disk"));
}

TEST_F(ServersTest, DoctorChecksWhatIsStoppedAndRefusesWhatIsServed) {
  Format();
  {
    Program mds(MdsWords());
    ASSERT_TRUE(WaitForOsts(0));
    Program oss(OssWords());
    ASSERT_TRUE(WaitForOsts(2));
    Ended bench = RunProgram(
        {"nacre", "bench", "--layer", "client", "--mds", mds_, "--size", "1M", "--count", "20", "--json"});
    EXPECT_EQ(bench.exit, 0) << bench.output;
    json figures = json::parse(bench.output, nullptr, false);
    ASSERT_TRUE(figures.is_object()) << bench.output;
    EXPECT_EQ(figures["figures"].size(), 8u) << bench.output;
    Ended served = RunProgram({"nacre", "doctor", directory_.path()});
    EXPECT_EQ(served.exit, 1);
    EXPECT_THAT(served.output, HasSubstr("is being served by process"));
    oss.Signal(SIGTERM);
    EXPECT_EQ(oss.Wait().exit, 0);
    mds.Signal(SIGTERM);
    EXPECT_EQ(mds.Wait().exit, 0);
  }
  Ended doctor = RunProgram({"nacre", "doctor", directory_.path(), "--data", "--json"});
  EXPECT_EQ(doctor.exit, 0) << doctor.output;
  json reports = json::parse(doctor.output, nullptr, false);
  ASSERT_EQ(reports.size(), 4u) << doctor.output;  // MDT, two OSTs, all together
  EXPECT_EQ(reports[0]["target"], "MDT");
  EXPECT_EQ(reports[2]["target"], "OST 1");
  EXPECT_EQ(reports[3]["problem_count"], 0);
  Ended one = RunProgram({"nacre", "doctor", directory_ / "ost1", "--repair"});
  EXPECT_EQ(one.exit, 0) << one.output;
  EXPECT_THAT(one.output, AllOf(HasSubstr("OST 1"), HasSubstr("nothing is wrong")));
  Ended none = RunProgram({"nacre", "doctor", "/usr"});
  EXPECT_EQ(none.exit, 1);
  EXPECT_THAT(none.output, HasSubstr("neither an MDT nor an OST"));
}

TEST_F(ServersTest, ASecondServerOnTheSameDirectoryIsRefused) {
  Format();
  Program mds(MdsWords());
  ASSERT_TRUE(WaitForOsts(0));
  Ended second = RunProgram(
      {"nacre-mds", "--directory", directory_ / "mdt", "--listen", "unix:" + directory_ / "other.sock"});
  EXPECT_EQ(second.exit, 1);
  EXPECT_THAT(second.output, AllOf(HasSubstr(directory_ / "mdt"), HasSubstr("is running already")));
}

TEST_F(ServersTest, AServerThatIsKilledStartsAgain) {
  Format();
  {
    Program mds(MdsWords());
    ASSERT_TRUE(WaitForOsts(0));
    Program oss(OssWords());
    ASSERT_TRUE(WaitForOsts(2));
  }
  Program mds(MdsWords());
  ASSERT_TRUE(WaitForOsts(0));
  Program oss(OssWords());
  EXPECT_TRUE(WaitForOsts(2));
}

// By its heartbeats the MGS would miss it after five minutes.
TEST_F(ServersTest, TheMgsKnowsAtOnceOfAnOssThatWasKilled) {
  Format();
  std::vector<std::string> words = MdsWords();
  words.insert(words.end(), {"--heartbeat", "1min"});
  Program mds(words);
  for (const int signal : {SIGKILL, SIGTERM}) {
    Program oss(OssWords());
    ASSERT_TRUE(WaitForOsts(2));
    oss.Signal(signal);
    EXPECT_TRUE(WaitForStatus([](const proto::ClusterStatus& status) {
      return std::ranges::none_of(status.map().osts(), [](const auto& ost) { return ost.up(); });
    }));
  }
}

TEST_F(ServersTest, AnAddressThatIsTakenIsNamed) {
  Format();
  std::string address = "127.0.0.1:0";
  StatusOr<StreamSocket> taken = OpenListener(runtime_.executor(), &address);
  ASSERT_TRUE(taken.ok()) << taken.status();
  Ended mds = RunProgram({"nacre-mds", "--directory", directory_ / "mdt", "--listen", address});
  EXPECT_EQ(mds.exit, 1);
  EXPECT_THAT(mds.output, AllOf(HasSubstr(address), HasSubstr("another server listens there")));
}

TEST_F(ServersTest, MistakesEndWithUsageAndWithoutAnyEffect) {
  Ended exposed = RunProgram({"nacre-mds", "--directory", directory_ / "mdt", "--listen", "0.0.0.0:7710"});
  EXPECT_EQ(exposed.exit, 2);
  EXPECT_THAT(exposed.output, AllOf(HasSubstr("0.0.0.0:7710"), HasSubstr("--insecure")));
  Ended unknown = RunProgram({"nacre-mds", "--directroy", "/x"});
  EXPECT_EQ(unknown.exit, 2);
  EXPECT_THAT(unknown.output,
              HasSubstr("nacre-mds: unknown option '--directroy': did you mean '--directory'?"));
  Ended value = RunProgram({"nacre-mds", "--directory", directory_ / "mdt", "--threads", "0"});
  EXPECT_EQ(value.exit, 2);
  EXPECT_THAT(value.output, AllOf(HasSubstr("--threads"), HasSubstr("a number from 1 to 256")));
  Ended none = RunProgram({"nacre-mds"});
  EXPECT_EQ(none.exit, 2);
  EXPECT_THAT(none.output, HasSubstr("[mds] directory is not set"));
  Ended ost = RunProgram({"nacre-oss", "--ost", "nonsense"});
  EXPECT_EQ(ost.exit, 2);
  EXPECT_THAT(ost.output, HasSubstr("INDEX=DIRECTORY"));
  EXPECT_FALSE(std::ifstream(directory_ / "mdt/CURRENT").good());
}

TEST_F(ServersTest, FlagsWinOverTheFile) {
  const std::string file = directory_ / "mds.toml";
  std::ofstream(file) << "[mds]\ndirectory = \"/nowhere\"\nlisten = [\"0.0.0.0:1\"]\n";
  EXPECT_EQ(RunProgram({"nacre-mds", "--config", file, "--check"}).exit, 2);
  Ended good =
      RunProgram({"nacre-mds", "--config", file, "--check", "--listen", "127.0.0.1:1", "--leases", "false"});
  EXPECT_EQ(good.exit, 0) << good.output;
  std::ofstream(file) << "[mds]\nthreads = 1\n\nthread = 2\n";
  Ended wrong = RunProgram({"nacre-mds", "--config", file});
  EXPECT_EQ(wrong.exit, 2);
  EXPECT_THAT(wrong.output,
              HasSubstr("nacre-mds: " + file + ":4: unknown key 'thread' in [mds]: did you mean 'threads'?"));
}

TEST_F(ServersTest, CommandsSayWhatToCheckWhenNobodyAnswers) {
  Ended status = RunProgram({"nacre", "status", "--mds", mds_});
  EXPECT_EQ(status.exit, 1);
  EXPECT_THAT(status.output, AllOf(HasSubstr(mds_), HasSubstr("check that nacre-mds runs there")));
  Ended path = RunProgram({"nacre", "df", "/"});
  EXPECT_EQ(path.exit, 1);
  EXPECT_THAT(path.output, HasSubstr("/ is not on a Nacre mount"));
}

TEST_F(ServersTest, JsonIsPrintedOnErrorsToo) {
  Ended status = RunProgram({"nacre", "status", "--mds", mds_, "--json"});  // nobody listens at mds_
  EXPECT_EQ(status.exit, 1);
  const std::string text = status.output.substr(status.output.find('{'));
  json shown = json::parse(text.substr(0, text.rfind('}') + 1), nullptr, false);
  ASSERT_TRUE(shown.is_object()) << status.output;
  EXPECT_THAT(std::string(shown["error"]), HasSubstr("check that nacre-mds runs there"));
}

TEST_F(ServersTest, AnOstWhoseDirectoryIsMovedAwayIsDownUntilItIsBack) {
  Format();
  Program mds(MdsWords());
  ASSERT_TRUE(WaitForOsts(0));
  Program oss(OssWords());
  ASSERT_TRUE(WaitForOsts(2));
  std::filesystem::rename(directory_ / "ost1", directory_ / "away");
  ASSERT_TRUE(WaitForStatus([](const proto::ClusterStatus& status) { return !status.map().osts(1).up(); }));
  Ended status = RunProgram({"nacre", "status", "--mds", mds_});
  EXPECT_EQ(status.exit, 1);
  EXPECT_THAT(status.output, AllOf(HasSubstr("OST 1   FAILING"),
                                   HasSubstr("the OST in " + directory_ / "ost1" + " has gone")));
  std::filesystem::rename(directory_ / "away", directory_ / "ost1");
  EXPECT_TRUE(WaitForOsts(2));
  EXPECT_EQ(RunProgram({"nacre", "status", "--mds", mds_}).exit, 0);
}

TEST_F(ServersTest, AnOssThatTheMgsRefusesEndsAndSaysWhy) {
  Format();
  Program mds(MdsWords());
  ASSERT_TRUE(WaitForOsts(0));
  {
    Program oss(OssWords());
    ASSERT_TRUE(WaitForOsts(2));
  }
  std::filesystem::remove_all(directory_ / "ost1");  // its index belongs to the one of before
  ASSERT_EQ(RunProgram(Formatting(OssWords())).exit, 0);
  Ended oss = RunProgram(OssWords());
  EXPECT_EQ(oss.exit, 1);
  EXPECT_THAT(oss.output, HasSubstr("OST index 1 belongs to"));
}

TEST_F(ServersTest, DoctorRefusesWhatDoesNotBelongTogether) {
  Format();
  {
    Program mds(MdsWords());
    ASSERT_TRUE(WaitForOsts(0));
    Program oss(OssWords());
    ASSERT_TRUE(WaitForOsts(2));
  }
  ASSERT_EQ(RunProgram({"nacre-mds", "--directory", directory_ / "other", "--format"}).exit, 0);
  Ended two = RunProgram({"nacre", "doctor", directory_.path(), "--repair"});
  EXPECT_EQ(two.exit, 2);
  EXPECT_THAT(two.output, AllOf(HasSubstr("holds two MDTs"), HasSubstr(directory_ / "other")));
  std::filesystem::remove_all(directory_ / "mdt");
  Ended strangers = RunProgram({"nacre", "doctor", directory_.path(), "--repair"});
  EXPECT_EQ(strangers.exit, 2);
  EXPECT_THAT(strangers.output, AllOf(HasSubstr("belongs to cluster"), HasSubstr(directory_ / "ost0")));
}

TEST_F(ServersTest, AMountpointThatIsMissingIsToldBeforeAnythingElse) {
  Ended mount = RunProgram({"nacre", "mount", mds_, directory_ / "missing"});  // nobody listens at mds_
  EXPECT_EQ(mount.exit, 1);
  EXPECT_THAT(mount.output, HasSubstr("missing: no such directory to mount at"));
}

TEST_F(ServersTest, AMissingMountpointIsMadeOnDemand) {
  const std::string point = directory_ / "made/point";
  Ended client = RunProgram({"nacre-client", "--mds", mds_, "--mount", point, "--make-mountpoint",
                             "--recovery", "soft", "--soft-timeout", "1s"});  // nobody listens at mds_
  EXPECT_EQ(client.exit, 1);
  EXPECT_THAT(client.output, HasSubstr("check that nacre-mds runs there"));
  EXPECT_TRUE(std::filesystem::is_directory(point));
}

TEST_F(ServersTest, AMountThatReachesNobodySaysSoAtOnceAndCanBeInterrupted) {
  const std::string point = directory_ / "point";
  std::filesystem::create_directory(point);
  Program mount({"nacre", "mount", mds_, point});
  EXPECT_THAT(mount.ReadUntil("trying again"), HasSubstr("check that nacre-mds runs there"));
  mount.Signal(SIGINT);
  EXPECT_EQ(mount.Wait().exit, 128 + SIGINT);  // waits for the end of the child, too, which has the pipe
}

TEST(Commands, HelpTeachesAndUsageIsTwo) {
  for (const char* command : {"local", "stop", "mount", "umount", "status", "df", "path", "evict",
                              "setstripe", "getstripe", "bench", "doctor"}) {
    Ended help = RunProgram({"nacre", command, "--help"});
    EXPECT_EQ(help.exit, 0) << command;
    EXPECT_THAT(help.output, AllOf(HasSubstr("Example"), HasSubstr("Exit status"))) << command;
  }
  EXPECT_EQ(RunProgram({"nacre"}).exit, 2);
  EXPECT_EQ(RunProgram({"nacre", "frobnicate"}).exit, 2);
  EXPECT_EQ(RunProgram({"nacre", "status", "--jsn"}).exit, 2);
  EXPECT_EQ(RunProgram({"nacre", "setstripe", "-c", "4"}).exit, 2);
  EXPECT_EQ(RunProgram({"nacre", "setstripe", "-c", "0", "/tmp"}).exit, 2);
  const Ended copies = RunProgram({"nacre", "setstripe", "--copies", "4", "/tmp"});
  EXPECT_EQ(copies.exit, 2);
  EXPECT_THAT(copies.output, HasSubstr("-N 4: the number of copies must be 1 to 3"));
  EXPECT_THAT(RunProgram({"nacre", "setstripe", "--copies", "2", "/tmp"}).output,
              HasSubstr("/tmp is not on a Nacre mount"));
  EXPECT_EQ(RunProgram({"nacre", "setstripe", "/tmp"}).exit, 2);
  EXPECT_THAT(RunProgram({"nacre", "version"}).output, HasSubstr("nacre 0."));
  EXPECT_THAT(RunProgram({"nacre", "getstripe", "/tmp"}).output, HasSubstr("/tmp is not on a Nacre mount"));
}

// The helper beside a program that complains about what it was called with; what a program only says, the
// helper keeps to itself.
TEST(MountHelper, TurnsOptionsIntoFlags) {
  TemporaryDirectory directory;
  const std::string helper = directory / "mount.fuse.nacre", client = directory / "nacre-client";
  std::ofstream(helper) << std::ifstream(NACRE_SOURCE_DIR "/deploy/mount.fuse.nacre").rdbuf();
  std::ofstream(client) << "#!/bin/sh\nprintf '[%s]' \"$@\" >&2\n";
  ::chmod(client.c_str(), 0755);
  Ended plain = RunProgram({"/bin/sh", helper, "127.0.0.1:7710", "/mnt/a b"});
  EXPECT_EQ(plain.output, "[--mds][127.0.0.1:7710][--mount][/mnt/a b][--daemon]");
  Ended options = RunProgram(
      {"/bin/sh", helper, "h:1", "/m", "-n", "-o", "rw,_netdev,ro,config=/e.toml,soft_timeout=5s"});
  EXPECT_EQ(options.output,
            "[--mds][h:1][--mount][/m][--daemon][--read-only][--config][/e.toml][--soft-timeout=5s]");
  Ended wrong = RunProgram({"/bin/sh", helper, "h:1", "/m", "-o", "frob"});
  EXPECT_EQ(wrong.exit, 1);
  EXPECT_THAT(wrong.output, HasSubstr("unknown option 'frob'"));
  EXPECT_EQ(RunProgram({"/bin/sh", helper, "h:1", "/m", "-f"}).output, "");
}

}  // namespace
}  // namespace nacre
