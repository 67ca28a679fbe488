// Messages of a server over verbs that break the rules: the client refuses and counts them, ends the link,
// and goes on over another one; whatever comes, not a byte besides the call's memory changes. Abuse of keys
// by a server is in hostile_server_test.cc.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>

#include "common/metrics.h"
#include "common/random.h"
#include "tests/transport/transport_fixture.h"
#include "tests/transport/verbs/fake_rdma.h"
#include "transport/tcp/tcp_listener.h"
#include "transport/verbs/channel.h"
#include "transport/verbs/rail_set.h"

namespace nacre::verbs {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::byte kUntouched{0xaa}, kPut{0xbb};

class AnsweringLink;

// A call that waits for its answer.
struct Asked {
  std::shared_ptr<AnsweringLink> link;
  uint64_t id = 0;
  CallMessage call;
};

// Thread-safe.
class AskedQueue {
 public:
  void Push(Asked asked) {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(asked));
    came_.notify_one();
  }
  std::optional<Asked> Pop(Duration timeout) {
    std::unique_lock lock(mutex_);
    if (!came_.wait_for(lock, timeout, [this] { return !queue_.empty(); })) return std::nullopt;
    Asked asked = std::move(queue_.front());
    queue_.pop_front();
    return asked;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<Asked> queue_;
};

// The server's end: leaves the answers to the test.
class AnsweringLink : public Channel {
 public:
  // `refused` counts the errors that it has seen itself.
  AnsweringLink(std::shared_ptr<Rail> rail, Executor executor, std::function<void(const Status&)> end,
                AskedQueue* asked, std::atomic<int64_t>* refused)
      : Channel(std::move(rail), std::move(executor), RealClock(), 8, 0),
        end_(std::move(end)),
        asked_(asked),
        refused_(refused) {}

  std::vector<uint64_t> answered;  // for the test
  const OneShot<Status> closed;

 private:
  Status OnMessage(const FragmentHeader& header, std::string_view text) override {
    if (header.kind != FragmentKind::kCall) return OkStatus();
    ASSIGN_OR_RETURN(CallMessage call, ParseCall(text));
    auto self = std::static_pointer_cast<AnsweringLink>(shared_from_this());
    asked_->Push({std::move(self), header.call_id, std::move(call)});
    return OkStatus();
  }
  void OnClosed(const Status& why) override {
    if (why.code() == absl::StatusCode::kInvalidArgument) ++*refused_;
    end_(why);
    closed.Set(why);
  }

  const std::function<void(const Status&)> end_;
  AskedQueue* const asked_;
  std::atomic<int64_t>* const refused_;
};

// Ends the link with the connection that it was set up over.
class LinkAttachment : public Attachment {
 public:
  explicit LinkAttachment(std::shared_ptr<Channel> link) : link_(std::move(link)) {}
  void ConnectionClosed(const Status& why) override {
    link_->Shutdown(absl::UnavailableError(why.message()));
  }

 private:
  const std::shared_ptr<Channel> link_;
};

// Calls one behind the other for memory with other memory around it, in which nothing may change.
class Caller {
 public:
  Caller(TransportTest* test, CallMemory kind, size_t size = kLarge)
      : kind_(kind), size_(size), memory_(3 * 4096, kUntouched) {
    region_ = test->Register(memory_);
  }

  Task<StatusOr<std::string>> CallOnce(Peer* peer) {
    std::fill_n(memory_.data() + kBegin, size_, kUntouched);
    CallRequest request{"body", kind_, {}};
    request.memory.push_back({region_, kBegin, size_});
    StatusOr<std::string> reply = co_await peer->Call(std::move(request), 5s);
    for (size_t i = 0; i < memory_.size(); ++i) {
      const bool own = kind_ == CallMemory::kPutTarget && i - kBegin < size_;
      if (memory_[i] != kUntouched && !(own && memory_[i] == kPut)) ++wrong_bytes;
    }
    co_return reply;
  }

  static Task<void> GoOn(Caller* self, Peer* peer, const std::atomic<bool>* enough, std::atomic<int>* left) {
    while (!*enough) {
      StatusOr<std::string> reply = co_await self->CallOnce(peer);
      if (reply.ok()) ++self->answered;
      if (absl::IsUnavailable(reply.status())) ++self->lost;
    }
    --*left;
  }

