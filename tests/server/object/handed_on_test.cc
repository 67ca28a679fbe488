// A member of a chain and the changes that its head hands on, or once did (server/object/chain.h).
#include <gtest/gtest.h>

#include <cerrno>

#include "server/object/change_proto.h"
#include "server/object/heard_turns.h"
#include "tests/server/object/chain_fixture.h"

namespace nacre {
namespace {

constexpr ObjectId kOne{7, 0};

class HandedOn : public testing::Test {
 protected:
  // Sends a member what its head might, and returns the error it answers with.
  int HandOn(int to, const proto::ObjectRequest& request) {
    auto peer = *f.transports[ChainFixture::kServers]->Connect(absl::StrCat("inproc:oss", to));
    CallRequest call;
    call.body = request.SerializeAsString();
    auto body = f.Run(peer->Call(std::move(call), 5s));
    proto::ObjectReply reply;
    EXPECT_TRUE(body.ok() && reply.ParseFromString(*body));
    return static_cast<int>(reply.status().error());
  }
  // That `id` is made, as the last change of a session's request.
  proto::ObjectRequest Making(ObjectId id, SessionId session, uint64_t sequence, uint64_t turn) {
    proto::ObjectRequest request;
    request.set_session(session);
    request.set_sequence(sequence);
    request.set_low_water(sequence);
    request.set_chain_epoch(f.judge->chain.epoch());
    request.set_chain_turn(turn);
    request.set_chain_low_water(1);
    *request.mutable_apply()->mutable_object() = ToProto(id);
    *request.mutable_apply()->mutable_after() = ToProto(ost::ObjectVersion{f.judge->chain.epoch(), 1});
    request.mutable_apply()->set_size(1000);
    request.mutable_apply()->set_ends_request(true);
    return request;
  }

