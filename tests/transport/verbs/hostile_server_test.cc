// A server's use of the keys that a call gave it: where the device has memory windows, it reaches only the
// memory that the call was for, and only while the call lasts.
#include <gtest/gtest.h>

#include <functional>

#include "tests/transport/transport_fixture.h"
#include "tests/transport/verbs/raw_link.h"
#include "transport/tcp/tcp_listener.h"
#include "transport/verbs/rail_set.h"

namespace nacre::verbs {
namespace {

using Bytes = std::vector<std::byte>;

class HostileServerTest : public TransportTest {
 protected:
  static constexpr uint64_t kSize = 2 * kMaxWithReply;  // so that calls give keys

  void SetUp() override {
    TransportTest::SetUp();
    rails_ = RailSet::Make(executor(), RealClock(), {});
    TcpOptions options;
    options.attach = [this](AttachRequest request) { return Accept(this, std::move(request)); };
    StatusOr<std::unique_ptr<Listener>> listener =
        MakeTcpListener(executor(), RealClock(), Complete(std::move(options)), "127.0.0.1:0", Echo);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    auto rail = rails_->Choose(std::nullopt, 0);
    ASSERT_TRUE(rail.ok()) << rail.status();
    windows_ = (*rail)->domain()->windows();
    soft_roce_ = (*rail)->domain()->limits().vendor_id == 0xffffff;
    memory_.assign(3 * kSize, std::byte{0xaa});
    own_.assign(2 * kSize, std::byte{0xbb});
    own_region_ = *rails_->regions()->Register(own_.data(), own_.size());
  }

  void TearDown() override {
    Detach();
    listener_.reset();
    own_region_.reset();
    if (rails_ != nullptr) rails_->Stop();
    rails_.reset();
    TransportTest::TearDown();
  }

  void Detach() {
    peer_.reset();
    if (link_ != nullptr) link_->Shutdown(absl::CancelledError("the test is done"));
    link_ = nullptr;
  }

  static Task<StatusOr<Attached>> Accept(HostileServerTest* test, AttachRequest request) {
    CO_ASSIGN_OR_RETURN(const Endpoint remote, ParseEndpoint(request.body));
    CO_ASSIGN_OR_RETURN(std::shared_ptr<Rail> rail, test->rails_->Choose(std::nullopt, 0));
    auto link = std::make_shared<RawLink>(std::move(rail), test->executor(), request.close, 8);
    CO_RETURN_IF_ERROR(link->Open());
    CO_RETURN_IF_ERROR(link->Join(remote));
    test->attached_.Set(link);
    Attached attached{EncodeEndpoint(link->local()), nullptr};
    co_return attached;
  }

  // The client's call for the middle part of its memory; the server's part is up to the test.
  using Outcome = std::future<StatusOr<std::string>>;
  Outcome StartCall(CallMemory kind, uint64_t size = kSize) {
    auto peer = client().Connect(listener_->address());
    EXPECT_TRUE(peer.ok());
    peer_ = *peer;
    attached_ = OneShot<std::shared_ptr<RawLink>>();
    region_ = Register(memory_);
    auto promise = std::make_shared<std::promise<StatusOr<std::string>>>();
    Spawn(
        executor(),
        [](std::shared_ptr<Peer> peer, CallRequest request) -> Task<StatusOr<std::string>> {
          co_return co_await peer->Call(std::move(request), 20s);
        }(peer_, CallRequest{"call", kind, {{region_, kSize, size}}}),
        [promise](StatusOr<std::string> result) { promise->set_value(std::move(result)); });
    Outcome outcome = promise->get_future();
    link_ = Run(attached_);
    auto [header, message] = Run(link_->message);
    call_id_ = header.call_id;
    StatusOr<CallMessage> call = ParseCall(message);
    EXPECT_TRUE(call.ok() && call->memory.size() == 1) << call.status();
    if (call.ok() && call->memory.size() == 1) span_ = call->memory.front();
    return outcome;
  }

  // Uses the key as a server would, at `offset` from where the call's memory begins.
  Status Reach(ibv_wr_opcode opcode, int64_t offset, uint32_t length) {
    TransferPart part;
    part.remote_address = span_.address + static_cast<uint64_t>(offset);
    part.remote_key = static_cast<uint32_t>(span_.key);
    part.bytes = length;
    const MemoryKeys keys = *rails_->regions()->Find(link_->rail().domain(), own_.data(), own_.size());
    part.local.push_back({reinterpret_cast<uint64_t>(own_.data()), length, keys.local});
    Transfer transfer;
    transfer.opcode = opcode;
    transfer.parts.push_back(part);
    return Run(link_->Run(&transfer));
  }

  void Reply() { link_->Send(FragmentKind::kReply, 0, call_id_, "done"); }
  void ReplyWithData(DataRange range, size_t bytes) {
    const std::string head = EncodeDataReply(std::span(&range, 1), "done");
    link_->Send(FragmentKind::kReply, kReplyData, call_id_, head + std::string(bytes, '\xbb'));
  }

  bool windows_ = false, soft_roce_ = false;
  Bytes memory_, own_;
  RemoteSpan span_;
  std::shared_ptr<RawLink> link_;
  std::shared_ptr<Peer> peer_;