  static constexpr size_t kSmall = 4000;  // what is put comes with the reply
  static constexpr size_t kLarge = 6000;
  std::atomic<int> answered = 0, lost = 0, wrong_bytes = 0;

 private:
  static constexpr size_t kBegin = 4096 + 1;
  const CallMemory kind_;
  const size_t size_;
  Bytes memory_;
  std::shared_ptr<MemoryRegion> region_;
};

std::string DataFor(DataRange range) {
  const std::string head = EncodeDataReply(std::span(&range, 1), "done");
  return head + std::string(range.length, static_cast<char>(kPut));
}

class HostileRepliesTest : public TransportTest {
 protected:
  void SetUp() override {
    TransportTest::SetUp();
    rails_ = RailSet::Make(executor(), RealClock(), {});
    TcpOptions options;
    options.attach = [this](AttachRequest request) { return Accept(this, std::move(request)); };
    StatusOr<std::unique_ptr<Listener>> listener =
        MakeTcpListener(executor(), RealClock(), Complete(std::move(options)), "127.0.0.1:0", Echo);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    own_region_ = *rails_->regions()->Register(own_.data(), own_.size());
    StatusOr<std::shared_ptr<Peer>> peer = client().Connect(listener_->address());
    ASSERT_TRUE(peer.ok()) << peer.status();
    peer_ = *std::move(peer);
  }

  void TearDown() override {
    peer_.reset();
    while (asked_.Pop(0s)) {
    }
    for (const auto& link : links_) link->Shutdown(absl::CancelledError("the test is done"));
    links_.clear();
    listener_.reset();
    own_region_.reset();
    if (rails_ != nullptr) rails_->Stop();
    rails_.reset();
    TransportTest::TearDown();
  }

  static Task<StatusOr<Attached>> Accept(HostileRepliesTest* test, AttachRequest request) {
    CO_ASSIGN_OR_RETURN(const Endpoint remote, ParseEndpoint(request.body));
    CO_ASSIGN_OR_RETURN(std::shared_ptr<Rail> rail, test->rails_->Choose(std::nullopt, 0));
    auto link = std::make_shared<AnsweringLink>(std::move(rail), test->executor(), request.close,
                                                &test->asked_, &test->refused_);
    CO_RETURN_IF_ERROR(link->Open());
    {
      std::lock_guard lock(test->mutex_);
      test->links_.push_back(link);
    }
    CO_RETURN_IF_ERROR(link->Join(remote));
    Attached attached{EncodeEndpoint(link->local()), std::make_shared<LinkAttachment>(link)};
    co_return attached;
  }

  std::future<StatusOr<std::string>> Start(Caller* caller) {
    auto result = std::make_shared<std::promise<StatusOr<std::string>>>();
    Spawn(executor(), caller->CallOnce(peer_.get()),
          [result](StatusOr<std::string> reply) { result->set_value(std::move(reply)); });
    return result->get_future();
  }

  // Moves what the call asks for, as a server does.
  void Move(const Asked& asked) {
    if (asked.call.memory.size() != 1 || asked.call.with_reply) return;
    const RemoteSpan& span = asked.call.memory.front();
    const bool put = asked.call.kind == CallMemory::kPutTarget;
    std::memset(own_.data() + kMoved, static_cast<int>(kPut), span.length);
    Transfer transfer;
    transfer.opcode = put ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    transfer.parts.push_back({span.address,
                              static_cast<uint32_t>(span.key),
                              static_cast<uint32_t>(span.length),
                              {Local(*asked.link, kMoved, span.length)}});
    (void)Run(asked.link->Run(&transfer));
  }

  void Reply(const Asked& asked) {
    if (asked.call.with_reply) {
      asked.link->Send(FragmentKind::kReply, kReplyData, asked.id, DataFor({0, Caller::kSmall}));
    } else {
      asked.link->Send(FragmentKind::kReply, 0, asked.id, "done");
    }
    asked.link->answered.push_back(asked.id);
  }

  // A fragment as it is, beside all that the link would do about it.
  void SendRaw(AnsweringLink& link, const Bytes& fragment) {
    std::copy(fragment.begin(), fragment.end(), own_.begin());
    Transfer transfer;
    transfer.opcode = IBV_WR_SEND;
    transfer.parts.push_back({0, 0, 0, {Local(link, 0, fragment.size())}});
    (void)Run(link.Run(&transfer));
  }

