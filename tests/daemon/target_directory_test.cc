// The directories of an MDT and of OSTs: who may look into them, and that none is made unasked.
#include "daemon/target_directory.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/daemon/servers_fixture.h"

namespace nacre {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Lists the files in the directory, itself included, whose modes give others any right; symbolic links aside.
std::vector<std::string> OpenToOthers(const std::string& directory) {
  std::vector<std::string> open;
  auto look = [&open](const fs::path& path) {
    struct stat found;
    if (::lstat(path.c_str(), &found) != 0) return;
    if (!S_ISLNK(found.st_mode) && (found.st_mode & 0077) != 0) open.push_back(path);
  };
  look(directory);
  for (const auto& entry : fs::recursive_directory_iterator(directory)) look(entry.path());
  return open;
}

class TargetDirectoryTest : public ServersTest {
 protected:
  // The programs inherit the most generous umask there is.
  TargetDirectoryTest() : umask_(::umask(0)) {}
  ~TargetDirectoryTest() override { ::umask(umask_); }

  const mode_t umask_;
};

TEST_F(TargetDirectoryTest, NobodyElseCanLookIntoTargets) {
  Format();
  for (const char* target : {"mdt", "ost0", "ost1"})
    EXPECT_THAT(OpenToOthers(directory_ / target), IsEmpty());
  Program mds(MdsWords());
  ASSERT_TRUE(WaitForOsts(0));
  Program oss(OssWords());
  ASSERT_TRUE(WaitForOsts(2));
  for (const char* target : {"mdt", "ost0", "ost1"})
    EXPECT_THAT(OpenToOthers(directory_ / target), IsEmpty());
}

TEST_F(TargetDirectoryTest, TargetsOfBeforeAreClosedWithALineInTheLog) {
  Format();
  fs::permissions(directory_ / "mdt", fs::perms(0755));
  for (const auto& entry : fs::directory_iterator(directory_ / "mdt"))
    fs::permissions(entry.path(), fs::perms(0644));
  Program mds(MdsWords());
  ASSERT_TRUE(WaitForOsts(0));
  EXPECT_THAT(OpenToOthers(directory_ / "mdt"), IsEmpty());
  mds.Signal(SIGTERM);
  EXPECT_THAT(mds.Wait().output,
              AllOf(HasSubstr(directory_ / "mdt"), HasSubstr("could be reached by other users")));
}

TEST_F(TargetDirectoryTest, AMissingOrEmptyTargetIsNotMadeUnasked) {
  Ended mds = RunProgram(MdsWords());
  EXPECT_EQ(mds.exit, 1);
  EXPECT_THAT(mds.output, AllOf(HasSubstr("there is no MDT in " + directory_ / "mdt"),
                                HasSubstr("Is its disk mounted?"), HasSubstr("nacre-mds --format")));
  EXPECT_FALSE(fs::exists(directory_ / "mdt"));
  fs::create_directories(directory_ / "ost0/lost+found");
  Ended oss = RunProgram(OssWords());
  EXPECT_EQ(oss.exit, 1);
  EXPECT_THAT(oss.output,
              AllOf(HasSubstr("there is no OST in " + directory_ / "ost0"), HasSubstr("nacre-oss --format")));
  EXPECT_FALSE(fs::exists(directory_ / "ost0/meta"));
}

TEST_F(TargetDirectoryTest, FormatMakesWhatIsMissingAndLeavesTheRest) {
  Format();
  fs::remove_all(directory_ / "ost1");
  Ended again = RunProgram(Formatting(OssWords()));
  EXPECT_EQ(again.exit, 0) << again.output;
  EXPECT_THAT(again.output, AllOf(HasSubstr("OST 0 is there already"), HasSubstr("formatted a new OST 1")));
  Ended mds = RunProgram(Formatting(MdsWords()));
  EXPECT_EQ(mds.exit, 0);
  EXPECT_THAT(mds.output, HasSubstr("the MDT is there already"));
}

TEST_F(TargetDirectoryTest, FormatTouchesNothingElse) {
  fs::create_directories(directory_ / "mdt");
  std::ofstream(directory_ / "mdt/thesis.txt") << "precious";
  Ended mds = RunProgram(Formatting(MdsWords()));
  EXPECT_EQ(mds.exit, 1);
  EXPECT_THAT(mds.output, HasSubstr("holds files, but no MDT"));
  EXPECT_EQ(RunProgram(MdsWords()).exit, 1);
  EXPECT_FALSE(fs::exists(directory_ / "mdt/CURRENT"));
  Ended parents = RunProgram({"nacre-mds", "--directory", directory_ / "none/a/b", "--format"});
  EXPECT_EQ(parents.exit, 1);
  EXPECT_THAT(parents.output, HasSubstr("No such file or directory"));
  EXPECT_FALSE(fs::exists(directory_ / "none"));
}

TEST_F(TargetDirectoryTest, AnOstLargerThanItsDiskIsRefusedAndLeavesNothing) {
  Ended oss = RunProgram({"nacre-oss", "--ost", "0=" + directory_ / "ost0" + ",900TiB", "--format"});
  EXPECT_EQ(oss.exit, 1);
  EXPECT_THAT(oss.output, AllOf(HasSubstr("OST 0: a size of 900 TiB"), HasSubstr(directory_ / "ost0")));
  EXPECT_FALSE(fs::exists(directory_ / "ost0"));
}

TEST_F(TargetDirectoryTest, AnOstWithoutItsBlocksIsNotServed) {
  Format();
  fs::remove_all(directory_ / "ost0/data");
  Ended oss = RunProgram(OssWords());
  EXPECT_EQ(oss.exit, 1);
  EXPECT_THAT(oss.output, HasSubstr("nothing is in " + directory_ / "ost0/data"));
  EXPECT_FALSE(fs::exists(directory_ / "ost0/data"));
}

TEST(LookAtTarget, TellsNothingATargetAndSomethingElseApart) {
  TemporaryDirectory directory;
  EXPECT_EQ(LookAtTarget(TargetKind::kMdt, directory / "missing"), TargetState::kNone);
  EXPECT_EQ(LookAtTarget(TargetKind::kMdt, directory.path()), TargetState::kNone);
  std::ofstream(directory / "mds.pid") << "1";
  fs::create_directory(directory / "lost+found");
  EXPECT_EQ(LookAtTarget(TargetKind::kMdt, directory.path()), TargetState::kNone);
  fs::create_directory(directory / "meta");
  EXPECT_EQ(LookAtTarget(TargetKind::kOst, directory.path()), TargetState::kForeign);
  std::ofstream(directory / "meta/MANIFEST-000001") << "a database that has lost its CURRENT";
  EXPECT_EQ(LookAtTarget(TargetKind::kOst, directory.path()), TargetState::kThere);
  EXPECT_EQ(LookAtTarget(TargetKind::kMdt, directory.path()), TargetState::kForeign);
}

}  // namespace
}  // namespace nacre
