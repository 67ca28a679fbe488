// The choice of path, with candidates of the test's own: they carry calls in process and can be told to fail.
#include "transport/select/select_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/transport/transport_fixture.h"
#include "transport/inproc/inproc_transport.h"
#include "transport/memory.h"

namespace nacre {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

// Names itself in front of what it carries.
class NamedPeer : public Peer {
 public:
  NamedPeer(std::shared_ptr<Peer> peer, std::string name, std::shared_ptr<PathMeters> meters,
            std::shared_ptr<const std::atomic<bool>> reaches_memory)
      : peer_(std::move(peer)),
        name_(std::move(name)),
        meter_(meters->Of(name_)),
        reaches_memory_(std::move(reaches_memory)) {}
  Task<StatusOr<std::string>> Call(CallRequest request, Duration timeout) override {
    if (!request.memory.empty() && !*reaches_memory_) return Refuse();
    meter_->Ended(request.kind, 0, 1us, OkStatus());
    return peer_->Call(std::move(request), timeout);
  }
  PathInfo path() const override { return {name_, ""}; }
  std::string address() const override { return peer_->address(); }
  void Close() override { peer_->Close(); }

 private:
  static Task<StatusOr<std::string>> Refuse() { co_return ErrnoError(ENOTSUP, "no room for keys just now"); }

  const std::shared_ptr<Peer> peer_;
  const std::string name_;
  const std::shared_ptr<PathMeter> meter_;
  const std::shared_ptr<const std::atomic<bool>> reaches_memory_;
};

class FakeCandidate : public PathCandidate {
 public:
  FakeCandidate(std::string name, Executor executor, std::shared_ptr<InprocNetwork> network)
      : name_(std::move(name)),
        inproc_(MakeInprocTransport(std::move(network), std::move(executor), RealClock())) {}

  std::string name() const override { return name_; }
  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size) override {
    if (!registers) return ErrnoError(ENOMEM, "no room for keys");
    return inproc_->Register(data, size);
  }
  StatusOr<std::unique_ptr<Listener>> Listen(CallHandler handler) override {
    if (!listens) return ErrnoError(ENODEV, "no device in this server");
    auto count = [this, handler = std::make_shared<CallHandler>(std::move(handler))](CallPtr call) {
      ++calls;
      return (*handler)(std::move(call));
    };
    return inproc_->Listen("inproc:" + name_, count);
  }
  Task<StatusOr<std::shared_ptr<Peer>>> Connect(std::string offer, Duration,
                                                std::shared_ptr<PathMeters> meters) override {
    ++tries;
    if (Status status = works(); !status.ok()) co_return status;
    CO_ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, inproc_->Connect(offer));
    co_return std::make_shared<NamedPeer>(std::move(peer), name_, std::move(meters), reaches_memory);
  }

  void SetWorks(Status works) {
    std::lock_guard lock(mutex_);
    works_ = std::move(works);
  }
  Status works() {
    std::lock_guard lock(mutex_);
    return works_;
  }

  bool registers = true;
  bool listens = true;
  const std::shared_ptr<std::atomic<bool>> reaches_memory = std::make_shared<std::atomic<bool>>(true);
  std::atomic<int> tries = 0;
  std::atomic<int> calls = 0;

 private:
  const std::string name_;
  const std::unique_ptr<Transport> inproc_;
  std::mutex mutex_;
  Status works_ = OkStatus();
};

Task<void> PutMark(CallPtr call) {
  const Bytes data(call->memory_size(), std::byte{0x77});
  const std::span<const std::byte> out = data;
  Status status = co_await call->Put(0, std::span(&out, 1));
  (void)co_await call->Reply(std::string(status.ok() ? "done" : status.message()));
}

class SelectTest : public TransportTest {
 protected:
  void SetUp() override {
    TransportTest::SetUp();
    network_ = MakeInprocNetwork();
    first_ = std::make_shared<FakeCandidate>("shm", executor(), network_);
    second_ = std::make_shared<FakeCandidate>("rdma", executor(), network_);
  }
  void TearDown() override {
    peer_.reset();
    select_listener_.reset();
    TransportTest::TearDown();
  }

  SelectOptions Options() {
    SelectOptions options;
    options.candidates = {first_, second_};
    return options;
  }

  void Serve(SelectOptions options, CallHandler handler) {
    transport_ = MakeSelectTransport(executor(), RealClock(), std::move(options));
    auto listener = transport_->Listen(where_, std::move(handler));
    ASSERT_TRUE(listener.ok()) << listener.status();
    select_listener_ = *std::move(listener);
    where_ = select_listener_->address();
  }
  void Serve() { Serve(Options(), Echo); }
  void StopServing() { select_listener_.reset(); }

  Peer& Use(SelectOptions options) {
    using_ = MakeSelectTransport(executor(), RealClock(), std::move(options));
    peer_ = *using_->Connect(where_);
    return *peer_;
  }

