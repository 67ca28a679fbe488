#include "tests/transport/transport_fixture.h"

#include <absl/strings/str_format.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/transport/verbs/emulated_dma_bufs.h"
#include "tests/transport/verbs/fake_rdma.h"
#include "transport/inproc/inproc_transport.h"
#include "transport/select/select_transport.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/verbs/rdma_candidate.h"
#include "transport/verbs/verbs_transport.h"

namespace nacre {
namespace {

class InprocSetup : public TransportSetup {
 public:
  std::unique_ptr<Transport> Make(Executor executor) override {
    return MakeInprocTransport(network_, std::move(executor), RealClock());
  }
  std::string ListenAddress() override { return "inproc:oss.1"; }

 private:
  std::shared_ptr<InprocNetwork> network_ = MakeInprocNetwork();
};

class TcpSetup : public TransportSetup {
 public:
  std::unique_ptr<Transport> Make(Executor executor) override {
    return MakeTcpTransport(std::move(executor), RealClock());
  }
  std::string ListenAddress() override { return "127.0.0.1:0"; }
};

class UnixSetup : public TransportSetup {
 public:
  UnixSetup() { EXPECT_NE(::mkdtemp(directory_.data()), nullptr); }
  ~UnixSetup() override { EXPECT_EQ(::rmdir(directory_.c_str()), 0) << directory_; }
  std::unique_ptr<Transport> Make(Executor executor) override {
    return MakeTcpTransport(std::move(executor), RealClock());
  }
  std::string ListenAddress() override { return "unix:" + directory_ + "/socket"; }

