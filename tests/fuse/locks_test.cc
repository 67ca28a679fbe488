#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "tests/fuse/mounted.h"

namespace nacre::fuse {
namespace {

using LocksTest = MountedTest;

struct flock Range(short type, off_t start, off_t length) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = start;
  lock.l_len = length;
  return lock;
}

// Runs the function in a child process; its exit status.
template <typename Function>
int InChild(Function function) {
  pid_t child = ::fork();
  if (child == 0) ::_exit(function());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_F(LocksTest, PosixLocksExcludeOtherProcesses) {
  WriteFile("file", "x");
  int file = ::open(Path("file").c_str(), O_RDWR);
  struct flock lock = Range(F_WRLCK, 10, 10);
  ASSERT_EQ(::fcntl(file, F_SETLK, &lock), 0);
  pid_t parent = ::getpid();
  EXPECT_EQ(InChild([&] {
              int own = ::open(Path("file").c_str(), O_RDWR);
              struct flock wanted = Range(F_RDLCK, 15, 1);
              if (::fcntl(own, F_SETLK, &wanted) == 0 || errno != EAGAIN) return 1;
              wanted = Range(F_RDLCK, 15, 1);
              if (::fcntl(own, F_GETLK, &wanted) != 0 || wanted.l_type != F_WRLCK) return 2;
              if (wanted.l_start != 10 || wanted.l_len != 10 || wanted.l_pid != parent) return 3;
              wanted = Range(F_WRLCK, 20, 0);
              return ::fcntl(own, F_SETLK, &wanted) == 0 ? 0 : 4;
            }),
            0);
  int other = ::open(Path("file").c_str(), O_RDONLY);
  ::close(other);  // closing any descriptor of the file gives the process's locks back
  EXPECT_EQ(InChild([&] {
              int own = ::open(Path("file").c_str(), O_RDWR);
              struct flock wanted = Range(F_WRLCK, 10, 10);
              return ::fcntl(own, F_SETLK, &wanted) == 0 ? 0 : 1;
            }),
            0);
  ::close(file);
}

TEST_F(LocksTest, BsdLocksGoWithTheLastClose) {
  WriteFile("file", "x");
  int first = ::open(Path("file").c_str(), O_RDWR), second = ::open(Path("file").c_str(), O_RDWR);
  ASSERT_EQ(::flock(first, LOCK_EX), 0);
  EXPECT_EQ(::flock(second, LOCK_SH | LOCK_NB), -1);
  EXPECT_EQ(errno, EWOULDBLOCK);
  ::close(first);
  EXPECT_EQ(::flock(second, LOCK_EX), 0);  // waits for the release, which comes late
  ::close(second);
}

TEST_F(LocksTest, LocksOfAnOpenFileGoWithItsLastClose) {
  WriteFile("file", "x");
  int first = ::open(Path("file").c_str(), O_RDWR), second = ::open(Path("file").c_str(), O_RDWR);
  struct flock lock = Range(F_WRLCK, 0, 10);
  ASSERT_EQ(::fcntl(first, F_OFD_SETLK, &lock), 0);
  lock = Range(F_WRLCK, 5, 1);
  EXPECT_EQ(::fcntl(second, F_OFD_SETLK, &lock), -1);
  EXPECT_EQ(errno, EAGAIN);
  int copy = ::dup(first);
  ::close(first);
  lock = Range(F_WRLCK, 5, 1);
  EXPECT_EQ(::fcntl(second, F_OFD_SETLK, &lock), -1);
  ::close(copy);
  lock = Range(F_WRLCK, 5, 1);
  EXPECT_EQ(::fcntl(second, F_OFD_SETLKW, &lock), 0);  // waits for the release, which comes late
  ::close(second);
}

TEST_F(LocksTest, AWaitEndsBySignal) {
  WriteFile("file", "x");
  int file = ::open(Path("file").c_str(), O_RDWR);
  ASSERT_EQ(::flock(file, LOCK_EX), 0);
  EXPECT_EQ(InChild([&] {
              struct sigaction action {};
              action.sa_handler = [](int) {};
              ::sigaction(SIGALRM, &action, nullptr);
              int own = ::open(Path("file").c_str(), O_RDWR);
              itimerval soon{};
              soon.it_interval.tv_usec = soon.it_value.tv_usec = 50000;
              ::setitimer(ITIMER_REAL, &soon, nullptr);
              return ::flock(own, LOCK_EX) == -1 && errno == EINTR ? 0 : 1;
            }),
            0);
  ::close(file);
}

}  // namespace
}  // namespace nacre::fuse
