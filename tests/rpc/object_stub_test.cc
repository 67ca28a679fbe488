#include "rpc/object_stub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <set>

#include "rpc/convert.h"

namespace nacre {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// An OSS that does each sequence once, behind a link that loses requests and replies as `fate` says.
class FakePeer : public Peer {
 public:
  enum class Fate { kDeliver, kLoseRequest, kLoseReply };

  Task<StatusOr<std::string>> Call(CallRequest call, Duration timeout) override {
    timeouts.push_back(timeout);
    proto::ObjectRequest request;
    EXPECT_TRUE(request.ParseFromString(call.body));
    if (gate != nullptr && request.sequence() == gated_sequence) co_await gate->Wait();
    if (frozen) {
      flag = call.given_up;
      co_await thawed.Wait();
      co_return ErrnoError(ETIMEDOUT, "given up");
    }
    Fate fate = closed ? Fate::kLoseRequest : next_fate();
    if (fate == Fate::kLoseRequest) co_return ErrnoError(ECONNREFUSED, "nobody listens");
    seen.push_back(request);
    if (request.sequence() != 0 && done.insert(request.sequence()).second) ++mutations;
    if (fate == Fate::kLoseReply) co_return ErrnoError(ETIMEDOUT, "no reply");
    if (!raw_reply.empty()) co_return raw_reply;
    proto::ObjectReply reply;
    *reply.mutable_status() = ToProto(reply_status);
    co_return reply.SerializeAsString();
  }
  PathInfo path() const override { return {"fake", ""}; }
  std::string address() const override { return "fake:1"; }
  void EndGivenUp() override {
    if (IsGivenUp(flag)) thawed.Set({});
  }
  void Close() override { closed = true; }

  std::function<Fate()> next_fate = [] { return Fate::kDeliver; };
  OneShot<Unit>* gate = nullptr;
  uint64_t gated_sequence = 0;
  bool frozen = false;  // answers nothing until the call is given up
  GiveUpFlag flag;      // of the frozen call
  OneShot<Unit> thawed;
  Status reply_status;
  std::string raw_reply;
  bool closed = false;
  std::vector<Duration> timeouts;
  std::vector<proto::ObjectRequest> seen;
  std::set<uint64_t> done;
  int mutations = 0;
};

using Reply = std::optional<StatusOr<proto::ObjectReply>>;

RetryPolicy Quick() {
  RetryPolicy policy;
  policy.pause = 1ms;
  policy.max_pause = 2ms;
  return policy;
}

proto::ObjectRequest Punch(OstIndex ost = 3) {
  proto::ObjectRequest request;
  request.set_ost(ost);
  request.mutable_punch()->set_length(4096);
  return request;
}

class ObjectStubTest : public testing::Test {
 protected:
  void Start(ObjectStub& stub, proto::ObjectRequest request, Reply& reply) {
    Spawn(context_.get_executor(),
          [](ObjectStub& stub, proto::ObjectRequest request, Reply& reply) -> Task<void> {
            std::vector<MemorySpan> none;
            reply = co_await stub.Call(std::move(request), CallMemory::kNone, std::move(none));
          }(stub, std::move(request), reply));
  }

  StatusOr<proto::ObjectReply> Run(ObjectStub& stub, proto::ObjectRequest request) {
    Reply reply;
    Start(stub, std::move(request), reply);
    context_.restart();
    context_.run();
    return *reply;
  }

  asio::io_context context_;
  std::shared_ptr<FakePeer> peer_ = std::make_shared<FakePeer>();
};

TEST_F(ObjectStubTest, AMutationIsDoneOnceWhateverGetsLost) {
  int n = 0;
  peer_->next_fate = [&n] {
    switch (n++ % 4) {
      case 0:
        return FakePeer::Fate::kLoseReply;
      case 1:
        return FakePeer::Fate::kLoseRequest;
      case 2:
        return FakePeer::Fate::kLoseReply;
      default:
        return FakePeer::Fate::kDeliver;
    }
  };
  ObjectStub stub(peer_, RealClock(), 7, 1, Quick());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Run(stub, Punch()).ok());
  EXPECT_EQ(peer_->mutations, 5);
  EXPECT_THAT(peer_->done, ElementsAre(1, 2, 3, 4, 5));
  for (const auto& request : peer_->seen) {
    EXPECT_EQ(request.session(), 7);
    EXPECT_EQ(request.low_water(), request.sequence());  // one at a time: all before is answered
  }
}