  ChainFixture f;
};

// A call that was under way on a connection that broke may arrive after it has been sent again and answered,
// and after others have followed. Seed 612000681 of OSTs with two members: the end of an object's copy made
// the object as it had been before the next write.
TEST_F(HandedOn, ALateCopyOfWhatWasHandedOnIsRefused) {
  f.SetChain({0, 1});
  const uint32_t epoch = f.judge->chain.epoch();
  auto send = [&](uint64_t turn, uint64_t low_water, std::optional<uint64_t> before, uint64_t after) {
    proto::ObjectRequest request;
    request.set_chain_epoch(epoch);
    request.set_chain_turn(turn);
    request.set_chain_low_water(low_water);
    proto::ApplyChange* apply = request.mutable_apply();
    *apply->mutable_object() = ToProto(kOne);
    if (before) *apply->mutable_before() = ToProto(ost::ObjectVersion{epoch, *before});
    *apply->mutable_after() = ToProto(ost::ObjectVersion{epoch, after});
    apply->set_size(1000 * after);
    return HandOn(1, request);
  };
  EXPECT_EQ(send(7, 5, std::nullopt, 1), 0);
  EXPECT_EQ(send(7, 5, std::nullopt, 1), 0);  // 7 is waited for still
  EXPECT_EQ(send(8, 8, 1, 2), 0);
  EXPECT_EQ(send(7, 5, std::nullopt, 1), ESTALE);
  EXPECT_EQ(send(9, 10, 2, 3), EPROTO);
  EXPECT_EQ(send(8, 8, 1, 2), 0);  // has been made
  const std::map<std::string, std::string> contents = f.Contents(1);
  ASSERT_TRUE(contents.contains(kOne.ToString()));
  EXPECT_TRUE(contents.at(kOne.ToString()).starts_with(absl::StrFormat("version %d.2, 2000 bytes", epoch)))
      << contents.at(kOne.ToString());
}

// The same while an earlier call takes long, so that the lowest one that is waited for does not rise. Seed
// 1753000812 of three MDSes and OSTs with two members: a piece of an object's copy came once more when the
// copy was finished.
TEST_F(HandedOn, ALateCopyIsRefusedAlsoWhileAnEarlierCallTakesLong) {
  f.SetChain({0}, {1});
  const uint32_t epoch = f.judge->chain.epoch();
  auto copy = [&](uint64_t turn, std::vector<uint64_t> under_way, bool finished) {
    proto::ObjectRequest request;
    request.set_chain_epoch(epoch);
    request.set_chain_turn(turn);
    request.set_chain_low_water(1000);  // behind those of the real head
    request.mutable_chain_under_way()->mutable_turns()->Assign(under_way.begin(), under_way.end());
    proto::ApplyChange* apply = request.mutable_apply();
    *apply->mutable_object() = ToProto(kOne);
    if (finished) *apply->mutable_after() = ToProto(ost::ObjectVersion{epoch, 5});
    apply->set_size(1000);
    return HandOn(1, request);
  };
  EXPECT_EQ(copy(1001, {1000}, false), 0);
  EXPECT_EQ(copy(1001, {1000}, false), 0);  // the answer was lost
  EXPECT_EQ(copy(1002, {1000}, true), 0);
  EXPECT_EQ(copy(1001, {1000}, false), ESTALE);
  EXPECT_EQ(copy(1000, {}, true), 0);  // that one is waited for still
}

TEST(HeardTurns, ACallIsOverWhenALaterOneDoesNotNameIt) {
  ost::HeardTurns heard;
  auto hear = [&heard](uint64_t turn, std::vector<uint64_t> under_way) {
    proto::ObjectRequest call;
    call.set_chain_turn(turn);
    call.set_chain_low_water(under_way.empty() ? turn : under_way.front());
    call.mutable_chain_under_way()->mutable_turns()->Assign(under_way.begin(), under_way.end());
    EXPECT_TRUE(heard.Hear(call).ok());
  };
  hear(5, {3, 4});
  for (uint64_t turn : {3, 4, 5, 6}) EXPECT_FALSE(heard.IsOver(turn)) << turn;
  EXPECT_TRUE(heard.IsOver(2));
  hear(4, {3});  // it was sent before 5 and comes behind it
  EXPECT_FALSE(heard.IsOver(5));
  hear(8, {3, 7});
  for (uint64_t turn : {4, 5, 6}) EXPECT_TRUE(heard.IsOver(turn)) << turn;
  for (uint64_t turn : {3, 7, 8}) EXPECT_FALSE(heard.IsOver(turn)) << turn;
  hear(7, {3});  // again
  EXPECT_FALSE(heard.IsOver(8));
}

TEST(HeardTurns, ASenderThatSaysTheLowestAloneIsBelievedThat) {
  ost::HeardTurns heard;
  proto::ObjectRequest call;
  call.set_chain_turn(9);
  call.set_chain_low_water(5);
  EXPECT_TRUE(heard.Hear(call).ok());
  EXPECT_TRUE(heard.IsOver(4));
  for (uint64_t turn : {5, 8, 9, 10}) EXPECT_FALSE(heard.IsOver(turn)) << turn;
}

// Seed 952000382 of OSTs with two members: the member had what the head had handed on before it lost its
// place, and had not done itself. The filling took that away; when the client asked again, the member
// answered that it had done it.
TEST_F(HandedOn, WhatAMemberHadDoneAloneIsDoneAgain) {
  f.SetChain({0, 1});
  const uint64_t sequence = f.sequence;
  auto client = f.Client(0, 5);
  ASSERT_EQ(HandOn(1, Making(kOne, 5, sequence, 1)), 0);

  f.SetChain({0}, {1});
  ASSERT_TRUE(f.RunUntil([&] { return f.judge->chain.members_size() == 2; }));
  ASSERT_TRUE(f.Write(client.get(), kOne, 0, "asked again").ok());
  f.Crash(1);
  f.Start(1);
  const auto want = f.Contents(0);
  ASSERT_TRUE(want.contains(kOne.ToString()));
  EXPECT_EQ(f.Contents(1), want);
}

// Seed 1219000065 of OSTs with two members: the head still did what the MDS before its restart had asked for,
// and handed it on behind what the MDS asks now, which says that it waits for none of the earlier ones.
TEST_F(HandedOn, WhatNobodyWaitsForIsHandedOnAllTheSame) {
  f.SetChain({0, 1});
  EXPECT_EQ(HandOn(1, Making({1, 0}, 0, 200, 1)), 0);
  EXPECT_EQ(HandOn(1, Making({2, 0}, 0, 100, 2)), 0);
  EXPECT_EQ(f.Contents(1).size(), 2);
}

// Seed 1305000148 of OSTs with three members: one behind the head had done what a head before had handed on,
// and then another one was filled behind it, which had not.
TEST_F(HandedOn, WhatAMemberHasDoneGoesOnToThoseBehindIt) {
  f.SetChain({0, 1});
  auto client = f.Client(0, 5), mds = f.Client(0, 0);
  ASSERT_TRUE(f.Write(client.get(), kOne, 0, "x").ok());
  proto::ObjectRequest destroy = Making(kOne, 0, 1, 7);
  destroy.clear_sequence();
  destroy.clear_low_water();
  destroy.mutable_apply()->set_destroy(true);
  *destroy.mutable_apply()->mutable_before() = destroy.apply().after();
  *destroy.mutable_apply()->mutable_after() = ToProto(ost::ObjectVersion{});
  ASSERT_EQ(HandOn(1, destroy), 0);
  f.SetChain({0, 1}, {2});
  ASSERT_TRUE(f.RunUntil([&] { return f.judge->chain.members_size() == 3; }));
  proto::ObjectRequest request;
  *request.mutable_destroy()->add_objects() = ToProto(kOne);
  ASSERT_TRUE(f.Change(mds.get(), std::move(request)).ok());
  EXPECT_EQ(f.judge->chain.members_size(), 3);
  for (int i : {0, 1, 2}) EXPECT_TRUE(f.Contents(i).empty()) << i;
}

// A request whose answer a member has, from a head before, is done by the head with another version.
TEST_F(HandedOn, WhatAMemberHasAnsweredIsComparedAllTheSame) {
  f.SetChain({0, 1});
  const uint64_t sequence = f.sequence;
  auto client = f.Client(0, 5);
  ASSERT_EQ(HandOn(1, Making(kOne, 5, sequence, 1)), 0);
  f.SetChain({0, 1});
  ASSERT_TRUE(f.Write(client.get(), kOne, 0, "x").ok());
  EXPECT_EQ(f.judge->chain.members_size(), 1) << "it is to be filled";
}

// Seed 8800133 of OSTs with three members: the last one had done what the head had handed on when it ended,
// the one between had not, and the client that had asked for it had ended as well.
TEST_F(HandedOn, AMemberThatIsAheadOfANewHeadIsFilledAgain) {
  f.SetChain({0, 1, 2});
  ASSERT_EQ(HandOn(2, Making(kOne, 5, 1, 1)), 0);
  f.Crash(0);
  f.SetChain({1, 2});
  ASSERT_TRUE(f.RunUntil([&] { return f.judge->chain.members_size() == 1; }));
  auto client = f.Client(1, 6);
  ASSERT_TRUE(f.Write(client.get(), {9, 0}, 0, "x").ok()) << "it serves";
  f.SetChain({1}, {2});
  ASSERT_TRUE(f.RunUntil([&] { return f.judge->chain.members_size() == 2; }));
  const auto want = f.Contents(1);
  EXPECT_FALSE(want.contains(kOne.ToString()));
  EXPECT_EQ(f.Contents(2), want);
}

TEST_F(HandedOn, ANewHeadGoesOnWithAMemberThatIsNotAhead) {
  f.SetChain({0, 1, 2});
  auto client = f.Client(0, 5);
  ASSERT_TRUE(f.Write(client.get(), kOne, 0, "x").ok());
  f.Crash(0);
  f.SetChain({1, 2});
  auto other = f.Client(1, 5);
  ASSERT_TRUE(f.Write(other.get(), kOne, 0, "y").ok());
  EXPECT_EQ(f.judge->chain.members_size(), 2);
}

// The epoch is the same when the head has asked, so the member knows of no later one.
TEST_F(HandedOn, AMemberThatRefusesForGoodIsTakenOut) {
  f.SetChain({0, 1});
  auto client = f.Client(0, 5);
  proto::ObjectRequest fence;
  fence.set_chain_epoch(f.judge->chain.epoch());
  fence.set_chain_turn(1);
  fence.set_chain_low_water(1);
  fence.mutable_fence()->set_session(5);
  ASSERT_EQ(HandOn(1, fence), 0);
  EXPECT_TRUE(f.Write(client.get(), kOne, 0, "x").ok());
  EXPECT_EQ(f.judge->chain.members_size(), 1);
}

TEST_F(HandedOn, MalformedChangesAreRefused) {
  f.SetChain({0, 1});
  auto send = [&](auto fill) {
    proto::ObjectRequest request;
    request.set_chain_epoch(f.judge->chain.epoch());
    *request.mutable_apply()->mutable_object() = ToProto(kOne);
    fill(request.mutable_apply());
    return HandOn(1, request);
  };
  auto edit = [](proto::ApplyChange* change, uint64_t first, uint64_t count) {
    proto::BlockEdit* added = change->add_edits();
    added->set_first(first);
    added->set_count(count);
    added->set_kind(proto::BlockEdit::HOLE);
    return added;
  };
  EXPECT_EQ(send([&](proto::ApplyChange* change) { edit(change, 4, 0); }), EINVAL);
  EXPECT_EQ(send([&](proto::ApplyChange* change) { edit(change, 4, ~uint64_t{0}); }), EINVAL);
  EXPECT_EQ(send([&](proto::ApplyChange* change) {
              edit(change, 4, 4);
              edit(change, 7, 1);
            }),
            EINVAL);
  EXPECT_EQ(
      send([&](proto::ApplyChange* change) { edit(change, 0, 1)->set_kind(proto::BlockEdit::WRITTEN); }),
      EINVAL)
      << "no checksum";
  EXPECT_EQ(send([&](proto::ApplyChange* change) {
              edit(change, 0, 1)->set_kind(proto::BlockEdit::WRITTEN);
              change->add_crc(1);
            }),
            EINVAL)
      << "no memory";
  EXPECT_EQ(send([&](proto::ApplyChange* change) {
              change->mutable_before()->set_changes(3);
              change->mutable_after()->set_changes(4);
            }),
            EBADMSG);
}

}  // namespace
}  // namespace nacre