  std::shared_ptr<InprocNetwork> network_;
  std::shared_ptr<FakeCandidate> first_, second_;
  std::unique_ptr<Transport> transport_, using_;
  std::unique_ptr<Listener> select_listener_;
  std::shared_ptr<Peer> peer_;
  std::string where_ = "127.0.0.1:0";
};

TEST_P(SelectTest, TakesTheBestThatWorks) {
  Serve();
  Peer& peer = Use(Options());
  EXPECT_EQ(peer.path().path, "none");
  EXPECT_EQ(Call(peer, "hello").value(), "hello");
  EXPECT_EQ(peer.path().path, "shm");
  EXPECT_EQ(peer.path().reason, "");
  EXPECT_EQ(first_->calls, 1);
  EXPECT_EQ(second_->tries, 0);
  EXPECT_EQ(peer.address(), where_);
}

TEST_P(SelectTest, SaysWhyNotABetterOne) {
  Serve();
  first_->SetWorks(ErrnoError(ENOTSUP, "the server is on another host"));
  Peer& peer = Use(Options());
  ASSERT_TRUE(Call(peer, "x").ok());
  EXPECT_EQ(peer.path().path, "rdma");
  EXPECT_EQ(peer.path().reason, "no shm: the server is on another host");
  second_->SetWorks(ErrnoError(ENODEV, "no device here"));
  Peer& other = Use(Options());
  EXPECT_EQ(Call(other, "x").value(), "x");
  EXPECT_EQ(other.path().path, "tcp");
  EXPECT_EQ(other.path().reason, "no shm: the server is on another host; no rdma: no device here");
}

TEST_P(SelectTest, APlainServerIsReachedOverTcp) {
  Listen(Echo);
  where_ = address();
  Peer& peer = Use(Options());
  EXPECT_EQ(Call(peer, "x").value(), "x");
  EXPECT_EQ(peer.path().path, "tcp");
  EXPECT_EQ(peer.path().reason,
            "no shm: the server does not offer it; no rdma: the server does not offer it");
}

TEST_P(SelectTest, AServerOffersWhatItHas) {
  first_->listens = false;
  Serve();
  Peer& peer = Use(Options());
  EXPECT_EQ(Call(peer, "x").value(), "x");
  EXPECT_EQ(peer.path().path, "rdma");
}

