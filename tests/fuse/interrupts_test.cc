// A process that waits for a request that is not answered can be killed, and no other process notices.
#include "fuse/interrupts.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/fuse/mounted.h"

namespace nacre::fuse {
namespace {

using Time = std::chrono::steady_clock;

class InterruptsTest : public MountedTest {
 protected:
  void TearDown() override {
    filesystem_.HoldReads(false);
    filesystem_.HoldWrites(false);
    filesystem_.HoldFlushes(false);
    for (pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
    MountedTest::TearDown();
  }

  // Nothing but system calls: the test has other threads.
  pid_t InChild(const std::function<int()>& body) {
    pid_t child = ::fork();
    if (child == 0) ::_exit(body());
    children_.push_back(child);
    return child;
  }

  void WaitUntilHeld(size_t requests) {
    for (int i = 0; i < 10000 && filesystem_.waiting() < requests; ++i) ::usleep(1000);
    ASSERT_GE(filesystem_.waiting(), requests) << "the request did not come";
  }

  // The exit status of the child, or 128 + the signal that ended it; -1 if it is there still after `limit`.
  int Ends(pid_t child, Duration limit) {
    const auto deadline = Time::now() + limit;
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (Time::now() > deadline) return -1;
      ::usleep(2000);
    }
    std::erase(children_, child);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  pid_t BlockedReader(int flags) {
    WriteFile("file", std::string(8192, 'a'));
    const std::string path = Path("file");
    filesystem_.Forget(filesystem_.FidOf("file"));
    filesystem_.HoldReads(true);
    pid_t child = InChild([&] {
      int file = ::open(path.c_str(), O_RDONLY | flags);
      void* buffer = nullptr;
      if (::posix_memalign(&buffer, 4096, 4096) != 0) return 2;
      return ::read(file, buffer, 4096) == 4096 ? 0 : 1;
    });
    WaitUntilHeld(1);
    return child;
  }

 private:
  std::vector<pid_t> children_;
};

TEST_F(InterruptsTest, AReaderIsKilled) {
  for (int flags : {O_DIRECT, 0}) {
    for (int signal : {SIGKILL, SIGINT, SIGTERM}) {
      pid_t child = BlockedReader(flags);
      ::kill(child, signal);
      EXPECT_EQ(Ends(child, 2s), 128 + signal) << "flags " << flags;
      filesystem_.HoldReads(false);
      EXPECT_EQ(ReadFile("file"), std::string(8192, 'a'));
    }
  }
}

TEST_F(InterruptsTest, AReaderThatAHarmlessSignalHasMetIsKilledLater) {
  pid_t child = BlockedReader(O_DIRECT);
  ::kill(child, SIGURG);  // ignored by default; the kernel tells of the first signal only
  ::kill(child, SIGSTOP);
  ::usleep(300000);
  ::kill(child, SIGCONT);
  EXPECT_EQ(Ends(child, 300ms), -1);
  ::kill(child, SIGKILL);
  EXPECT_EQ(Ends(child, 2s), 128 + SIGKILL);
}

TEST_F(InterruptsTest, ASignalThatIsHandledDisturbsNoRead) {
  WriteFile("file", std::string(8192, 'a'));
  const std::string path = Path("file");
  filesystem_.HoldReads(true);
  pid_t child = InChild([&] {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    ::sigaction(SIGALRM, &action, nullptr);
    int file = ::open(path.c_str(), O_RDONLY | O_DIRECT);
    itimerval often{};
    often.it_interval.tv_usec = often.it_value.tv_usec = 20000;
    ::setitimer(ITIMER_REAL, &often, nullptr);
    void* buffer = nullptr;
    if (::posix_memalign(&buffer, 4096, 4096) != 0) return 2;
    return ::read(file, buffer, 4096) == 4096 ? 0 : 1;
  });
  WaitUntilHeld(1);
  EXPECT_EQ(Ends(child, 1s), -1);
  filesystem_.HoldReads(false);
  EXPECT_EQ(Ends(child, 5s), 0);
}

TEST_F(InterruptsTest, AProgramThatHandlesControlCIsLetGoWhenTheServerIsAway) {
  WriteFile("file", std::string(8192, 'a'));
  const std::string path = Path("file");
  filesystem_.HoldReads(true);
  pid_t child = InChild([&] {
    struct sigaction action {};
    action.sa_handler = [](int) { ::_exit(7); };
    ::sigaction(SIGINT, &action, nullptr);
    int file = ::open(path.c_str(), O_RDONLY | O_DIRECT);
    void* buffer = nullptr;
    if (::posix_memalign(&buffer, 4096, 4096) != 0) return 2;
    // TSan puts a handler off until the call has returned.
    if (::read(file, buffer, 4096) == -1 && errno == EINTR) return 7;
    return 1;
  });
  WaitUntilHeld(1);
  ::kill(child, SIGINT);
  EXPECT_EQ(Ends(child, 5s), 7);
}

TEST_F(InterruptsTest, AProcessEndsAlthoughItsClosesAreNotAnswered) {
  WriteFile("file", "x");
  const std::string path = Path("file");
  filesystem_.HoldFlushes(true);
  pid_t child = InChild([&] {
    int file = ::open(path.c_str(), O_RDONLY);
    return file >= 0 ? 3 : 1;
  });
  EXPECT_EQ(Ends(child, 3s), 3);
}

// The write goes on without its writer; whoever reads afterwards sees what it has left.
TEST_F(InterruptsTest, AKilledWriteIsCarriedOutAndSeen) {
  for (int flags : {O_DIRECT, 0}) {
    WriteFile("file", std::string(8192, 'a'));
    EXPECT_EQ(ReadFile("file"), std::string(8192, 'a'));
    const std::string path = Path("file");
    filesystem_.HoldWrites(true);
    pid_t child = InChild([&] {
      int file = ::open(path.c_str(), O_RDWR | flags);
      void* buffer = nullptr;
      if (::posix_memalign(&buffer, 4096, 4096) != 0) return 2;
      std::fill_n(static_cast<char*>(buffer), 4096, 'b');
      return ::write(file, buffer, 4096) == 4096 ? 0 : 1;
    });
    WaitUntilHeld(1);
    ::kill(child, SIGKILL);
    EXPECT_EQ(Ends(child, 2s), 128 + SIGKILL);
    EXPECT_EQ(ReadFile("file"), std::string(8192, 'a'));  // in the kernel's pages again
    filesystem_.HoldWrites(false);
    const std::string wanted = std::string(4096, 'b') + std::string(4096, 'a');
    for (int i = 0; i < 5000 && ReadFile("file") != wanted; ++i) ::usleep(1000);
    EXPECT_EQ(ReadFile("file"), wanted) << "flags " << flags;
  }
}

TEST_F(InterruptsTest, ALockThatComesForAKilledWaiterIsGivenBack) {
  WriteFile("file", "x");
  const std::string path = Path("file");
  int file = ::open(path.c_str(), O_RDWR);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  ASSERT_EQ(::fcntl(file, F_SETLK, &lock), 0);
  pid_t child = InChild([&] {
    int own = ::open(path.c_str(), O_RDWR);
    struct flock wanted {};
    wanted.l_type = F_WRLCK;
    return ::fcntl(own, F_SETLKW, &wanted) == 0 ? 0 : 1;
  });
  EXPECT_EQ(Ends(child, 300ms), -1);
  ::kill(child, SIGKILL);
  EXPECT_EQ(Ends(child, 2s), 128 + SIGKILL);
  ::close(file);
  file = ::open(path.c_str(), O_RDWR);
  EXPECT_EQ(::fcntl(file, F_SETLKW, &lock), 0);
  ::close(file);
}

// A page that is being read is locked, and the kernel waits for it before it forgets.
TEST_F(InterruptsTest, AnInodeThatCannotBeForgottenYetHoldsUpNoOther) {
  WriteFile("other", "x");
  const Fid other = filesystem_.FidOf("other");
  BlockedReader(0);
  std::thread blocked([this] { filesystem_.Forget(filesystem_.FidOf("file")); });
  ::usleep(200000);
  std::promise<void> forgotten;
  std::thread free([&] {
    filesystem_.Forget(other);
    forgotten.set_value();
  });
  EXPECT_EQ(forgotten.get_future().wait_for(5s), std::future_status::ready);
  filesystem_.HoldReads(false);
  blocked.join();
  free.join();
}

uint64_t OwnMemory() {  // resident, not of files
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("RssAnon:")) return std::stoull(line.substr(8)) << 10;
  }
  return 0;
}
uint64_t AddressSpace() {
  std::ifstream statm("/proc/self/statm");
  uint64_t pages = 0;
  statm >> pages;
  return pages * 4096;
}

TEST_F(InterruptsTest, AThousandBlockedWritersTakeTheMemoryOfTheirBytes) {
  constexpr int kWriters = 1000;
  rlimit files{};
  ::getrlimit(RLIMIT_NPROC, &files);
  if (files.rlim_cur < 2 * kWriters) GTEST_SKIP() << "NOT TESTED: at most " << files.rlim_cur << " processes";
  WriteFile("file", std::string(8192, 'a'));
  const std::string path = Path("file");
  filesystem_.SetMayCache(false);  // writes side by side
  int file = ::open(path.c_str(), O_RDWR);
  std::string buffer(4096, 'b');
  filesystem_.HoldWrites(true);
  const uint64_t memory = OwnMemory(), space = AddressSpace();
  std::vector<pid_t> writers;
  for (int i = 0; i < kWriters; ++i) {
    writers.push_back(InChild([&] { return ::pwrite(file, buffer.data(), 512, i % 8) == 512 ? 0 : 1; }));
  }
  WaitUntilHeld(kWriters);
  EXPECT_LT(OwnMemory() - memory, 64u << 20);
  EXPECT_LT(AddressSpace() - space, 128u << 20);
  filesystem_.HoldWrites(false);
  for (pid_t writer : writers) EXPECT_EQ(Ends(writer, 20s), 0);
  ::close(file);
}

}  // namespace
}  // namespace nacre::fuse
