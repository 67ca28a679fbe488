#include "fuse/caller_state.h"

#include <absl/strings/str_format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace nacre::fuse {
namespace {

constexpr uint64_t Bit(int signal) { return uint64_t{1} << (signal - 1); }

std::string StatusText(uint64_t own, uint64_t shared, uint64_t blocked, uint64_t ignored, uint64_t caught) {
  return absl::StrFormat(
      "Name:\tcat\nThreads:\t1\nSigQ:\t0/9\nSigPnd:\t%016x\nShdPnd:\t%016x\nSigBlk:\t%016x\nSigIgn:\t%016x\n"
      "SigCgt:\t%016x\nCapInh:\t0\n",
      own, shared, blocked, ignored, caught);
}

std::string StatText(uint64_t flags) { return absl::StrFormat("12 (a ) b) D 1 2 3 4 -1 %d 5 6", flags); }

CallerState Of(uint64_t own, uint64_t shared, uint64_t blocked, uint64_t ignored, uint64_t caught) {
  return StateOfCaller(StatusText(own, shared, blocked, ignored, caught), StatText(0x400000));
}

TEST(CallerState, ASignalThatEndsTheProgramKillsIt) {
  EXPECT_EQ(Of(Bit(SIGKILL), 0, 0, 0, 0), CallerState::kKilled);
  EXPECT_EQ(Of(0, Bit(SIGKILL), 0, 0, 0), CallerState::kKilled);
  EXPECT_EQ(Of(0, Bit(SIGINT), 0, 0, 0), CallerState::kKilled);
  EXPECT_EQ(Of(Bit(SIGSEGV), 0, 0, 0, 0), CallerState::kKilled);
}

TEST(CallerState, ASignalThatTheProgramHandlesDoesNot) {
  EXPECT_EQ(Of(0, 0, 0, 0, 0), CallerState::kGoesOn);
  EXPECT_EQ(Of(Bit(SIGALRM), 0, 0, 0, Bit(SIGALRM)), CallerState::kGoesOn);
  EXPECT_EQ(Of(0, Bit(SIGCHLD) | Bit(SIGURG) | Bit(SIGWINCH), 0, 0, 0), CallerState::kGoesOn);
  EXPECT_EQ(Of(0, Bit(SIGINT), 0, Bit(SIGINT), 0), CallerState::kGoesOn);
  EXPECT_EQ(Of(0, Bit(SIGINT), Bit(SIGINT), 0, 0), CallerState::kGoesOn);
  EXPECT_EQ(Of(0, Bit(SIGINT), 0, 0, Bit(SIGINT)), CallerState::kAskedTo);
  EXPECT_EQ(Of(0, Bit(SIGTERM), Bit(SIGTERM), 0, Bit(SIGTERM)), CallerState::kGoesOn);
}

TEST(CallerState, AProcessAtItsEndIsExiting) {
  EXPECT_EQ(StateOfCaller(StatusText(0, 0, 0, 0, 0), StatText(0x400104)), CallerState::kExiting);
}

TEST(CallerState, WhoIsNotInProcIsUnseen) {
  EXPECT_EQ(StateOfCaller(0), CallerState::kUnseen);
  EXPECT_EQ(StateOfCaller("", ""), CallerState::kUnseen);
  EXPECT_EQ(StateOfCaller(static_cast<uint32_t>(::getpid())), CallerState::kGoesOn);
}

TEST(CallerState, TextOfAnotherFormIsNoSignal) {
  EXPECT_EQ(StateOfCaller("Name:\tx\nSigPnd:\tzz\n", "12 (x"), CallerState::kGoesOn);
  EXPECT_EQ(StateOfCaller("SigPnd:\t", ")"), CallerState::kGoesOn);
}

}  // namespace
}  // namespace nacre::fuse