TEST_P(SelectTest, OneNamedPathIsTheOnlyOne) {
  Serve();
  SelectOptions only = Options();
  only.candidates.pop_back();
  only.fall_back = false;
  {
    Peer& peer = Use(only);
    EXPECT_TRUE(Call(peer, "x").ok());
    EXPECT_EQ(peer.path().path, "shm");
  }
  first_->SetWorks(ErrnoError(ENOTSUP, "the server is on another host"));
  {
    Peer& peer = Use(only);
    Status status = Call(peer, "x").status();
    EXPECT_EQ(ToErrno(status), ENOTSUP) << status;
    EXPECT_FALSE(IsRetryable(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("no shm: the server is on another host"));
    EXPECT_EQ(peer.path().path, "none");
    EXPECT_THAT(peer.path().reason, HasSubstr("another host"));
  }
  first_->SetWorks(absl::UnavailableError("just starting"));
  {
    Peer& peer = Use(only);
    EXPECT_TRUE(IsRetryable(Call(peer, "x").status()));
    first_->SetWorks(OkStatus());
    EXPECT_TRUE(Call(peer, "x").ok());
  }
  first_->listens = false;
  auto listener = MakeSelectTransport(executor(), RealClock(), only)->Listen("127.0.0.1:0", Echo);
  EXPECT_EQ(ToErrno(listener.status()), ENOTSUP);
  EXPECT_THAT(std::string(listener.status().message()), HasSubstr("no device in this server"));
}

TEST_P(SelectTest, ChoosesAnewAfterALoss) {
  Serve();
  Peer& peer = Use(Options());
  ASSERT_TRUE(Call(peer, "x").ok());
  StopServing();
  EXPECT_EQ(Call(peer, "x").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Call(peer, "x").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(peer.path().path, "none");
  first_->listens = false;
  Serve();
  EXPECT_TRUE(Call(peer, "x").ok());
  EXPECT_EQ(peer.path().path, "rdma");
  StopServing();
  first_->listens = true;
  second_->listens = false;
  Serve();
  EXPECT_EQ(Call(peer, "x").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Call(peer, "x").ok());
  EXPECT_EQ(peer.path().path, "shm");
  const std::vector<PathStats> stats = peer.path().stats;  // both ways' from the beginning on
  ASSERT_EQ(stats.size(), 2u);
  EXPECT_EQ(stats[0].path, "shm");
  EXPECT_EQ(stats[0].other_calls, 3u);
  EXPECT_EQ(stats[1].path, "rdma");
  EXPECT_EQ(stats[1].other_calls, 2u);
}

// A device that goes from a running server is waited for, where nothing else may be used.
TEST_P(SelectTest, APathThatWasOfferedMayComeBack) {
  Serve();
  SelectOptions only = Options();
  only.candidates.pop_back();
  only.fall_back = false;
  Peer& peer = Use(only);
  ASSERT_TRUE(Call(peer, "x").ok());
  StopServing();
  first_->listens = false;
  Serve();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(IsRetryable(Call(peer, "x").status()));
  StopServing();
  first_->listens = true;
  Serve();
  EXPECT_TRUE(Eventually([&] { return Call(peer, "x").ok(); }));
}

TEST_P(SelectTest, LooksAgainForABetterOne) {
  Serve();
  first_->SetWorks(absl::UnavailableError("not yet"));
  second_->SetWorks(ErrnoError(ENODEV, "no device here"));
  SelectOptions options = Options();
  options.retry_interval = Duration::zero();
  Peer& peer = Use(options);
  ASSERT_TRUE(Call(peer, "x").ok());
  EXPECT_EQ(peer.path().path, "tcp");
  const int tries = first_->tries;
  ASSERT_TRUE(Call(peer, "x").ok());
  EXPECT_TRUE(Eventually([&] { return first_->tries > tries; }));
  first_->SetWorks(OkStatus());
  EXPECT_TRUE(Eventually([&] { return Call(peer, "x").ok() && peer.path().path == "shm"; }));
}

// A server on another machine stays there: whoever uses RDMA to it would greet it again and again for ever.
TEST_P(SelectTest, DoesNotLookAgainForWhatWasRefusedForGood) {
  Serve();
  first_->SetWorks(ErrnoError(ENOTSUP, "the server runs on another machine"));
  SelectOptions options = Options();
  options.retry_interval = Duration::zero();
  Peer& peer = Use(options);
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < 200ms) ASSERT_TRUE(Call(peer, "x").ok());
  EXPECT_EQ(peer.path().path, "rdma");
  EXPECT_EQ(first_->tries, 1);
}

TEST_P(SelectTest, MemoryGoesToTheChosenPath) {
  Serve(Options(), PutMark);
  Peer& peer = Use(Options());
  Bytes memory(100'000);
  auto region = using_->Register(memory.data(), memory.size()).value();
  ASSERT_TRUE(Call(peer, "", CallMemory::kPutTarget, {{region, 1, 99'998}}).ok());
  EXPECT_EQ(first_->calls, 1);
  EXPECT_EQ(memory.front(), std::byte{0});
  EXPECT_EQ(memory[1], std::byte{0x77});
  EXPECT_EQ(memory.back(), std::byte{0});
}

TEST_P(SelectTest, MemoryThatCannotBeRegisteredTakesTcp) {
  Serve(Options(), PutMark);
  Peer& peer = Use(Options());
  first_->registers = false;
  Bytes memory(1000);
  auto region = using_->Register(memory.data(), memory.size()).value();
  EXPECT_EQ(Call(peer, "", CallMemory::kPutTarget, {{region, 0, 1000}}).value(), "done");
  EXPECT_EQ(first_->calls, 0);
  EXPECT_EQ(memory, Bytes(1000, std::byte{0x77}));
  SelectOptions only = Options();
  only.fall_back = false;
  EXPECT_FALSE(MakeSelectTransport(executor(), RealClock(), only)->Register(memory.data(), 1).ok());
}

TEST_P(SelectTest, MemoryThatIsReachedAgainIsSaidToBe) {
  Serve(Options(), PutMark);
  Peer& peer = Use(Options());
  Bytes memory(1000);
  auto region = using_->Register(memory.data(), memory.size()).value();
  *first_->reaches_memory = false;
  EXPECT_EQ(Call(peer, "", CallMemory::kPutTarget, {{region, 0, 1000}}).value(), "done");
  EXPECT_EQ(first_->calls, 0);
  EXPECT_EQ(peer.PathFor(*region), "tcp");
  EXPECT_THAT(peer.path().reason, HasSubstr("to some memory over tcp: no room for keys just now"));
  *first_->reaches_memory = true;
  EXPECT_EQ(Call(peer, "", CallMemory::kPutTarget, {{region, 0, 1000}}).value(), "done");
  EXPECT_EQ(first_->calls, 1);
  EXPECT_EQ(peer.PathFor(*region), "shm");
}

TEST_P(SelectTest, SharedMemoryOutlivesItsMaker) {
  Serve(Options(), PutMark);
  Peer& peer = Use(Options());
  auto memory = SharedMemory::Create("nacre-test", 8192).value();
  std::byte* const data = memory->data();
  auto region = using_->RegisterShared(std::move(memory)).value();
  ASSERT_TRUE(Call(peer, "", CallMemory::kPutTarget, {{region, 0, 8192}}).ok());
  EXPECT_EQ(data[8191], std::byte{0x77});
}

TEST_P(SelectTest, CloseEndsIt) {
  Serve();
  Peer& peer = Use(Options());
  ASSERT_TRUE(Call(peer, "x").ok());
  peer.Close();
  EXPECT_EQ(Call(peer, "x").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(using_->Connect("nonsense").status().code(), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(All, SelectTest, ::testing::ValuesIn(TcpKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre
