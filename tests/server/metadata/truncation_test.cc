#include "server/metadata/truncation.h"

#include "tests/server/metadata/lease_clients.h"

namespace nacre::mds {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kBigFile = 1 << 20;

class TruncateTest : public testing::Test {
 protected:
  proto::Attr Attr(Fid fid) { return client.Getattr(fid).attr().attr(); }
  // Sends a truncation and does not wait for the reply.
  std::shared_ptr<std::optional<proto::MetadataReply>> StartTruncation(Fid fid, uint64_t size) {
    proto::MetadataRequest request;
    *request.mutable_setattr()->mutable_fid() = ToProto(fid);
    request.mutable_setattr()->set_set_size(true);
    request.mutable_setattr()->set_size(size);
    auto reply = std::make_shared<std::optional<proto::MetadataReply>>();
    client.Start(request, reply);
    return reply;
  }
  bool HasRecord(Fid fid) { return harness.store.Get(FidKey(Table::kTruncate, fid)).ok(); }

  // A file over all OSTs with `size` bytes, all of them 'x'.
  Fid Striped(uint64_t size) {
    Fid d = FidOf(client.Mkdir(kRootFid, "striped"));
    proto::MetadataRequest stripe;
    *stripe.mutable_set_layout()->mutable_fid() = ToProto(d);
    auto* component = stripe.mutable_set_layout()->mutable_layout()->add_components();
    component->set_end(~uint64_t{0});
    component->set_stripe_size(64 << 10);
    component->set_stripe_count(-1);
    EXPECT_THAT(client.Call(stripe), IsOk());
    auto made = client.Create(d, "f");
    Fid f = FidOf(made);
    proto::MetadataRequest out;
    *out.mutable_move_out()->mutable_fid() = ToProto(f);
    auto moved = client.Call(out);
    EXPECT_THAT(moved, IsOk());
    const auto& layout = moved.moved_out().layout();
    for (uint64_t at = 0; at < size; at += 64 << 10) {
      uint32_t stripe_number = static_cast<uint32_t>(at / (64 << 10) % 4);
      ObjectId id{layout.object_sequence(), stripe_number};
      auto& object =
          harness.osts.objects[layout.components(0).ost_group(static_cast<int>(stripe_number))][id];
      object.data.append(std::min<uint64_t>(size - at, 64 << 10), 'x');
      object.parent = f;
    }
    EXPECT_THAT(client.UpdateSize(f, size, static_cast<int64_t>(size / 512)), IsOk());
    return f;
  }
  std::vector<size_t> Sizes() {
    std::vector<size_t> sizes;
    for (auto& [ost, all] : harness.osts.objects) {
      for (auto& [id, object] : all) sizes.push_back(object.data.size());
    }
    return sizes;
  }

