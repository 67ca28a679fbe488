// The session alone, with an MDS that answers when the test says so: what comes late belongs to the session
// that it was asked in.
#include "client/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <map>

#include "tests/sim/world.h"

namespace nacre::client {
namespace {

using Answer = StatusOr<proto::MetadataReply>;

// One MDS with one stream at a time, which keeps every request until it is answered.
class HeldMds : public MetadataConnector {
 public:
  struct Asked {
    proto::MetadataRequest request;
    OneShot<Answer> answer;
  };

  Task<StatusOr<std::shared_ptr<MetadataChannel>>> Connect(MetadataChannelEvents events, Duration) override {
    events_ = std::move(events);
    co_return std::make_shared<Channel>(this);
  }
  std::string address() const override { return "held"; }

  void Push(proto::Push push) { events_.on_push(std::move(push)); }
  void LoseStream() {
    auto lost = std::exchange(events_.on_lost, nullptr);
    if (lost) lost(absl::UnavailableError("the stream is lost"));
  }

  std::vector<Asked> asked;

 private:
  class Channel : public MetadataChannel {
   public:
    explicit Channel(HeldMds* mds) : mds_(mds) {}
    Task<Answer> Call(proto::MetadataRequest request) override {
      OneShot<Answer> answer;
      mds_->asked.push_back({std::move(request), answer});
      co_return co_await answer.Wait();
    }
    void Close() override { mds_->events_.on_lost = nullptr; }

   private:
    HeldMds* const mds_;
  };

  MetadataChannelEvents events_;
};

class SessionTest : public testing::Test {
 protected:
  SessionTest() {
    Session::Hooks hooks;
    hooks.push = [](const proto::Push&) {};
    hooks.held = [] { return std::vector<proto::Reclaim>(); };
    hooks.connected = [this](const proto::ConnectReply&, bool fresh, uint64_t epoch) {
      told_.push_back({fresh, epoch, session_->leases_end()});
      if (std::exchange(lose_when_told_, false)) mds_->LoseStream();
    };
    hooks.evicted = [](uint64_t) {};
    hooks.report = [](proto::KeepAlive*) {};
    hooks.kept_alive = [](const proto::KeepAliveReply&) {};
    hooks.leases_confirmed = [] {};
    session_ = std::make_shared<Session>(process_->executor(), world_.clock(), process_->random(), mds_,
                                         RetryPolicy(), "test", false, std::move(hooks));
    process_->Own(session_);
  }
  ~SessionTest() override { world_.KillAll(); }

