// Sizes of files after the MDT has lost power: what clients were told that it has, the OSTs still know.
// (Of sessions that have ended: eviction_test.cc.)
#include "server/metadata/writer_recovery.h"

#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kWritten = 50000;

class MdtLosesPower : public testing::Test {
 protected:
  // A file with an object, which is durable with nothing in it.
  MdtLosesPower() {
    harness_.RunFor(2s);
    file_ = FidOf(client_.Create(kRootFid, "f"));
    proto::MetadataRequest out;
    *out.mutable_move_out()->mutable_fid() = ToProto(file_);
    layout_ = client_.Call(out).moved_out().layout();
    ost_ = layout_.components(0).ost_group(0);
    Sync();
  }
  void Sync() {
    proto::MetadataRequest sync;
    sync.mutable_sync();
    ASSERT_THAT(client_.Call(sync), IsOk());
  }
  void Write() {
    const ObjectId id{layout_.object_sequence(), 0};
    harness_.osts.objects[ost_][id] = {std::string(kWritten, 'x'), file_};
    harness_.osts.grown[ost_].insert({client_.session, id});
  }
  void WriteAndTell() {
    Write();
    ASSERT_THAT(client_.UpdateSize(file_, kWritten, 104), IsOk());
  }
  proto::Attr Attr() { return client_.Getattr(file_).attr().attr(); }

  Harness harness_{4};
  TestClient client_{harness_};
  Fid file_;
  proto::Layout layout_;
  OstIndex ost_ = 0;
};

TEST_F(MdtLosesPower, ASizeThatWasAnsweredIsThereAgainBeforeAnybodySeesTheFile) {
  WriteAndTell();
  harness_.LosePower();
  client_.Reconnect();
  EXPECT_EQ(Attr().size(), kWritten);
  EXPECT_GT(Attr().blocks(), 0u);
  EXPECT_TRUE(harness_.osts.grown[ost_].empty()) << "settled";
}

// Every OST's pass comes to it, at the same time.
TEST_F(MdtLosesPower, AFileOfManyStripesIsAsLongAsTheFarthest) {
  constexpr uint64_t kStripe = 65536;
  const Fid striped = FidOf(client_.Create(kRootFid, "striped"));
  proto::MetadataRequest stripe;
  *stripe.mutable_set_layout()->mutable_fid() = ToProto(striped);
  auto* component = stripe.mutable_set_layout()->mutable_layout()->add_components();
  component->set_end(~uint64_t{0});
  component->set_stripe_size(kStripe);
  component->set_stripe_count(-1);
  ASSERT_THAT(client_.Call(stripe), IsOk());
  proto::MetadataRequest out;
  *out.mutable_move_out()->mutable_fid() = ToProto(striped);
  const proto::Layout layout = client_.Call(out).moved_out().layout();
  Sync();
  const auto count = static_cast<uint32_t>(layout.components(0).ost_group_size());
  ASSERT_EQ(count, 4u);
  for (uint32_t i = 0; i < count; ++i) {
    const ObjectId id{layout.object_sequence(), i};
    const OstIndex ost = layout.components(0).ost_group(static_cast<int>(i));
    harness_.osts.objects[ost][id] = {std::string(kStripe - 1, 'x'), striped};
    harness_.osts.grown[ost].insert({client_.session, id});
  }
  harness_.LosePower();
  client_.Reconnect();
  EXPECT_EQ(client_.Getattr(striped).attr().attr().size(), count * kStripe - 1);
}

TEST_F(MdtLosesPower, WhoEmptiesTheFileAfterwardsGetsOtherObjects) {
  WriteAndTell();
  harness_.LosePower();
  client_.Reconnect();
  ASSERT_THAT(client_.Truncate(file_, 0), IsOk());
  harness_.RunFor(5s);
  EXPECT_EQ(harness_.osts.CountObjects(), 0u);
}

TEST_F(MdtLosesPower, TheEndOfTheProcessAloneLeavesItToTheClient) {
  Write();
  harness_.Restart();
  client_.Reconnect();
  client_.StayFor(10s);
  EXPECT_EQ(Attr().size(), 0u) << "it may not be through with its write";
  EXPECT_FALSE(harness_.osts.grown[ost_].empty());
}

TEST_F(MdtLosesPower, AnOstThatIsAwayIsWaitedForForSecondsOnly) {
  WriteAndTell();
  harness_.osts.away = {ost_};
  harness_.LosePower();
  const Duration began = harness_.clock.Now();
  client_.Reconnect();
  EXPECT_LT(harness_.clock.Now() - began, 1s) << "the session needs no size";
  EXPECT_EQ(Attr().size(), 0u);
  EXPECT_LT(harness_.clock.Now() - began, 15s);
  harness_.osts.away = {};
  client_.StayFor(15s);
  EXPECT_EQ(Attr().size(), kWritten);
}

// Its new objects would be cut where the MDT believes that it ends.
TEST_F(MdtLosesPower, AFileIsNotMovedWhileAnOstMayKnowItsEnd) {
  WriteAndTell();
  harness_.osts.on_call = [](const std::string&, const proto::ObjectRequest& request) {
    return request.has_list_grown() ? absl::UnavailableError("later") : OkStatus();
  };
  harness_.LosePower();
  client_.Reconnect();
  client_.StayFor(15s);
  ASSERT_EQ(Attr().size(), 0u);
  proto::AdminRequest move;
  *move.mutable_migrate()->mutable_fid() = ToProto(file_);
  proto::AdminReply reply;
  for (int i = 0; i < 100 && reply.status().error() == 0 && !reply.migrate().done(); ++i) {
    reply = harness_.Await(harness_.server->Administer(move));
    client_.StayFor(100ms);
  }
  EXPECT_NE(reply.status().error(), 0u);
  EXPECT_THAT(reply.status().message(), testing::HasSubstr("where its files end"));
  harness_.osts.on_call = nullptr;
  client_.StayFor(15s);
  EXPECT_EQ(Attr().size(), kWritten);
}

TEST_F(MdtLosesPower, ARestartBeforeTheOstIsBackForgetsNothing) {
  WriteAndTell();
  harness_.osts.away = {ost_};
  harness_.LosePower();
  client_.Reconnect();
  client_.StayFor(15s);
  harness_.Restart();
  harness_.osts.away = {};
  client_.Reconnect();
  EXPECT_EQ(Attr().size(), kWritten);
}

TEST_F(MdtLosesPower, OnceIsEnough) {
  WriteAndTell();
  harness_.LosePower();
  client_.Reconnect();
  client_.StayFor(5s);
  harness_.Restart();
  harness_.osts.away = {ost_};
  const Duration began = harness_.clock.Now();
  client_.Reconnect();
  EXPECT_EQ(Attr().size(), kWritten);
  EXPECT_LT(harness_.clock.Now() - began, 1s) << "nobody waits for the OST";
}

TEST_F(MdtLosesPower, NoLayoutGenerationIsGivenTwice) {
  WriteAndTell();
  Sync();
  ASSERT_THAT(client_.Truncate(file_, 0), IsOk());
  const uint32_t lost = Attr().layout_generation();
  harness_.LosePower();
  client_.Reconnect();
  ASSERT_LT(Attr().layout_generation(), lost);
  ASSERT_THAT(client_.Truncate(file_, 0), IsOk());
  EXPECT_GT(Attr().layout_generation(), lost) << "whoever wrote by that one must be told";
}

}  // namespace
}  // namespace nacre::mds