 private:
  std::shared_ptr<RailSet> rails_;
  OneShot<std::shared_ptr<RawLink>> attached_;
  std::unique_ptr<Listener> listener_;
  std::shared_ptr<MemoryRegion> own_region_, region_;
  uint64_t call_id_ = 0;
};

TEST_P(HostileServerTest, ReachesWhatTheCallIsFor) {
  Outcome outcome = StartCall(CallMemory::kPutTarget);
  EXPECT_EQ(Reach(IBV_WR_RDMA_WRITE, 0, kSize), OkStatus());
  Reply();
  EXPECT_TRUE(outcome.get().ok());
  EXPECT_EQ(memory_[kSize - 1], std::byte{0xaa});
  EXPECT_EQ(memory_[kSize], std::byte{0xbb});
  EXPECT_EQ(memory_[2 * kSize - 1], std::byte{0xbb});
  EXPECT_EQ(memory_[2 * kSize], std::byte{0xaa});
  peer_.reset();
}

TEST_P(HostileServerTest, CannotReachBesidesIt) {
  if (!windows_) GTEST_SKIP() << "the device has no memory windows: keys are the regions'";
  if (soft_roce_)
    GTEST_SKIP() << "soft-RoCE looks at a window's direction and key, but at the region's bounds";
  for (auto [offset, length] :
       {std::pair<int64_t, uint32_t>{-1, 2}, {kSize - 1, 2}, {-int64_t{kSize}, 16}, {kSize, 16}}) {
    Outcome outcome = StartCall(CallMemory::kPutTarget);
    EXPECT_FALSE(Reach(IBV_WR_RDMA_WRITE, offset, length).ok()) << offset;
    EXPECT_FALSE(outcome.get().ok());
    peer_.reset();
    link_ = nullptr;
  }
  EXPECT_TRUE(memory_ == Bytes(memory_.size(), std::byte{0xaa}));
}

TEST_P(HostileServerTest, CannotReachTheOtherWay) {
  if (!windows_) GTEST_SKIP() << "the device has no memory windows: keys are the regions'";
  Outcome outcome = StartCall(CallMemory::kPutTarget);
  EXPECT_FALSE(Reach(IBV_WR_RDMA_READ, 0, 16).ok());
  EXPECT_FALSE(outcome.get().ok());
  EXPECT_EQ(own_[0], std::byte{0xbb});
  peer_.reset();
  link_ = nullptr;
  outcome = StartCall(CallMemory::kGetSource);
  EXPECT_FALSE(Reach(IBV_WR_RDMA_WRITE, 0, 16).ok());
  EXPECT_FALSE(outcome.get().ok());
  EXPECT_EQ(memory_[kSize], std::byte{0xaa});
  peer_.reset();
}

TEST_P(HostileServerTest, CannotReachAfterwards) {
  if (!windows_) GTEST_SKIP() << "the device has no memory windows: keys are the regions'";
  Outcome outcome = StartCall(CallMemory::kPutTarget);
  Reply();
  EXPECT_TRUE(outcome.get().ok());
  EXPECT_FALSE(Reach(IBV_WR_RDMA_WRITE, 0, 16).ok());
  EXPECT_EQ(memory_[kSize], std::byte{0xaa});
  peer_.reset();
}

TEST_P(HostileServerTest, DataWithTheReplyGoesWhereItMay) {
  for (const uint32_t offset : {0, 1000, 4095}) {
    Outcome outcome = StartCall(CallMemory::kPutTarget, 4096);
    EXPECT_EQ(span_, (RemoteSpan{0, 4096, 0}));  // nothing to reach the memory with
    ReplyWithData({offset, 1}, 1);
    StatusOr<std::string> reply = outcome.get();
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(*reply, "done");
    Bytes expected(memory_.size(), std::byte{0xaa});
    expected[kSize + offset] = std::byte{0xbb};
    EXPECT_TRUE(memory_ == expected) << offset;
    memory_[kSize + offset] = std::byte{0xaa};
    Detach();
  }
}

TEST_P(HostileServerTest, DataBesidesTheCallsMemoryIsRefused) {
  struct Wrong {
    CallMemory kind;
    uint64_t size;
    DataRange range;
    size_t bytes;
  };
  for (const Wrong& wrong :
       {Wrong{CallMemory::kPutTarget, 4096, {4096, 1}, 1},
        Wrong{CallMemory::kPutTarget, 4096, {0, 4097}, 4097},
        Wrong{CallMemory::kPutTarget, 4096, {UINT32_MAX, 2}, 2},
        Wrong{CallMemory::kPutTarget, 4096, {0, 2}, 1}, Wrong{CallMemory::kPutTarget, 4096, {0, 1}, 2},
        Wrong{CallMemory::kPutTarget, kSize, {0, 1}, 1},  // it gave keys
        Wrong{CallMemory::kGetSource, 4096, {0, 1}, 1}}) {
    Outcome outcome = StartCall(wrong.kind, wrong.size);
    ReplyWithData(wrong.range, wrong.bytes);
    EXPECT_EQ(outcome.get().status().code(), absl::StatusCode::kUnavailable) << wrong.range.offset;
    Detach();
  }
  EXPECT_TRUE(memory_ == Bytes(memory_.size(), std::byte{0xaa}));
}

INSTANTIATE_TEST_SUITE_P(Device, HostileServerTest, ::testing::ValuesIn(VerbsKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre::verbs