TEST_F(ObjectStubTest, LowWaterStaysBelowWhatIsUnanswered) {
  ObjectStub stub(peer_, RealClock(), 7, 1, Quick());
  OneShot<Unit> gate;
  peer_->gate = &gate;
  peer_->gated_sequence = 1;
  Reply first, second, third;
  Start(stub, Punch(), first);
  Start(stub, Punch(), second);
  context_.poll();
  ASSERT_TRUE(second.has_value());
  ASSERT_FALSE(first.has_value());
  EXPECT_EQ(peer_->seen.back().sequence(), 2);
  EXPECT_EQ(peer_->seen.back().low_water(), 1);
  gate.Set({});
  context_.restart();
  context_.run();
  ASSERT_TRUE(first.has_value());
  ASSERT_TRUE(Run(stub, Punch()).ok());
  EXPECT_EQ(peer_->seen.back().sequence(), 3);
  EXPECT_EQ(peer_->seen.back().low_water(), 3);
}

TEST_F(ObjectStubTest, EachOstHasItsOwnSequencesAndReadsHaveNone) {
  ObjectStub stub(peer_, RealClock(), 7, 1, Quick());
  ASSERT_TRUE(Run(stub, Punch(1)).ok());
  ASSERT_TRUE(Run(stub, Punch(2)).ok());
  EXPECT_EQ(peer_->seen[0].sequence(), 1);
  EXPECT_EQ(peer_->seen[1].sequence(), 1);
  proto::ObjectRequest read;
  read.mutable_stat();
  int n = 0;
  peer_->next_fate = [&n] { return n++ < 3 ? FakePeer::Fate::kLoseReply : FakePeer::Fate::kDeliver; };
  ASSERT_TRUE(Run(stub, read).ok());
  EXPECT_EQ(n, 4);
  EXPECT_EQ(peer_->seen.back().sequence(), 0);
  EXPECT_EQ(peer_->seen.back().low_water(), 0);
}

TEST_F(ObjectStubTest, SoftGivesUpWithEioAndLetsTheSequenceGo) {
  RetryPolicy policy = Quick();
  policy.hard = false;
  policy.soft_timeout = 20ms;
  ObjectStub stub(peer_, RealClock(), 7, 1, policy);
  peer_->next_fate = [] { return FakePeer::Fate::kLoseRequest; };
  auto reply = Run(stub, Punch());
  EXPECT_EQ(ToErrno(reply.status()), EIO);
  EXPECT_THAT(std::string(reply.status().message()), HasSubstr("OST 3 at fake:1"));
  EXPECT_THAT(std::string(reply.status().message()), HasSubstr("nobody listens"));
  EXPECT_GT(peer_->timeouts.size(), 2u);
  for (Duration timeout : peer_->timeouts) EXPECT_LE(timeout, policy.soft_timeout);
  peer_->next_fate = [] { return FakePeer::Fate::kDeliver; };
  ASSERT_TRUE(Run(stub, Punch()).ok());
  EXPECT_EQ(peer_->seen.back().low_water(), 2);
}

TEST_F(ObjectStubTest, TheReplysOwnStatusIsFinal) {
  ObjectStub stub(peer_, RealClock(), 7, 1, Quick());
  peer_->reply_status = ErrnoError(ENOSPC, "OST 3 is full");
  auto reply = Run(stub, Punch());
  EXPECT_EQ(ToErrno(reply.status()), ENOSPC);
  EXPECT_EQ(reply.status().message(), "OST 3 is full");
  EXPECT_EQ(peer_->seen.size(), 1u);
}

TEST_F(ObjectStubTest, AMalformedReplyIsAnErrorThatNamesTheServer) {
  ObjectStub stub(peer_, RealClock(), 7, 1, Quick());
  peer_->raw_reply = "\xff\xff\xff";
  auto reply = Run(stub, Punch());
  EXPECT_EQ(ToErrno(reply.status()), EIO);
  EXPECT_THAT(std::string(reply.status().message()), HasSubstr("fake:1"));
}

TEST_F(ObjectStubTest, ARequestTooLargeIsRefusedHere) {
  ObjectStub stub(peer_, RealClock(), 7, 1, Quick());
  proto::ObjectRequest request;
  for (int i = 0; i < 100'000; ++i) {
    auto* object = request.mutable_destroy()->add_objects();
    object->set_sequence(1);
    object->set_stripe(1 + i);
  }
  EXPECT_EQ(ToErrno(Run(stub, request).status()), EMSGSIZE);
  EXPECT_TRUE(peer_->seen.empty());
}

TEST_F(ObjectStubTest, CloseEndsAHardWait) {
  ObjectStub stub(peer_, RealClock(), 7, 1, Quick());
  peer_->next_fate = [] { return FakePeer::Fate::kLoseRequest; };
  Reply reply;
  Start(stub, Punch(), reply);
  while (peer_->timeouts.size() < 3) context_.run_one();
  EXPECT_FALSE(reply.has_value());
  stub.Close();
  context_.run();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(ToErrno(reply->status()), ESHUTDOWN);
}

