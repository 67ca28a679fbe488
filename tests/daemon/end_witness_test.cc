// The process that outlives another one to tell of its end.
#include "daemon/end_witness.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>

namespace nacre {
namespace {

class EndWitnessTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::pipe(pipe_.data()), 0); }
  void TearDown() override {
    if (process_ > 0) End(SIGKILL);
    ::close(pipe_[0]);
  }

  // A process with a witness, which does `work` and then waits.
  void Begin(const std::function<void(EndWitness&)>& work) {
    process_ = ::fork();
    ASSERT_GE(process_, 0);
    if (process_ == 0) {
      ::close(pipe_[0]);
      auto witness =
          EndWitness::Start([this](uint64_t what) { (void)!::write(pipe_[1], &what, sizeof what); });
      if (!witness.ok()) ::_exit(1);
      work(*witness);
      while (true) ::pause();
    }
    ::close(pipe_[1]);
  }
  void End(int signal) {
    ::kill(process_, signal);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
  }
  bool IsSilent(int milliseconds) const {
    pollfd said{pipe_[0], POLLIN, 0};
    return ::poll(&said, 1, milliseconds) == 0;
  }
  // Waits for the witness's word; 0: it has gone without one.
  uint64_t Said() const {
    uint64_t what = 0;
    return ::read(pipe_[0], &what, sizeof what) == sizeof what ? what : 0;
  }

  std::array<int, 2> pipe_{-1, -1};
  pid_t process_ = -1;
};

TEST_F(EndWitnessTest, TellsWhatItWasToldLastWhenTheProcessIsKilled) {
  Begin([](EndWitness& witness) {
    witness.Set(5);
    witness.Set(6);
  });
  EXPECT_TRUE(IsSilent(200));
  ::kill(process_, SIGSTOP);
  EXPECT_TRUE(IsSilent(200)) << "a process that stands still may go on";
  End(SIGKILL);
  EXPECT_EQ(Said(), 6u);
}

TEST_F(EndWitnessTest, TellsOfAProcessThatEndsByItself) {
  Begin([](EndWitness& witness) {
    witness.Set(7);
    ::_exit(0);
  });
  EXPECT_EQ(Said(), 7u);
}

TEST_F(EndWitnessTest, SaysNothingOfAProcessThatNeverServed) {
  Begin([](EndWitness&) { ::_exit(0); });
  EXPECT_EQ(Said(), 0u);
}

// As systemd ends a unit: each of its processes gets the signal.
TEST_F(EndWitnessTest, OutlivesASignalToTheWholeGroup) {
  Begin([](EndWitness& witness) {
    ::setpgid(0, 0);
    witness.Set(8);
  });
  EXPECT_TRUE(IsSilent(200));
  ::kill(-process_, SIGTERM);
  EXPECT_EQ(Said(), 8u);
}

}  // namespace
}  // namespace nacre