  Harness harness;
  TestClient client{harness};
};

TEST_F(TruncateTest, CutsTheObjects) {
  Fid f = Striped(kBigFile);
  uint32_t generation = Attr(f).layout_generation();
  ASSERT_THAT(client.Truncate(f, (64 << 10) * 5 + 100), IsOk());
  EXPECT_THAT(Sizes(),
              testing::UnorderedElementsAre(2 * (64u << 10), (64u << 10) + 100, 64u << 10, 64u << 10));
  EXPECT_EQ(Attr(f).size(), (64u << 10) * 5 + 100);
  EXPECT_GT(Attr(f).layout_generation(), generation);
}

// Else a loss of power could bring it back, and cut off what was written since.
TEST_F(TruncateTest, IsDurableWhenItIsAnswered) {
  Fid f = Striped(kBigFile);
  ASSERT_THAT(client.Truncate(f, 1000), IsOk());
  EXPECT_EQ(harness.store.unsynced_batches(), 0u);
}

TEST_F(TruncateTest, CutsAgainWhatALossOfPowerHasTakenBack) {
  Fid f = Striped(kBigFile);
  ASSERT_THAT(client.Truncate(f, (kBigFile)-1), IsOk());  // and syncs
  harness.osts.loses_power = {0, 1, 2, 3};
  ASSERT_THAT(client.Truncate(f, 1000), IsOk());
  EXPECT_THAT(harness.osts.loses_power, testing::IsEmpty());
  EXPECT_THAT(Sizes(), testing::UnorderedElementsAre(1000, 0, 0, 0));
}

TEST_F(TruncateTest, DestroysAgainWhatALossOfPowerHasBroughtBack) {
  Fid f = Striped(kBigFile);
  ASSERT_THAT(client.Truncate(f, (kBigFile)-1), IsOk());
  harness.osts.loses_power = {0, 1, 2, 3};
  ASSERT_THAT(client.Truncate(f, 0), IsOk());
  harness.RunFor(std::chrono::seconds(5));
  EXPECT_THAT(harness.osts.loses_power, testing::IsEmpty());
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
}

TEST_F(TruncateTest, ToZeroExchangesTheObjectsAndDestroysTheOldOnes) {
  Fid f = Striped(kBigFile);
  EXPECT_EQ(harness.osts.CountObjects(), 4u);
  auto cut = client.Truncate(f, 0);
  ASSERT_THAT(cut, IsOk());
  EXPECT_TRUE(cut.attr().attr().inline_data());
  EXPECT_EQ(cut.attr().attr().blocks(), 0u);
  harness.RunFor(std::chrono::seconds(3));
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
}

TEST_F(TruncateTest, IsDoneAfterACrashInBetween) {
  Fid f = Striped(kBigFile);
  harness.osts.away = {0, 1, 2, 3};
  auto reply = StartTruncation(f, 1000);
  harness.RunFor(std::chrono::seconds(2));
  EXPECT_FALSE(reply->has_value());
  harness.Restart();
  harness.osts.away = {};
  ASSERT_THAT(client.Connect(), IsOk());
  harness.RunFor(std::chrono::seconds(10));
  EXPECT_EQ(Attr(f).size(), 1000u);
  EXPECT_THAT(Sizes(), testing::UnorderedElementsAre(1000, 0, 0, 0));
}

TEST_F(TruncateTest, AWriteUnderTheOldLayoutIsRefused) {
  Fid f = Striped(kBigFile);
  uint32_t old = Attr(f).layout_generation();
  ASSERT_THAT(client.Truncate(f, 1000), IsOk());
  proto::MetadataRequest update;
  *update.mutable_update_size()->mutable_fid() = ToProto(f);
  update.mutable_update_size()->set_size(2000);
  update.mutable_update_size()->set_layout_generation(old);
  EXPECT_THAT(client.Call(update), Fails(ESTALE));
  update.mutable_update_size()->set_layout_generation(Attr(f).layout_generation());
  EXPECT_THAT(client.Call(update), IsOk());
}

// They looked for each other's turn for ever.
TEST_F(TruncateTest, SeveralThatWaitForItGoOn) {
  Fid f = Striped(kBigFile);
  harness.osts.away = {0};
  auto cut = StartTruncation(f, 1000);
  std::vector<std::shared_ptr<std::optional<proto::MetadataReply>>> replies;
  for (int i = 0; i < 5; ++i) {
    proto::MetadataRequest append;
    *append.mutable_append()->mutable_fid() = ToProto(f);
    append.mutable_append()->set_length(10);
    replies.push_back(std::make_shared<std::optional<proto::MetadataReply>>());
    client.Start(append, replies.back());
  }
  harness.RunFor(1s);
  harness.osts.away = {};
  client.StayFor(60s);
  ASSERT_TRUE(cut->has_value());
  for (const auto& reply : replies) {
    ASSERT_TRUE(reply->has_value());
    EXPECT_THAT(**reply, IsOk());
  }
  EXPECT_EQ(Attr(f).size(), 1050u);
}

TEST_F(TruncateTest, OfAFileThatIsRemovedMeanwhileLeavesNothing) {
  Fid f = Striped(kBigFile);
  ASSERT_THAT(client.Close(f), IsOk());
  harness.osts.away = {0, 1, 2, 3};
  auto reply = StartTruncation(f, 1000);
  harness.RunFor(std::chrono::seconds(1));
  Fid d = FidOf(client.Lookup(kRootFid, "striped"));
  ASSERT_THAT(client.Unlink(d, "f"), IsOk());
  harness.osts.away = {};
  harness.RunFor(std::chrono::seconds(40));
  ASSERT_TRUE(reply->has_value());
  EXPECT_THAT(**reply, Fails(ENOENT));
  harness.Restart();
  harness.RunFor(std::chrono::seconds(40));
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
}

// --- who asked for it does not matter once it is decided ---

TEST_F(TruncateTest, IsCompletedAfterTheEvictionOfWhoAskedForIt) {
  Fid f = Striped(kBigFile);
  harness.osts.away = {2};
  auto reply = StartTruncation(f, 1000);
  harness.RunFor(std::chrono::seconds(120));  // nothing is heard of the client any more
  TestClient other(harness);
  EXPECT_NE(other.session, client.session);
  EXPECT_TRUE(HasRecord(f));
  harness.osts.away = {};
  other.StayFor(std::chrono::seconds(60));
  EXPECT_EQ(other.Getattr(f).attr().attr().size(), 1000u);
  EXPECT_THAT(Sizes(), testing::UnorderedElementsAre(1000, 0, 0, 0));
  EXPECT_FALSE(HasRecord(f));
  ASSERT_THAT(other.UpdateSize(f, 5000), IsOk());
  harness.Restart();
  harness.RunFor(std::chrono::seconds(60));
  TestClient later(harness);
  EXPECT_EQ(later.Getattr(f).attr().attr().size(), 5000u);
}

TEST_F(TruncateTest, IsCompletedAlthoughTheOwnerTakesTheRightAway) {
  Fid f = Striped(kBigFile);
  ASSERT_THAT(client.Chown(f, 1000, 1000), IsOk());
  client.As(1000, 1000);
  harness.osts.away = {2};
  auto reply = StartTruncation(f, 1000);
  harness.RunFor(std::chrono::seconds(1));
  ASSERT_THAT(client.Chmod(f, 0), IsOk());
  harness.osts.away = {};
  client.StayFor(std::chrono::seconds(60));
  ASSERT_TRUE(reply->has_value());
  EXPECT_THAT(**reply, IsOk());
  EXPECT_EQ(Attr(f).size(), 1000u);
  EXPECT_EQ(Attr(f).mode() & 07777, 0u);
}

TEST_F(TruncateTest, OtherAttributesOfTheRequestAreSetOnce) {
  Fid f = Striped(kBigFile);
  proto::MetadataRequest request;
  *request.mutable_setattr()->mutable_fid() = ToProto(f);
  request.mutable_setattr()->set_set_size(true);
  request.mutable_setattr()->set_size(1000);
  request.mutable_setattr()->set_set_mode(true);
  request.mutable_setattr()->set_mode(0600);
  request.mutable_setattr()->set_set_mtime(true);
  request.mutable_setattr()->mutable_mtime()->set_seconds(77);
  ASSERT_THAT(client.Call(request), IsOk());
  EXPECT_EQ(Attr(f).mode() & 07777, 0600u);
  EXPECT_EQ(Attr(f).mtime().seconds(), 77);
  EXPECT_EQ(Attr(f).size(), 1000u);
}

// --- an OST that cannot ---

TEST_F(TruncateTest, SaysSoAndGoesOnWhenAnOstCannotCut) {
  Fid f = Striped(kBigFile);
  harness.osts.refuses[2] = EIO;
  auto reply = StartTruncation(f, 1000);
  harness.RunFor(std::chrono::seconds(10));
  ASSERT_TRUE(reply->has_value());
  EXPECT_THAT(**reply, Fails(EIO));
  EXPECT_TRUE(HasRecord(f));
  EXPECT_EQ(Attr(f).size(), kBigFile);
  auto update = std::make_shared<std::optional<proto::MetadataReply>>();
  proto::MetadataRequest grow;
  *grow.mutable_update_size()->mutable_fid() = ToProto(f);
  grow.mutable_update_size()->set_size(2 * kBigFile);
  client.Start(grow, update);
  harness.RunFor(std::chrono::seconds(1));
  EXPECT_FALSE(update->has_value()) << "the file grew while it was being cut";
  harness.osts.refuses.clear();
  client.StayFor(std::chrono::seconds(60));
  EXPECT_FALSE(HasRecord(f));
  EXPECT_THAT(Sizes(), testing::UnorderedElementsAre(1000, 0, 0, 0));
  ASSERT_TRUE(update->has_value());
  EXPECT_THAT(**update, IsOk());
  EXPECT_EQ(Attr(f).size(), 2 * kBigFile);
}

TEST_F(TruncateTest, AnErrorThatPassesIsNotTold) {
  Fid f = Striped(kBigFile);
  harness.osts.refuses[2] = EIO;
  auto reply = StartTruncation(f, 1000);
  harness.RunFor(std::chrono::seconds(1));
  EXPECT_FALSE(reply->has_value());
  harness.osts.refuses.clear();
  harness.RunFor(std::chrono::seconds(2));
  ASSERT_TRUE(reply->has_value());
  EXPECT_THAT(**reply, IsOk());
  EXPECT_FALSE(HasRecord(f));
  EXPECT_THAT(Sizes(), testing::UnorderedElementsAre(1000, 0, 0, 0));
}

TEST_F(TruncateTest, WaitsForRoomInTheMdt) {
  Fid f = Striped(kBigFile);
  int commits = 0;
  harness.store.SetCommitHook(
      [&](const KvBatch&) { return commits++ == 1 ? ErrnoError(ENOSPC, "full") : OkStatus(); });
  auto reply = StartTruncation(f, 1000);
  client.StayFor(std::chrono::seconds(60));
  ASSERT_TRUE(reply->has_value());
  EXPECT_THAT(**reply, IsOk());
  EXPECT_EQ(Attr(f).size(), 1000u);
  EXPECT_FALSE(HasRecord(f));
}

// --- what goes past it ---

TEST_F(TruncateTest, ToZeroDoesNotWaitForOneThatHangs) {
  Fid f = Striped(kBigFile);
  harness.osts.away = {2};
  auto reply = StartTruncation(f, 1000);
  harness.RunFor(std::chrono::seconds(1));
  ASSERT_THAT(client.Truncate(f, 0), IsOk());
  EXPECT_FALSE(HasRecord(f));
  proto::MetadataRequest write;
  *write.mutable_write_inline()->mutable_fid() = ToProto(f);
  write.mutable_write_inline()->set_data("new");
  ASSERT_THAT(client.Call(write), IsOk());
  client.StayFor(std::chrono::seconds(70));  // still away
  ASSERT_TRUE(reply->has_value());
  EXPECT_THAT(**reply, IsOk());
  EXPECT_EQ(Attr(f).size(), 3u);
  harness.osts.away = {};
  client.StayFor(std::chrono::seconds(10));
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
  EXPECT_EQ(client.Lookup(FidOf(client.Lookup(kRootFid, "striped")), "f", true).entry().data(), "new");
}

TEST_F(TruncateTest, OpenWithTruncationDoesNotWaitForOneThatHangs) {
  Fid f = Striped(kBigFile);
  harness.osts.away = {2};
  auto reply = StartTruncation(f, 1000);
  harness.RunFor(std::chrono::seconds(1));
  ASSERT_THAT(client.Open(f, O_RDWR | O_TRUNC), IsOk());
  EXPECT_FALSE(HasRecord(f));
  harness.Restart();
  harness.osts.away = {};
  client.Reconnect();
  client.StayFor(std::chrono::seconds(10));
  EXPECT_EQ(Attr(f).size(), 0u);
}

TEST_F(TruncateTest, ALayoutIsRefusedWithoutWaitingForOneThatHangs) {
  Fid f = Striped(kBigFile);
  harness.osts.away = {2};
  auto reply = StartTruncation(f, 1000);
  harness.RunFor(std::chrono::seconds(1));
  proto::MetadataRequest layout;
  *layout.mutable_set_layout()->mutable_fid() = ToProto(f);
  layout.mutable_set_layout()->mutable_layout()->add_components()->set_end(~uint64_t{0});
  auto refused = std::make_shared<std::optional<proto::MetadataReply>>();
  client.Start(layout, refused);
  harness.RunFor(std::chrono::seconds(1));
  ASSERT_TRUE(refused->has_value());
  EXPECT_THAT(**refused, Fails(EBUSY));
}

// --- restarts ---

TEST_F(TruncateTest, ARecordOfAnotherLayoutIsVoid) {
  Fid f = Striped(kBigFile);
  for (const std::string& record :
       {EncodeNumber(1000), EncodeTruncate({1000, 1, 999, 0, 0}), std::string("damaged")}) {
    KvBatch batch;
    batch.Put(FidKey(Table::kTruncate, f), record);
    ASSERT_TRUE(harness.Await(harness.store.Commit(std::move(batch))).ok());
    harness.Restart();
    client.Reconnect();
    client.StayFor(std::chrono::seconds(10));
    EXPECT_EQ(Attr(f).size(), kBigFile);
    EXPECT_EQ(HasRecord(f), record == "damaged");
  }
}

TEST_F(TruncateTest, ARepeatFindsTheReplyAndDoesNotCutAgain) {
  Fid f = Striped(kBigFile);
  harness.osts.away = {2};
  auto lost = StartTruncation(f, 1000);
  const uint64_t sequence = client.sequence;
  harness.RunFor(std::chrono::seconds(1));
  harness.Restart();
  client.Reconnect();
  client.sequence = sequence - 1;  // a repeat while it is not done yet
  auto early = StartTruncation(f, 1000);
  harness.RunFor(std::chrono::seconds(1));
  EXPECT_FALSE(early->has_value());
  harness.osts.away = {};
  client.StayFor(std::chrono::seconds(60));
  ASSERT_TRUE(early->has_value());
  EXPECT_THAT(**early, IsOk());
  EXPECT_EQ((*early)->attr().attr().size(), 1000u);
  TestClient other(harness);
  ASSERT_THAT(other.UpdateSize(f, 5000), IsOk());
  client.sequence = sequence - 1;
  auto late = StartTruncation(f, 1000);
  harness.RunFor(std::chrono::seconds(1));
  ASSERT_TRUE(late->has_value());
  EXPECT_EQ((*late)->attr().attr().size(), 1000u);
  EXPECT_EQ(Attr(f).size(), 5000u);
}

// The server stops after each commit in its turn: afterwards the file is as it was, or cut, and never in
// between; and whoever repeats the request does not undo what others have done since.
class TruncateCrashTest : public TruncateTest, public testing::WithParamInterface<int> {
 protected:
  void RestartMachine() {
    harness.RestartStopped();
    client.Reconnect();
    client.StayFor(std::chrono::seconds(10));
  }
};

TEST_P(TruncateCrashTest, LeavesTheOldFileOrTheNewOne) {
  Fid f = Striped(kBigFile);
  const std::vector<size_t> before = Sizes();
  harness.StopAfterCommits(GetParam());
  auto reply = StartTruncation(f, 1000);
  const uint64_t sequence = client.sequence;
  harness.RunFor(std::chrono::seconds(1));
  RestartMachine();
  EXPECT_FALSE(HasRecord(f));
  const bool cut = Attr(f).size() == 1000;
  EXPECT_EQ(cut, GetParam() > 0);
  EXPECT_EQ(Attr(f).size(), cut ? 1000 : kBigFile);
  const std::vector<size_t> after = {1000, 0, 0, 0};
  EXPECT_THAT(Sizes(), testing::UnorderedElementsAreArray(cut ? after : before));
  TestClient other(harness);
  ASSERT_THAT(other.UpdateSize(f, cut ? 5000 : 2 * kBigFile), IsOk());
  client.sequence = sequence - 1;
  auto repeated = StartTruncation(f, 1000);
  client.StayFor(std::chrono::seconds(10));
  ASSERT_TRUE(repeated->has_value());
  EXPECT_THAT(**repeated, IsOk());
  EXPECT_EQ((*repeated)->attr().attr().size(), 1000u);
  EXPECT_EQ(Attr(f).size(), cut ? 5000u : 1000u) << "the repeat was carried out again";
}

INSTANTIATE_TEST_SUITE_P(EachCommit, TruncateCrashTest, testing::Range(0, 4));

}  // namespace
}  // namespace nacre::mds