  // Counts the messages that the client has refused, without those that this end has.
  int64_t ClientErrors() { return GetCounter("transport.verbs.protocol_errors").Get() - refused_; }

  AskedQueue asked_;
  std::shared_ptr<Peer> peer_;

 private:
  static constexpr size_t kMoved = 4096;  // where in own_ the data of transfers is

  ibv_sge Local(const AnsweringLink& link, size_t offset, size_t size) {
    const MemoryKeys keys =
        *rails_->regions()->Find(const_cast<AnsweringLink&>(link).rail().domain(), own_.data(), own_.size());
    return {reinterpret_cast<uint64_t>(own_.data()) + offset, static_cast<uint32_t>(size), keys.local};
  }

  Bytes own_ = Bytes(3 * 4096);
  std::shared_ptr<RailSet> rails_;
  std::unique_ptr<Listener> listener_;
  std::shared_ptr<MemoryRegion> own_region_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<AnsweringLink>> links_;
  std::atomic<int64_t> refused_ = 0;
};

Bytes Fragment(const FragmentHeader& header, std::string_view payload) {
  Bytes bytes(kFragmentHeaderSize + payload.size());
  EncodeFragmentHeader(header, bytes.data());
  std::memcpy(bytes.data() + kFragmentHeaderSize, payload.data(), payload.size());
  return bytes;
}

FragmentHeader ReplyHeader(uint64_t id, std::string_view body) {
  const auto size = static_cast<uint16_t>(body.size());
  return {FragmentKind::kReply, 0, size, 0, id, 0, size};
}

TEST_P(HostileRepliesTest, AnswersThatMayNotComeEndTheLink) {
  using Change =
      std::function<void(FragmentHeader*, Bytes*)>;  // of the header, or of the bytes if there are any
  auto header = [](std::function<void(FragmentHeader*)> change) -> Change {
    return [change](FragmentHeader* header, Bytes* bytes) {
      if (bytes == nullptr) change(header);
    };
  };
  auto bytes = [](std::function<void(Bytes*)> change) -> Change {
    return [change](FragmentHeader*, Bytes* bytes) {
      if (bytes != nullptr) change(bytes);
    };
  };
  const std::vector<Change> changes = {
      header([](FragmentHeader* h) { h->call_id += 1000; }),
      header([](FragmentHeader* h) { h->offset = 1, h->total += 1; }),
      header([](FragmentHeader* h) { h->flags = 0x80; }),
      header([](FragmentHeader* h) { h->kind = FragmentKind::kCall; }),
      header([](FragmentHeader* h) { h->credits = 1000; }),
      header([](FragmentHeader* h) { h->credits = 100'000; }),
      header([](FragmentHeader* h) { h->total = kMaxMessageSize + 1; }),
      header([](FragmentHeader* h) { h->length += 1, h->total += 1; }),
      header([](FragmentHeader* h) { h->kind = FragmentKind::kCredit; }),
      bytes([](Bytes* b) { b->front() = std::byte{0}; }),
      bytes([](Bytes* b) { b->front() = std::byte{200}; }),
      bytes([](Bytes* b) { (*b)[kFragmentHeaderSize - 1] = std::byte{1}; }),
      bytes([](Bytes* b) { b->resize(10); }),
  };
  Caller caller(this, CallMemory::kPutTarget);
  for (size_t i = 0; i < changes.size(); ++i) {
    const int64_t errors = ClientErrors();
    std::future<StatusOr<std::string>> result = Start(&caller);
    std::optional<Asked> asked = asked_.Pop(10s);
    ASSERT_TRUE(asked) << i;
    FragmentHeader reply = ReplyHeader(asked->id, "done");
    changes[i](&reply, nullptr);
    Bytes fragment = Fragment(reply, "done");
    changes[i](&reply, &fragment);
    SendRaw(*asked->link, fragment);
    EXPECT_EQ(result.get().status().code(), absl::StatusCode::kUnavailable) << i;
    (void)Run(asked->link->closed);
    EXPECT_EQ(ClientErrors(), errors + 1) << i;
  }
  EXPECT_EQ(caller.wrong_bytes, 0);
}

TEST_P(HostileRepliesTest, ASecondAnswerEndsTheLink) {
  Caller caller(this, CallMemory::kGetSource);
  const int64_t errors = ClientErrors();
  std::future<StatusOr<std::string>> result = Start(&caller);
  std::optional<Asked> asked = asked_.Pop(10s);
  ASSERT_TRUE(asked);
  Move(*asked);
  Reply(*asked);
  EXPECT_TRUE(result.get().ok());
  Reply(*asked);
  (void)Run(asked->link->closed);
  EXPECT_EQ(ClientErrors(), errors + 1);
  EXPECT_EQ(caller.wrong_bytes, 0);
}

// A reply with something wrong, with some bytes changed, or cut short.
Bytes MakeUpReply(SeededRandom* random, const Asked& asked) {
  const DataRange range{static_cast<uint32_t>(random->Below(Caller::kSmall + 100)),
                        static_cast<uint32_t>(random->Below(1000))};
  const std::string body = asked.call.with_reply ? DataFor(range) : std::string(random->Below(64), 'b');
  FragmentHeader header = ReplyHeader(asked.id, body);
  if (asked.call.with_reply) header.flags = kReplyData;
  switch (random->Below(8)) {
    case 0:
      if (!asked.link->answered.empty())
        header.call_id = asked.link->answered[random->Below(asked.link->answered.size())];
      break;
    case 1:
      header.call_id = random->Next() | uint64_t{1} << 63;
      break;
    case 2:
      header.total += static_cast<uint32_t>(random->Below(kMaxMessageSize));
      break;
    case 3:
      header.offset = static_cast<uint32_t>(random->Below(2000));
      header.total += header.offset;
      break;
    case 4:
      header.kind = static_cast<FragmentKind>(random->Below(8));
      break;
    case 5:
      header.credits = static_cast<uint32_t>(random->Below(70'000));
      break;
    case 6:
      header.flags = static_cast<uint8_t>(random->Next());
      break;
    default:
      break;
  }
  Bytes fragment = Fragment(header, body);
  const size_t data = asked.call.with_reply ? range.length : 0;  // may be anything
  for (uint64_t k = random->Below(4); k > 0; --k) {
    size_t at = random->Below(fragment.size() - data);
    if (at >= 8 && at < 12) at += 4;  // in the call's number, so that it is not another call's under way
    fragment[at] = std::byte(random->Next());
  }
  if (random->Below(8) == 0) fragment.resize(1 + random->Below(fragment.size()));
  return fragment;
}

// The mirror of HostileClientTest.WhateverAFragmentSaysTheServerGoesOn.
TEST_P(HostileRepliesTest, WhateverAFragmentSaysTheClientGoesOn) {
  const int64_t errors = ClientErrors();
  Counter& connections = GetCounter("transport.verbs.client.connections");
  const int64_t connected = connections.Get();
  std::deque<Caller> callers;
  std::atomic<bool> enough = false;
  std::atomic<int> left = 4;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back(this, i % 2 == 0 ? CallMemory::kPutTarget : CallMemory::kGetSource,
                         i < 2 ? Caller::kSmall : Caller::kLarge);
    Spawn(executor(), Caller::GoOn(&callers.back(), peer_.get(), &enough, &left));
  }
  SeededRandom random(1);
  const int fragments = FakeRdma::Current() != nullptr ? 300 : 60;
  for (int i = 0; i < fragments; ++i) {
    std::optional<Asked> asked = asked_.Pop(10s);
    EXPECT_TRUE(asked) << "no call any more after " << i;
    if (!asked) break;
    if (random.Below(2) == 0) Move(*asked);
    if (random.Below(4) > 0) SendRaw(*asked->link, MakeUpReply(&random, *asked));
    Reply(*asked);  // to a call that has ended, maybe
  }
  auto answers = [&] {
    std::vector<int> answers;
    for (const Caller& caller : callers) answers.push_back(caller.answered);
    return answers;
  };
  const std::vector<int> before = answers();
  while (left > 0) {
    const std::vector<int> now = answers();
    enough =
        enough || std::equal(now.begin(), now.end(), before.begin(), [](int a, int b) { return a > b + 2; });
    if (std::optional<Asked> asked = asked_.Pop(10ms)) {
      Move(*asked);
      Reply(*asked);
    }
  }
  EXPECT_GT(ClientErrors(), errors + fragments / 10);
  EXPECT_GT(connections.Get(), connected + fragments / 10);
  for (const Caller& caller : callers) {
    EXPECT_EQ(caller.wrong_bytes, 0);
    EXPECT_GT(caller.lost, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Device, HostileRepliesTest, ::testing::ValuesIn(VerbsKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nacre::verbs
