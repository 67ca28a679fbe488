#include "daemon/background.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

namespace nacre {
namespace {

class BackgroundTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/nacre-daemon-test.XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string directory_;
};

TEST_F(BackgroundTest, APidFileIsHeldByOneProcess) {
  std::string path = directory_ + "/pid";
  EXPECT_EQ(FindProcess(path).status().code(), absl::StatusCode::kNotFound);
  {
    auto held = PidFile::Hold(path);
    ASSERT_TRUE(held.ok()) << held.status();
    auto found = FindProcess(path);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, ::getpid());
    EXPECT_EQ(ToErrno(PidFile::Hold(path).status()), EBUSY);
  }
  EXPECT_EQ(FindProcess(path).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(BackgroundTest, APidFileOfADeadProcessIsStale) {
  std::string path = directory_ + "/pid";
  pid_t child = ::fork();
  if (child == 0) {
    auto held = PidFile::Hold(path);
    ::_exit(held.ok() ? 0 : 1);  // without removing it
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_TRUE(std::filesystem::exists(path));
  EXPECT_EQ(FindProcess(path).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(PidFile::Hold(path).ok());
}

TEST_F(BackgroundTest, EndsAProcessAndWaits) {
  std::string path = directory_ + "/pid";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  pid_t child = ::fork();
  if (child == 0) {
    auto held = PidFile::Hold(path);
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    ::pause();  // SIGTERM
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  Status status = EndProcess(path, 10);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(EndProcess(path, 10).code(), absl::StatusCode::kNotFound);
  ::waitpid(child, nullptr, 0);
}

// Other things that the process holds, a disk for one, are free only when it has ended.
TEST_F(BackgroundTest, WaitsForTheEndOfAProcessThatHasLetGoOfItsPidFile) {
  std::string path = directory_ + "/pid";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  pid_t child = ::fork();
  if (child == 0) {
    sigset_t term;  // blocked, so that a signal before sigwait is kept for it
    ::sigemptyset(&term);
    ::sigaddset(&term, SIGTERM);
    ::sigprocmask(SIG_BLOCK, &term, nullptr);
    auto held = PidFile::Hold(path);
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    int signal;
    ::sigwait(&term, &signal);
    held->reset();
    ::usleep(500'000);
    ::_exit(0);
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  Status status = EndProcess(path, 10);
  EXPECT_TRUE(status.ok()) << status;
  pid_t ended = ::waitpid(child, nullptr, WNOHANG);
  EXPECT_EQ(ended, child);
  if (ended == child) return;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

// Runs Fork in a child of its own, which plays the command line; its exit status.
template <typename Body>
int RunInBackground(const std::string& log, Body body) {
  pid_t shell = ::fork();
  if (shell == 0) {
    ::close(STDOUT_FILENO);
    ::close(STDERR_FILENO);
    ::open("/dev/null", O_WRONLY);
    ::open("/dev/null", O_WRONLY);
    auto background = Background::Fork(log);
    if (!background.ok()) ::_exit(7);
    body(**background);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(shell, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(BackgroundTest, TheCommandWaitsForReadyAndTellsFailure) {
  std::string log = directory_ + "/log";
  EXPECT_EQ(RunInBackground(log, [](Background& background) { background.Ready("up\n"); }), 0);
  EXPECT_EQ(
      RunInBackground(log, [](Background& background) { background.Failed(ErrnoError(ENOSPC, "no room")); }),
      1);
  EXPECT_EQ(RunInBackground(log, [](Background&) { ::_exit(3); }), 1);
  std::ifstream file(log);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(text.find("no room"), std::string::npos);
  EXPECT_EQ(RunInBackground("/nowhere/log", [](Background&) {}), 7);
}

// The child's notes arrive while the command still waits.
TEST_F(BackgroundTest, NotesAreShownAtOnceAndAnInterruptEndsTheChild) {
  int shown[2], alive[2];
  ASSERT_EQ(::pipe(shown), 0);
  ASSERT_EQ(::pipe(alive), 0);  // its end comes with that of the child
  pid_t shell = ::fork();
  if (shell == 0) {
    ::dup2(shown[1], STDERR_FILENO);
    ::close(alive[0]);
    auto background = Background::Fork(directory_ + "/log");
    if (!background.ok()) ::_exit(7);
    (*background)->Note("nobody answers\n");
    while (true) ::pause();
  }
  ::close(alive[1]);
  char text[64] = {};
  ASSERT_GT(::read(shown[0], text, sizeof text - 1), 0);
  EXPECT_STREQ(text, "nobody answers\n");
  ::kill(shell, SIGINT);
  int status = 0;
  ASSERT_EQ(::waitpid(shell, &status, 0), shell);
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT);
  EXPECT_EQ(::read(alive[0], text, 1), 0);  // the child is gone, too
}

}  // namespace
}  // namespace nacre
