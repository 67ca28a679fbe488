// Memory is shown to processes that could read it by themselves, and to no others.
#include "transport/shm/peer_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "common/metrics.h"
#include "tests/transport/shm/asking.h"
#include "tests/transport/shm/raw_server.h"
#include "tests/transport/transport_fixture.h"
#include "transport/shared_memory.h"

namespace nacre::shm {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kAll = ~uint64_t{0}, kTrace = uint64_t{1} << CAP_SYS_PTRACE, kSome = 0x1000006;
constexpr char kMap[] = "         0          0 4294967295\n";

TEST(PeerProcessTest, WhatProcSaysIsParsed) {
  auto traits = ProcessTraits::Parse("Name:\tx\nTgid:\t7\nNStgid:\t7\nCapPrm:\t000001ffffffffff\n", kMap);
  ASSERT_TRUE(traits.ok()) << traits.status();
  EXPECT_TRUE(traits->same_pid_namespace);
  EXPECT_EQ(traits->capabilities, 0x1ffffffffffu);
  EXPECT_EQ(traits->users, kMap);
  traits = ProcessTraits::Parse("NStgid:\t4711\t1\nCapPrm:\t00000000a80425fb\n", kMap);
  ASSERT_TRUE(traits.ok()) << traits.status();
  EXPECT_FALSE(traits->same_pid_namespace);
  EXPECT_EQ(traits->capabilities, 0xa80425fbu);
}

// Also what a process says of itself by its name.
TEST(PeerProcessTest, WhatIsMissingOrNonsenseIsRefused) {
  for (const char* status : {"", "Name:\tx\n", "NStgid:\t7\n", "CapPrm:\t1\n", "NStgid:\t\nCapPrm:\t1\n",
                             "NStgid:\t7\nCapPrm:\tx\n", "Name:\tNStgid:\t7\nNStgid:\t7\t1\nCapPrm:\t1\n",
                             "Name:\tCapPrm:\tff\nNStgid:\t7\n"}) {
    EXPECT_EQ(ToErrno(ProcessTraits::Parse(status, kMap).status()), EACCES) << status;
  }
}

TEST(PeerProcessTest, RootAndTheSameUserAreLetInAndNobodyIsNot) {
  EXPECT_EQ(CheckUserId(0, 1000, 65534), OkStatus());
  EXPECT_EQ(CheckUserId(1000, 1000, 65534), OkStatus());
  EXPECT_THAT(std::string(CheckUserId(1001, 1000, 65534).message()), HasSubstr("neither root nor 1000"));
  EXPECT_THAT(std::string(CheckUserId(65534, 65534, 65534).message()), HasSubstr("have no number here"));
}

TEST(PeerProcessTest, NamespacesHaveToBeTheSame) {
  const ProcessTraits own{true, kAll, kMap};
  EXPECT_EQ(CheckNamespaces({true, kSome, kMap}, own), OkStatus());
  EXPECT_THAT(std::string(CheckNamespaces({false, kAll, kMap}, own).message()), HasSubstr("pid namespace"));
  EXPECT_THAT(std::string(CheckNamespaces({true, kAll, "0 100000 65536\n"}, own).message()),
              HasSubstr("user namespace"));
  EXPECT_FALSE(CheckNamespaces({true, kAll, kMap}, {false, kAll, kMap}).ok());  // another's /proc
}

TEST(PeerProcessTest, CapabilitiesHaveToBeThoseThatTracingTakes) {
  EXPECT_EQ(CheckCapabilities({true, kTrace, kMap}, {true, kAll, kMap}, false), OkStatus());
  EXPECT_EQ(CheckCapabilities({true, kSome, kMap}, {true, kSome, kMap}, true), OkStatus());
  EXPECT_EQ(CheckCapabilities({true, 0, kMap}, {true, 0, kMap}, true), OkStatus());
  EXPECT_FALSE(CheckCapabilities({true, 0xa80425fb, kMap}, {true, kSome, kMap}, true).ok());  // Docker's
  EXPECT_FALSE(CheckCapabilities({true, kSome, kMap}, {true, 0, kMap}, false).ok());
}

// The number of a process that has ended may be another's.
TEST(PeerProcessTest, AProcessThatHasEndedIsNobody) {
  const std::string where = "unix:@nacre_peer_process." + std::to_string(::getpid());
  RawServer listener(where);
  int held[2];
  ASSERT_EQ(::pipe(held), 0);
  const pid_t child = ::fork();
  if (child == 0) {  // nothing but system calls
    ::close(held[1]);
    sockaddr_un at{AF_UNIX};
    std::memcpy(at.sun_path + 1, where.data() + 6, where.size() - 6);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + where.size() - 6);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&at), size) != 0) ::_exit(4);
    if (::fork() != 0) ::_exit(0);
    char end;
    ::_exit(static_cast<int>(::read(held[0], &end, 1)));  // keeps the socket until the test ends
  }
  ::close(held[0]);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  const int fd = listener.Accept();
  ASSERT_GE(fd, 0);
  EXPECT_EQ(ToErrno(CheckUser(fd)), EACCES) << CheckUser(fd);
  EXPECT_EQ(ToErrno(CheckMayTrace(fd)), EACCES);
  ::close(fd);
  ::close(held[1]);
}