TEST_F(ObjectStubTest, AMovedServerIsFoundByTheNextAttempt) {
  ObjectStub stub(peer_, RealClock(), 7, 1, Quick());
  peer_->next_fate = [] { return FakePeer::Fate::kLoseReply; };
  Reply reply;
  Start(stub, Punch(), reply);
  while (peer_->timeouts.size() < 2) context_.run_one();
  auto moved = std::make_shared<FakePeer>();
  stub.SetPeer(moved);
  context_.run();
  ASSERT_TRUE(reply.has_value() && reply->ok());
  EXPECT_EQ(moved->seen.back().sequence(), 1);
}

TEST_F(ObjectStubTest, APauseEndsWhenTheServerHasMoved) {
  RetryPolicy policy;
  policy.pause = 1h;
  ObjectStub stub(peer_, RealClock(), 7, 1, policy);
  peer_->next_fate = [] { return FakePeer::Fate::kLoseRequest; };
  Reply reply;
  Start(stub, Punch(), reply);
  context_.poll();
  ASSERT_EQ(peer_->timeouts.size(), 1u);
  stub.SetPeer(std::make_shared<FakePeer>());
  context_.restart();
  context_.poll();
  ASSERT_TRUE(reply.has_value() && reply->ok());
}

TEST_F(ObjectStubTest, APauseEndsWithTheStub) {
  RetryPolicy policy;
  policy.pause = 1h;
  for (const bool close : {true, false}) {
    auto peer = std::make_shared<FakePeer>();
    ObjectStub stub(peer, RealClock(), 7, 1, policy);
    peer->next_fate = [] { return FakePeer::Fate::kLoseRequest; };
    Reply reply;
    Start(stub, Punch(), reply);
    context_.restart();
    context_.poll();
    ASSERT_FALSE(reply.has_value());
    close ? stub.Close() : stub.End(ErrnoError(ENXIO, "the OST was removed"));
    context_.restart();
    context_.poll();
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(ToErrno(reply->status()), close ? ESHUTDOWN : ENXIO);
  }
}

// The old server may be frozen and keep its calls for ever.
TEST_F(ObjectStubTest, ACallAtTheOldServerGoesOnAtTheNewOneAtOnce) {
  RetryPolicy policy;
  policy.pause = 1h;  // a pause would fail the test
  ObjectStub stub(peer_, RealClock(), 7, 1, policy);
  peer_->frozen = true;
  Reply reply;
  Start(stub, Punch(), reply);
  context_.poll();
  ASSERT_FALSE(reply.has_value());
  stub.SetPeer(peer_);  // is no move
  context_.restart();
  context_.poll();
  ASSERT_FALSE(reply.has_value());
  auto moved = std::make_shared<FakePeer>();
  stub.SetPeer(moved);
  context_.restart();
  context_.poll();
  ASSERT_TRUE(reply.has_value() && reply->ok());
  EXPECT_EQ(moved->seen.back().sequence(), 1);
  EXPECT_EQ(moved->mutations, 1);
}

// An OST that has moved to a server that another stub speaks to knows the session's numbers.
TEST_F(ObjectStubTest, StubsOfASessionShareItsSequences) {
  auto sequences = std::make_shared<ObjectSequences>(1);
  ObjectStub first(peer_, RealClock(), 7, sequences, Quick());
  ObjectStub second(peer_, RealClock(), 7, sequences, Quick());
  ASSERT_TRUE(Run(first, Punch()).ok());
  ASSERT_TRUE(Run(second, Punch()).ok());
  EXPECT_EQ(peer_->seen.back().sequence(), 2);
  EXPECT_EQ(peer_->seen.back().low_water(), 2);
}

// The MDS numbers its changes from where no earlier run of it has come, and says so with each.
TEST_F(ObjectStubTest, BeginsWhereItIsToldTo) {
  ObjectStub stub(peer_, RealClock(), 0, uint64_t{7} << 32, Quick());
  ASSERT_TRUE(Run(stub, Punch()).ok());
  EXPECT_EQ(peer_->seen.back().sequence(), uint64_t{7} << 32);
  EXPECT_EQ(peer_->seen.back().low_water(), uint64_t{7} << 32);
  ASSERT_TRUE(Run(stub, Punch()).ok());
  EXPECT_EQ(peer_->seen.back().sequence(), (uint64_t{7} << 32) + 1);
}

}  // namespace
}  // namespace nacre