 private:
  std::string directory_ = ::testing::TempDir() + "nacre_transport.XXXXXX";
};

class ShmSetup : public TransportSetup {
 public:
  std::unique_ptr<Transport> Make(Executor executor) override {
    return MakeShmTransport(std::move(executor), RealClock());
  }
  std::string ListenAddress() override {
    return absl::StrFormat("unix:@nacre_transport_test.%d", ::getpid());
  }
};

// The best one, which is shm here.
class SelectSetup : public TransportSetup {
 public:
  std::unique_ptr<Transport> Make(Executor executor) override {
    SelectOptions options;
    options.candidates.push_back(MakeShmCandidate(executor, RealClock()));
    return MakeSelectTransport(std::move(executor), RealClock(), std::move(options));
  }
  std::string ListenAddress() override { return "127.0.0.1:0"; }
};

// One connection for everything, and one call at a time.
class NarrowTcpSetup : public TransportSetup {
 public:
  std::unique_ptr<Transport> Make(Executor executor) override {
    TcpOptions options;
    options.connections = 1;
    options.calls_per_connection = 1;
    return MakeTcpTransport(std::move(executor), RealClock(), options);
  }
  std::string ListenAddress() override { return "127.0.0.1:0"; }
};

class VerbsSetup : public TransportSetup {
 public:
  std::unique_ptr<Transport> Make(Executor executor) override {
    return MakeVerbsTransport(std::move(executor), RealClock());
  }
  std::string ListenAddress() override { return "127.0.0.1:0"; }
};

// The machine's own device.
class RealVerbsSetup : public VerbsSetup {
 private:
  const verbs::EmulatedDmaBufs dma_bufs_;
};

class FakeVerbsSetup : public VerbsSetup {
 private:
  const verbs::FakeRdma device_;
};

class FakeVerbsWithoutWindowsSetup : public VerbsSetup {
 private:
  const verbs::FakeRdma device_{{.windows = false, .last_receive_events = false}};
};

class FakeVerbsRailsSetup : public VerbsSetup {
 private:
  const verbs::FakeRdma device_{{.devices = 2}};
};

// RDMA as what the choice of path comes to.
class RdmaPathSetup : public TransportSetup {
 public:
  std::unique_ptr<Transport> Make(Executor executor) override {
    SelectOptions options;
    options.candidates.push_back(MakeRdmaCandidate(executor, RealClock(), {}));
    options.fall_back = false;
    return MakeSelectTransport(std::move(executor), RealClock(), std::move(options));
  }
  std::string ListenAddress() override { return "127.0.0.1:0"; }
};

class RealRdmaPathSetup : public RdmaPathSetup {
 private:
  const verbs::EmulatedDmaBufs dma_bufs_;
};

class FakeRdmaPathSetup : public RdmaPathSetup {
 private:
  const verbs::FakeRdma device_;
};

template <typename Setup>
std::unique_ptr<TransportSetup> MakeSetup() {
  return std::make_unique<Setup>();
}

}  // namespace

std::vector<TransportKind> AllKinds() {
  std::vector<TransportKind> kinds = {
      {"Inproc", MakeSetup<InprocSetup>, 1},
      {"InprocThreads", MakeSetup<InprocSetup>, 3},
      {"Tcp", MakeSetup<TcpSetup>, 1},
      {"TcpThreads", MakeSetup<TcpSetup>, 3},
      {"TcpNarrow", MakeSetup<NarrowTcpSetup>, 3},
      {"Unix", MakeSetup<UnixSetup>, 1},
      {"UnixThreads", MakeSetup<UnixSetup>, 3},
      {"Shm", MakeSetup<ShmSetup>, 1},
      {"ShmThreads", MakeSetup<ShmSetup>, 3},
      {"SelectShm", MakeSetup<SelectSetup>, 1},
      {"SelectShmThreads", MakeSetup<SelectSetup>, 3},
  };
  for (TransportKind& kind : VerbsKinds()) kinds.push_back(std::move(kind));
  kinds.push_back({"FakeVerbsRails", MakeSetup<FakeVerbsRailsSetup>, 3, false});
  kinds.push_back({"FakeVerbsPath", MakeSetup<FakeRdmaPathSetup>, 3, false});
  if (LookForRdma().ok()) kinds.push_back({"VerbsPath", MakeSetup<RealRdmaPathSetup>, 3, false});
  return kinds;
}

std::vector<TransportKind> VerbsKinds() {
  std::vector<TransportKind> kinds = FakeVerbsKinds();
  if (!LookForRdma().ok()) return kinds;
  kinds.push_back({"Verbs", MakeSetup<RealVerbsSetup>, 1, false});
  kinds.push_back({"VerbsThreads", MakeSetup<RealVerbsSetup>, 3, false});
  return kinds;
}

std::vector<TransportKind> FakeVerbsKinds() {
  return {
      {"FakeVerbs", MakeSetup<FakeVerbsSetup>, 1, false},
      {"FakeVerbsThreads", MakeSetup<FakeVerbsSetup>, 3, false},
      {"FakeVerbsWithoutWindows", MakeSetup<FakeVerbsWithoutWindowsSetup>, 3, false},
  };
}

std::vector<TransportKind> TcpKinds() {
  return {
      {"Tcp", MakeSetup<TcpSetup>, 1},
      {"TcpThreads", MakeSetup<TcpSetup>, 3},
  };
}

std::vector<TransportKind> ShmKinds() {
  return {
      {"Shm", MakeSetup<ShmSetup>, 1},
      {"ShmThreads", MakeSetup<ShmSetup>, 3},
  };
}

void TransportTest::SetUp() {
  setup_ = GetParam().make();
  client_ = setup_->Make(executor());
  server_ = setup_->Make(executor());
  address_ = setup_->ListenAddress();
  work_.emplace(asio::make_work_guard(context_));
  for (int i = 0; i < GetParam().threads; ++i) threads_.emplace_back([this] { context_.run(); });
}

void TransportTest::TearDown() {
  listener_.reset();
  client_.reset();
  server_.reset();
  work_.reset();
  for (std::thread& thread : threads_) thread.join();
  setup_.reset();
}

void TransportTest::Listen(Handler handler) {
  StatusOr<std::unique_ptr<Listener>> listener = server_->Listen(address_, std::move(handler));
  ASSERT_TRUE(listener.ok()) << listener.status();
  listener_ = *std::move(listener);
  address_ = listener_->address();
}

std::shared_ptr<Peer> TransportTest::Connect() {
  StatusOr<std::shared_ptr<Peer>> peer = client_->Connect(address_);
  EXPECT_TRUE(peer.ok()) << peer.status();
  return peer.ok() ? *peer : nullptr;
}

StatusOr<std::string> TransportTest::Call(Peer& peer, std::string body, CallMemory kind,
                                          std::vector<MemorySpan> memory, Duration timeout) {
  CallRequest request{std::move(body), kind, std::move(memory)};
  return Run(peer.Call(std::move(request), timeout));
}

std::shared_ptr<MemoryRegion> TransportTest::Register(std::vector<std::byte>& memory) {
  StatusOr<std::shared_ptr<MemoryRegion>> region = client_->Register(memory.data(), memory.size());
  EXPECT_TRUE(region.ok()) << region.status();
  return region.ok() ? *region : nullptr;
}

std::vector<MemorySpan> TransportTest::Whole(std::vector<std::byte>& memory) {
  return {{Register(memory), 0, memory.size()}};
}

Task<void> Echo(CallPtr call) {
  std::string body = call->body();
  (void)co_await call->Reply(std::move(body));
}

std::vector<std::byte> RandomBytes(size_t size, uint64_t seed) {
  SeededRandom random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Next());
  return bytes;
}

bool Eventually(const std::function<bool()>& condition) {
  Duration deadline = RealClock().Now() + 10s;
  while (RealClock().Now() < deadline) {
    if (condition()) return true;
    std::this_thread::yield();
  }
  return condition();
}

}  // namespace nacre