// --- processes that a server is asked to show its memory ---

bool DropCapabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  return ::syscall(SYS_capset, &header, none) == 0;
}

class ShownToTest : public TransportTest {
 protected:
  void SetUp() override {
    TransportTest::SetUp();
    auto region = server().RegisterShared(*SharedMemory::Create("pool", 4096));
    ASSERT_TRUE(region.ok()) << region.status();
    region_ = *region;
    Listen(Echo);
  }
  void TearDown() override {
    region_.reset();
    TransportTest::TearDown();
  }
  static int64_t Refused() { return GetCounter("transport.shm.server.connections_refused").Get(); }

  std::shared_ptr<MemoryRegion> region_;
};

TEST_P(ShownToTest, AProcessLikeThisOne) {
  EXPECT_EQ(AskAs(address(), [] { return true; }), Outcome::kShown);
}

// As a service has one that may not write everywhere: it sees the same processes with the same rights.
TEST_P(ShownToTest, AProcessInAnotherMountNamespace) {
  const Outcome outcome = AskAs(address(), [] { return ::unshare(CLONE_NEWNS) == 0; });
  if (outcome == Outcome::kNotPermitted) GTEST_SKIP() << "no mount namespaces for this user";
  EXPECT_EQ(outcome, Outcome::kShown);
}

TEST_P(ShownToTest, NoProcessInAnotherPidNamespace) {
  const int64_t refused = Refused();
  const Outcome outcome = AskAs(
      address(), [] { return ::unshare(CLONE_NEWPID) == 0; }, true);
  if (outcome == Outcome::kNotPermitted) GTEST_SKIP() << "no pid namespaces for this user";
  EXPECT_EQ(outcome, Outcome::kRefused);
  EXPECT_EQ(Refused(), refused + 1);
}

TEST_P(ShownToTest, NoProcessInAnotherUserNamespace) {
  const Outcome outcome = AskAs(address(), [] { return ::unshare(CLONE_NEWUSER) == 0; });
  if (outcome == Outcome::kNotPermitted) GTEST_SKIP() << "no user namespaces for this user";
  EXPECT_EQ(outcome, Outcome::kRefused);
}

TEST_P(ShownToTest, NoRootWithoutTheCapabilitiesOfThisOne) {
  if (::geteuid() != 0) GTEST_SKIP() << "this user has no capabilities that another could lack";
  EXPECT_EQ(AskAs(address(), DropCapabilities), Outcome::kRefused);
}

INSTANTIATE_TEST_SUITE_P(All, ShownToTest, ::testing::ValuesIn(ShmKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre::shm
