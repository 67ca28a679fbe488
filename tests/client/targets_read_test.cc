// Reads from members of an OST that are not its head: servers that are told what to answer, on one thread and
// by a clock of the test's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <map>
#include <optional>

#include "client/targets.h"
#include "rpc/convert.h"
#include "tests/sim/world.h"
#include "transport/inproc/inproc_transport.h"

namespace nacre::client {
namespace {

constexpr size_t kAnswerBytes = 4096;

class TargetsReadTest : public testing::Test {
 protected:
  enum class Mode { kAnswers, kFrozen, kRefuses, kBadBlock, kChanging, kOld };
  struct Server {
    Mode mode = Mode::kAnswers;
    uint64_t changes = 1;  // of the version of every object
    char content = '?';
    int reads = 0;
    int questions = 0;  // for versions
    std::vector<std::shared_ptr<IncomingCall>> kept;
    std::unique_ptr<Listener> listener;
  };
  struct Result {
    std::optional<Status> status;
    std::string bytes;
  };

  TargetsReadTest() {
    targets_.Reset(1, 1);
    for (uint64_t n = 1; n <= 3; ++n) {
      Server* server = &servers_[n];
      server->content = static_cast<char>('0' + n);
      server->listener = *transport_->Listen(Address(n), [server](std::shared_ptr<IncomingCall> call) {
        return Serve(server, std::move(call));
      });
    }
    SetMap({1, 2});
  }
  ~TargetsReadTest() override {
    targets_.Close();
    Poll();
    for (auto& [n, server] : servers_) server.kept.clear();
  }

  static std::string Address(uint64_t n) { return "inproc:" + std::to_string(n); }

  // OST 0, with these servers as members, the head first. The last `out` of them are not in sync.
  void SetMap(std::vector<uint64_t> servers, size_t out = 0) {
    proto::ClusterMap map;
    proto::OstState* ost = map.add_osts();
    ost->set_address(Address(servers.front()));
    for (size_t i = 0; i < servers.size(); ++i) {
      proto::MemberState* member = ost->add_members();
      member->set_address(Address(servers[i]));
      member->set_up(true);
      member->set_in_sync(i + out < servers.size());
    }
    targets_.SetMap(map);
    Pass(1ms);
  }

  // A read of an object of which that member is asked.
  std::shared_ptr<Result> Start(const std::string& member, CancellationPtr cancellation = nullptr) {
    auto result = std::make_shared<Result>();
    proto::ObjectRequest request;
    proto::ObjectRange* range = request.mutable_read()->add_ranges();
    *range->mutable_object() = ToProto(ObjectOf(member));
    range->set_length(kAnswerBytes);
    Spawn(context_.get_executor(), ReadInto(std::move(request), result, std::move(cancellation)));
    Poll();
    return result;
  }
  // The first byte that a read brings; empty: it has failed, or not ended.
  std::string Read(const std::string& member) {
    auto result = Start(member);
    return result->status && result->status->ok() ? result->bytes.substr(0, 1) : "";
  }

  static ObjectId ObjectOf(const std::string& member) {
    MemberChoice choice;
    choice.Set({Address(2)});
    for (uint64_t n = 1;; ++n) {
      if (choice.Begin({{n, 0}, 0}, 0, Duration{0}) == member) return {n, 0};
    }
  }

  // Everything that can happen without time going by.
  void Poll() {
    context_.restart();
    context_.poll();
  }
  void Pass(Duration time) {
    const Duration end = clock_.Now() + time;
    while (clock_.Advance(end)) Poll();
    Poll();
  }

  sim::SimClock clock_;
  asio::io_context context_;
  std::unique_ptr<Transport> transport_ =
      MakeInprocTransport(MakeInprocNetwork(), context_.get_executor(), clock_);
  Targets targets_{*transport_, clock_, RetryPolicy(), [](OstIndex, uint64_t) {}, MemberReads{.from = 1}};
  std::map<uint64_t, Server> servers_;
  Server& head_ = servers_[1];
  Server& other_ = servers_[2];

