// Memory that a call has named is the caller's own again when the call has ended, whatever becomes of the
// server: processes that are killed, or stopped and woken again, while they write into it. Over what this
// machine has; tests/rdma/transport.sh runs it over a real RDMA device.
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <future>
#include <thread>

#include "common/random.h"
#include "common/runtime.h"
#include "transport/data_plane.h"
#include "transport/shared_memory.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_transport.h"

extern char** environ;

namespace nacre {
namespace {

constexpr char kAnywhere[] = "127.0.0.1:0";
constexpr char kServe[] = "--serve";
constexpr size_t kEdge = 4096, kSize = 1 << 20;
constexpr std::byte kCanary{0xcc}, kServers{0xbb}, kReused{0x11};

Task<void> WriteOnAndOn(std::shared_ptr<MemoryRegion> own, std::shared_ptr<IncomingCall> call) {
  const std::span<const std::byte> out(own->data(), call->memory_size());
  Status status;
  while (status.ok()) status = co_await call->Put(0, std::span(&out, 1));
  (void)co_await call->Reply(std::string());
}

// In the server's process: says where it listens, and serves until it is killed.
Status Serve(const std::string& path) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Runtime runtime(1);
  ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                   MakeDataPlane(runtime.executor(), RealClock(), path, kAnywhere));
  ASSIGN_OR_RETURN(std::shared_ptr<SharedMemory> memory, SharedMemory::Create("killed-server", kSize));
  std::fill_n(memory->data(), kSize, kServers);
  ASSIGN_OR_RETURN(std::shared_ptr<MemoryRegion> own, transport->RegisterShared(std::move(memory)));
  ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener,
                   transport->Listen(kAnywhere, [own](std::shared_ptr<IncomingCall> call) {
                     return WriteOnAndOn(own, std::move(call));
                   }));
  std::printf("%s\n", listener->address().c_str());
  std::fflush(stdout);
  for (;;) ::pause();
}

class ServerProcess {
 public:
  explicit ServerProcess(const std::string& path) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::string program = "/proc/self/exe", serve = kServe, which = path;
    char* arguments[] = {program.data(), serve.data(), which.data(), nullptr};
    EXPECT_EQ(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ), 0);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    char line[256] = {};
    const ssize_t size = ::read(ends[0], line, sizeof line - 1);  // 0: it has ended
    ::close(ends[0]);
    address_.assign(line, size > 0 ? static_cast<size_t>(size - 1) : 0);
  }
  ~ServerProcess() {
    Signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const std::string& address() const { return address_; }
  void Signal(int signal) const { ::kill(pid_, signal); }

 private:
  pid_t pid_ = -1;
  std::string address_;
};

int Rounds() {
  const char* rounds = std::getenv("NACRE_KILL_ROUNDS");
  return rounds == nullptr ? 5 : std::atoi(rounds);
}

class KilledServerTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto transport = MakeDataPlane(runtime_.executor(), RealClock(), GetParam());
    ASSERT_TRUE(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
    region_ = transport_->Register(memory_.data(), memory_.size()).value();
  }

  // A call that the server answers by writing on and on. It must be under way when this returns.
  std::future<Status> Begin(const std::string& address, Duration timeout) {
    std::fill(memory_.begin(), memory_.end(), kCanary);
    peer_ = transport_->Connect(address).value();
    const StatusOr<std::string> connected = runtime_.Run(peer_->Call(CallRequest(), 20s));
    EXPECT_TRUE(connected.ok()) << connected.status();
    CallRequest request;
    request.kind = CallMemory::kPutTarget;
    request.memory.push_back({region_, kEdge, kSize});
    auto ended = std::make_shared<std::promise<Status>>();
    Spawn(runtime_.executor(), peer_->Call(std::move(request), timeout),
          [ended](const StatusOr<std::string>& reply) { ended->set_value(reply.status()); });
    const auto give_up = std::chrono::steady_clock::now() + 20s;
    while (At(kEdge) != kServers && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
    EXPECT_EQ(At(kEdge), kServers) << "nothing came from " << address;
    EXPECT_EQ(peer_->path().path, GetParam()) << peer_->path().reason;
    return ended->get_future();
  }

  void Reuse() { std::fill_n(memory_.data() + kEdge, kSize, kReused); }

  // For a while, and to the end of what a server that lives could still do.
  void ExpectUntouched() {
    const auto end = std::chrono::steady_clock::now() + 150ms;
    do {
      for (size_t i = 0; i < memory_.size(); ++i) {
        const bool inside = i >= kEdge && i < kEdge + kSize;
        ASSERT_EQ(At(i), inside ? kReused : kCanary) << "at " << i;
      }
    } while (std::chrono::steady_clock::now() < end);
  }

  // Somewhere in a write, or between two.
  void WaitAMoment() { std::this_thread::sleep_for(std::chrono::microseconds(random_.Below(3000))); }

 private:
  std::byte At(size_t place) { return std::atomic_ref(memory_[place]).load(std::memory_order_relaxed); }

  Runtime runtime_{1};
  std::vector<std::byte> memory_ = std::vector<std::byte>(kEdge + kSize + kEdge);
  SeededRandom random_{1};
  std::unique_ptr<Transport> transport_;
  std::shared_ptr<MemoryRegion> region_;
  std::shared_ptr<Peer> peer_;
};

TEST_P(KilledServerTest, AKilledServerWritesNoMore) {
  for (int round = 0; round < Rounds(); ++round) {
    const ServerProcess server(GetParam());
    std::future<Status> ended = Begin(server.address(), 60s);
    WaitAMoment();
    server.Signal(SIGKILL);
    EXPECT_EQ(ended.get().code(), absl::StatusCode::kUnavailable);
    Reuse();
    ExpectUntouched();
    ASSERT_FALSE(HasFailure()) << "in round " << round;
  }
}

// Its call times out meanwhile. It goes on where it was stopped, and finds nothing to write into.
TEST_P(KilledServerTest, AServerThatWakesUpAgainWritesNoMore) {
  for (int round = 0; round < Rounds(); ++round) {
    const ServerProcess server(GetParam());
    std::future<Status> ended = Begin(server.address(), 500ms);
    WaitAMoment();
    server.Signal(SIGSTOP);
    EXPECT_EQ(ended.get().code(), absl::StatusCode::kDeadlineExceeded);
    Reuse();
    server.Signal(SIGCONT);
    ExpectUntouched();
    ASSERT_FALSE(HasFailure()) << "in round " << round;
  }
}

std::vector<std::string> Paths() {
  std::vector<std::string> paths = {"tcp", "shm"};
  if (LookForRdma().ok()) paths.push_back("rdma");
  return paths;
}

INSTANTIATE_TEST_SUITE_P(Over, KilledServerTest, ::testing::ValuesIn(Paths()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace nacre

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == nacre::kServe) {
    const nacre::Status status = nacre::Serve(argv[2]);
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