  // The next request of this kind that has not been answered.
  HeldMds::Asked Next(bool (proto::MetadataRequest::*kind)() const) {
    HeldMds::Asked found;
    const bool came = world_.RunUntil(
        [&] {
          auto it = std::ranges::find_if(mds_->asked, [&](auto& one) { return (one.request.*kind)(); });
          if (it == mds_->asked.end()) return false;
          found = *it;
          mds_->asked.erase(it);
          return true;
        },
        60s);
    EXPECT_TRUE(came) << "it was not asked";
    return found;
  }
  proto::MetadataRequest AnswerConnect(SessionId session, uint32_t version = kClientVersions.newest) {
    HeldMds::Asked connect = Next(&proto::MetadataRequest::has_connect);
    proto::MetadataReply reply;
    reply.mutable_connect()->set_session(session);
    reply.mutable_connect()->set_lease_ms(30'000);
    reply.mutable_connect()->set_version(version);
    connect.answer.Set(std::move(reply));
    world_.RunFor(1ms);
    return connect.request;
  }
  void Start(SessionId session) {
    Spawn(process_->executor(), session_->Start(10s), [](const StatusOr<proto::ConnectReply>&) {});
    (void)AnswerConnect(session);
    ASSERT_TRUE(session_->connected());
  }
  // Another stream, to a server that speaks this version, takes the session up again.
  void ComeBack(SessionId session, uint32_t version) {
    for (HeldMds::Asked& one : std::exchange(mds_->asked, {}))
      one.answer.Set(absl::UnavailableError("the stream is lost"));
    mds_->LoseStream();
    (void)AnswerConnect(session, version);
    Next(&proto::MetadataRequest::has_reclaim).answer.Set(proto::MetadataReply());
    ASSERT_TRUE(world_.RunUntil([&] { return session_->connected(); }, 60s));
    world_.RunFor(1ms);
  }
  // A batch of one mutation, the next one.
  std::shared_ptr<std::optional<Answer>> Batch(uint64_t after) {
    proto::MetadataRequest request, mutation;
    mutation.mutable_unlink()->set_name("f");
    session_->Number(1, &mutation);
    request.mutable_batch()->set_after(after);
    *request.mutable_batch()->add_requests() = std::move(mutation);
    auto answered = std::make_shared<std::optional<Answer>>();
    Spawn(process_->executor(), session_->CallNumbered(1, std::move(request)),
          [answered](Answer answer) { *answered = std::move(answer); });
    world_.RunFor(1ms);
    return answered;
  }
  // Of the batches that the MDS has been asked for and has not answered: the sequence of each, and what it
  // follows.
  std::vector<std::pair<uint64_t, uint64_t>> Batches() {
    std::vector<std::pair<uint64_t, uint64_t>> batches;
    for (const HeldMds::Asked& one : mds_->asked) {
      const proto::Batch& batch = one.request.batch();
      if (one.request.has_batch()) batches.emplace_back(batch.requests(0).sequence(), batch.after());
    }
    std::ranges::sort(batches);
    return batches;
  }
  void Evict() {
    proto::Push push;
    push.mutable_evicted()->set_reason("the test says so");
    mds_->Push(std::move(push));
    world_.RunFor(1ms);
    ASSERT_EQ(session_->epoch(), 2u);
  }

  struct Told {
    bool fresh;
    uint64_t epoch;
    Duration leases_end;
  };

  sim::World world_{1};
  sim::Process* const process_ = world_.Start(0, "client");
  const std::shared_ptr<HeldMds> mds_ = std::make_shared<HeldMds>();
  std::shared_ptr<Session> session_;
  std::vector<Told> told_;
  bool lose_when_told_ = false;
};

// Else this client would go on, between the two sessions, as if it still had what the first one had.
TEST_F(SessionTest, AKeepAliveOfTheSessionBeforeConfirmsNoLease) {
  Start(11);
  EXPECT_GT(session_->leases_end(), 0ns);
  HeldMds::Asked keep_alive = Next(&proto::MetadataRequest::has_keep_alive);
  Evict();
  EXPECT_EQ(session_->leases_end(), 0ns);
  keep_alive.answer.Set(proto::MetadataReply());
  world_.RunFor(1ms);
  EXPECT_EQ(session_->leases_end(), 0ns);
}

// The stream over which it is told may last: the MDS has ended the session, not the connection.
TEST_F(SessionTest, ConnectsAnewWhenItIsToldOfItsEviction) {
  Start(11);
  Evict();
  EXPECT_FALSE(session_->connected());
  EXPECT_EQ(AnswerConnect(12).connect().session(), 0u);
  ASSERT_TRUE(world_.RunUntil([&] { return session_->connected(); }, 60s));
  EXPECT_EQ(session_->id(), 12u);
  EXPECT_GT(session_->leases_end(), 0ns);
}

TEST_F(SessionTest, AnAnswerOfTheSessionBeforeIsAnError) {
  Start(11);
  std::optional<Answer> answered;
  proto::MetadataRequest request;
  request.mutable_statfs();
  Spawn(process_->executor(), session_->Call(1, std::move(request)),
        [&](Answer answer) { answered = std::move(answer); });
  HeldMds::Asked asked = Next(&proto::MetadataRequest::has_statfs);
  Evict();
  asked.answer.Set(proto::MetadataReply());
  ASSERT_TRUE(world_.RunUntil([&] { return answered.has_value(); }, 1s));
  EXPECT_EQ(ToErrno(answered->status()), EIO);
}

TEST_F(SessionTest, ABatchSaysWhichOneItFollowsUntilThatIsAnswered) {
  using Pairs = std::vector<std::pair<uint64_t, uint64_t>>;
  Start(11);
  auto first = Batch(0), second = Batch(1);
  EXPECT_EQ(Batches(), (Pairs{{1, 0}, {2, 1}}));
  ComeBack(11, kClientVersions.newest);
  EXPECT_EQ(Batches(), (Pairs{{1, 0}, {2, 1}}));
  auto it = std::ranges::find_if(mds_->asked, [](const HeldMds::Asked& one) {
    return one.request.batch().requests_size() > 0 && one.request.batch().requests(0).sequence() == 1;
  });
  it->answer.Set(proto::MetadataReply());
  world_.RunFor(1ms);
  EXPECT_TRUE(first->has_value());
  ComeBack(11, kClientVersions.newest);
  EXPECT_EQ(Batches(), (Pairs{{2, 0}}));
}

// A server of before may take over in the middle of an upgrade.
TEST_F(SessionTest, AServerThatKnowsNoOrderGetsABatchWhenTheOneBeforeIsAnswered) {
  using Pairs = std::vector<std::pair<uint64_t, uint64_t>>;
  Start(11);
  EXPECT_TRUE(session_->OrdersBatches());
  auto first = Batch(0), second = Batch(1);
  ComeBack(11, kOrderedBatches - 1);
  EXPECT_FALSE(session_->OrdersBatches());
  EXPECT_EQ(Batches(), (Pairs{{1, 0}}));
  Next(&proto::MetadataRequest::has_batch).answer.Set(proto::MetadataReply());
  world_.RunFor(1ms);
  EXPECT_EQ(Batches(), (Pairs{{2, 0}}));
  Next(&proto::MetadataRequest::has_batch).answer.Set(proto::MetadataReply());
  world_.RunFor(1ms);
  EXPECT_TRUE(first->has_value() && second->has_value());
}

// A session that is told twice, because its first stream was lost before it counted, is one session. Nothing
// may be done under it in between (leases_end), so that nothing is taken back when it is told again: not the
// FIDs that have been given, for there are none (client/mount.cc).
TEST_F(SessionTest, IsNotInUseBeforeTheStreamThatItIsToldOnCounts) {
  lose_when_told_ = true;
  std::optional<Status> started;
  Spawn(process_->executor(), session_->Start(10s),
        [&](const StatusOr<proto::ConnectReply>& reply) { started = reply.status(); });
  const proto::MetadataRequest first = AnswerConnect(11);
  EXPECT_FALSE(session_->connected());
  const proto::MetadataRequest second = AnswerConnect(11);
  ASSERT_TRUE(started.has_value());
  EXPECT_TRUE(started->ok()) << *started;
  EXPECT_EQ(first.connect().nonce(), second.connect().nonce());
  ASSERT_EQ(told_.size(), 2u);
  for (const Told& told : told_) {
    EXPECT_TRUE(told.fresh);
    EXPECT_EQ(told.epoch, 1u);
    EXPECT_EQ(told.leases_end, 0ns);
  }
  EXPECT_GT(session_->leases_end(), 0ns);
}

}  // namespace
}  // namespace nacre::client