 private:
  Task<void> ReadInto(proto::ObjectRequest request, std::shared_ptr<Result> result,
                      CancellationPtr cancellation) {
    std::string bytes(kAnswerBytes, '-');
    auto region = *transport_->Register(reinterpret_cast<std::byte*>(bytes.data()), bytes.size());
    std::vector<MemorySpan> spans = {{region, 0, bytes.size()}};
    auto reply = co_await targets_.Read(1, std::move(request), std::move(spans), std::move(cancellation));
    result->bytes = std::move(bytes);
    result->status = reply.status();
  }

  static Task<void> Serve(Server* server, std::shared_ptr<IncomingCall> call) {
    proto::ObjectRequest request;
    EXPECT_TRUE(request.ParseFromString(call->body()));
    EXPECT_EQ(request.session(), 1u);
    EXPECT_EQ(request.sequence(), 0u);
    ++(request.has_versions() ? server->questions : server->reads);
    if (server->mode == Mode::kFrozen) {
      server->kept.push_back(std::move(call));
      co_return;
    }
    proto::ObjectReply reply;
    if (server->mode == Mode::kRefuses)
      *reply.mutable_status() = ToProto(ErrnoError(ECONNRESET, "not in the chain"));
    if (server->mode == Mode::kOld && request.has_versions())
      *reply.mutable_status() = ToProto(ErrnoError(EOPNOTSUPP, "no such operation"));
    proto::ObjectVersion version;
    version.set_epoch(3);
    version.set_changes(server->changes);
    if (request.has_versions()) *reply.mutable_versions()->add_versions() = version;
    if (request.has_read()) {
      proto::ReadRangeResult* result = reply.mutable_read()->add_ranges();
      result->set_length(kAnswerBytes);
      if (server->mode == Mode::kBadBlock) *result->mutable_status() = ToProto(ErrnoError(EIO, "bad block"));
      if (server->mode == Mode::kChanging) *result->mutable_status() = ToProto(ErrnoError(EAGAIN, "changed"));
      if (request.read().versions() && server->mode != Mode::kOld) *result->mutable_version() = version;
      const std::vector<std::byte> bytes(kAnswerBytes, static_cast<std::byte>(server->content));
      std::vector<std::span<const std::byte>> buffers = {bytes};
      EXPECT_TRUE((co_await call->Put(0, buffers)).ok());
    }
    std::string text = reply.SerializeAsString();
    (void)co_await call->Reply(std::move(text));
  }
};

TEST_F(TargetsReadTest, AnswersOfTheHeadsVersionCount) {
  EXPECT_EQ(Read(Address(2)), "2");
  EXPECT_EQ(head_.questions, 1);
  EXPECT_EQ(head_.reads, 0);
  EXPECT_EQ(Read(""), "1");
  EXPECT_EQ(head_.questions, 1) << "the head's own bytes need no witness";
  EXPECT_EQ(other_.questions, 0);
}

TEST_F(TargetsReadTest, AnAnswerOfAnotherVersionIsTheHeadsToGive) {
  for (uint64_t changes : {0, 2}) {
    other_.changes = changes;
    EXPECT_EQ(Read(Address(2)), "1") << changes;
    EXPECT_EQ(Read(Address(2)), "1");
    EXPECT_EQ(other_.reads, 1) << "for a moment it is not asked for this object again";
    Pass(MemberChoice::kChangingPause);
    other_.reads = 0;
  }
}

TEST_F(TargetsReadTest, WhatAMemberCannotAnswerTheHeadDoes) {
  for (Mode mode : {Mode::kRefuses, Mode::kBadBlock, Mode::kChanging, Mode::kOld}) {
    other_.mode = mode;
    EXPECT_EQ(Read(Address(2)), "1") << static_cast<int>(mode);
    other_.mode = Mode::kAnswers;
    EXPECT_EQ(Read(Address(2)), "1") << static_cast<int>(mode) << ": not asked for a while";
    Pass(MemberChoice::kFirstPause);
    EXPECT_EQ(Read(Address(2)), "2") << static_cast<int>(mode) << ": it is well again";
  }
}

TEST_F(TargetsReadTest, AHeadThatKnowsOfNoVersionsIsReadItself) {
  head_.mode = Mode::kOld;
  EXPECT_EQ(Read(Address(2)), "1");
  EXPECT_EQ(Read(Address(2)), "1");
  EXPECT_EQ(head_.questions, 1);
}

TEST_F(TargetsReadTest, AFrozenMemberIsWaitedForOnceAndForSecondsOnly) {
  other_.mode = Mode::kFrozen;
  auto read = Start(Address(2));
  Pass(9s);
  EXPECT_FALSE(read->status);
  Pass(2s);
  ASSERT_TRUE(read->status);
  EXPECT_TRUE(read->status->ok()) << *read->status;
  EXPECT_EQ(read->bytes, std::string(kAnswerBytes, '1'));
  EXPECT_EQ(Read(Address(2)), "1");
  EXPECT_EQ(other_.reads, 1);
}

TEST_F(TargetsReadTest, AMemberThatTheMapKnowsToBeAwayIsNotWaitedFor) {
  other_.mode = Mode::kFrozen;
  auto read = Start(Address(2));
  EXPECT_FALSE(read->status);
  SetMap({1, 2}, /*out=*/1);
  ASSERT_TRUE(read->status);
  EXPECT_TRUE(read->status->ok()) << *read->status;
  EXPECT_EQ(read->bytes, std::string(kAnswerBytes, '1'));
  EXPECT_EQ(Read(Address(2)), "1");
  EXPECT_EQ(other_.reads, 1);
  other_.mode = Mode::kAnswers;
  SetMap({1, 2});
  EXPECT_EQ(Read(Address(2)), "2");
}

// The head is the only one who knows whether the member's bytes count.
TEST_F(TargetsReadTest, AHeadThatIsAwayIsWaitedFor) {
  head_.mode = Mode::kFrozen;
  auto read = Start(Address(2));
  Pass(5s);
  EXPECT_FALSE(read->status);
  SetMap({2, 3});  // what was the other one is the head now
  ASSERT_TRUE(read->status);
  EXPECT_TRUE(read->status->ok()) << *read->status;
  EXPECT_EQ(read->bytes, std::string(kAnswerBytes, '2'));
}

TEST_F(TargetsReadTest, ACancelledReadWaitsForNobodyBehindItsDeadline) {
  head_.mode = other_.mode = Mode::kFrozen;
  auto cancellation = std::make_shared<Cancellation>(clock_.Now() + 1s);
  auto read = Start(Address(2), cancellation);
  Pass(1s);
  cancellation->Cancel(ErrnoError(EINTR, "no more patience"));
  Pass(100ms);
  ASSERT_TRUE(read->status);
  EXPECT_EQ(ToErrno(*read->status), EINTR);
}

TEST_F(TargetsReadTest, SmallReadsGoToTheHead) {
  Targets careful(
      *transport_, clock_, RetryPolicy(), [](OstIndex, uint64_t) {}, MemberReads{.from = kAnswerBytes + 1});
  careful.Reset(1, 1);
  proto::ClusterMap map;
  map.add_osts()->set_address(Address(1));
  for (uint64_t n : {1, 2}) {
    proto::MemberState* member = map.mutable_osts(0)->add_members();
    member->set_address(Address(n));
    member->set_up(true);
    member->set_in_sync(true);
  }
  careful.SetMap(map);
  proto::ObjectRequest request;
  *request.mutable_read()->add_ranges()->mutable_object() = ToProto(ObjectOf(Address(2)));
  request.mutable_read()->mutable_ranges(0)->set_length(kAnswerBytes);
  std::string bytes(kAnswerBytes, '-');
  auto region = *transport_->Register(reinterpret_cast<std::byte*>(bytes.data()), bytes.size());
  std::optional<Status> ended;
  Spawn(context_.get_executor(),
        careful.Read(1, std::move(request), std::vector<MemorySpan>{{region, 0, bytes.size()}}),
        [&ended](StatusOr<proto::ObjectReply> reply) { ended = reply.status(); });
  Poll();
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(ended->ok()) << *ended;
  EXPECT_EQ(bytes.substr(0, 1), "1");
  EXPECT_EQ(other_.reads, 0);
  careful.Close();
}

TEST_F(TargetsReadTest, CloseEndsAReadThatAMemberHas) {
  other_.mode = Mode::kFrozen;
  auto read = Start(Address(2));
  targets_.Close();
  Poll();
  ASSERT_TRUE(read->status);
  EXPECT_EQ(ToErrno(*read->status), ESHUTDOWN);
}

}  // namespace
}  // namespace nacre::client
