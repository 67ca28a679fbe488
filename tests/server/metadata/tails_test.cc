// Appended bytes that the MDT has until they are in the objects: that nobody is given the layout before, and
// that none is lost, or written a second time over what others have written since.
#include "server/metadata/tails.h"

#include "tests/server/metadata/growth_fixture.h"

namespace nacre::mds {
namespace {

using namespace std::chrono_literals;

class TailsTest : public GrowthTest {
 protected:
  TailsTest() : f(MakeFile("f", first)) {}

  proto::MetadataRequest AppendRequest(const std::string& data) {
    proto::MetadataRequest request;
    *request.mutable_append()->mutable_fid() = ToProto(f);
    request.mutable_append()->set_length(data.size());
    request.mutable_append()->set_data(data);
    return request;
  }
  proto::MetadataReply Append(const std::string& data) { return client.Call(AppendRequest(data)); }
  proto::MetadataReply Tell(uint32_t generation, uint64_t size) {
    proto::MetadataRequest request;
    *request.mutable_update_size()->mutable_fid() = ToProto(f);
    request.mutable_update_size()->set_size(size);
    request.mutable_update_size()->set_layout_generation(generation);
    return client.Call(request);
  }
  // Of the file's one object, which the MDS is not asked for.
  std::string Object() {
    for (const auto& [ost, all] : harness.osts.objects)
      for (const auto& [id, object] : all) return object.data;
    return {};
  }
  OstIndex Ost() {
    for (const auto& [ost, all] : harness.osts.objects)
      if (!all.empty()) return ost;
    return 0;
  }
  uint32_t Generation() { return Attr(f).layout_generation(); }

  const std::string first = Pattern(kMiB + 100), second = "second", third = Pattern(70'000);
  const Fid f;
};

TEST_F(TailsTest, AnAppendIsOneCommitAndTheObjectsHaveItWhenTheLayoutIsGivenOut) {
  const auto reply = Append(second);
  ASSERT_THAT(reply, IsOk());
  EXPECT_TRUE(reply.append().stored());
  EXPECT_EQ(reply.append().offset(), first.size());
  EXPECT_EQ(reply.append().attr().size(), first.size() + second.size());
  ASSERT_TRUE(Append(third).append().stored());
  EXPECT_TRUE(Object() == first);
  EXPECT_EQ(Records(Table::kTail), 2u);
  EXPECT_TRUE(ReadObjects(f) == first + second + third);
  EXPECT_EQ(Records(Table::kTail), 0u);
  EXPECT_EQ(harness.store.unsynced_batches(), 0u);  // else a loss of power could bring the records back
}

TEST_F(TailsTest, NeitherALookupNorAnOpenGivesTheLayoutOutOrWaits) {
  ASSERT_TRUE(Append(second).append().stored());
  harness.osts.away = {0, 1, 2, 3};
  const auto found = client.Lookup(kRootFid, "f", /*layout=*/true);
  EXPECT_THAT(found, IsOk());
  EXPECT_EQ(found.entry().layout().components_size(), 0);
  EXPECT_EQ(found.entry().attr().size(), first.size() + second.size());
  const auto opened = client.Open(f);
  EXPECT_THAT(opened, IsOk());
  EXPECT_EQ(opened.entry().layout().components_size(), 0);
}

TEST_F(TailsTest, IsWrittenAfterAWhile) {
  ASSERT_TRUE(Append(second).append().stored());
  client.StayFor(4s);
  EXPECT_TRUE(Object() == first + second);
  EXPECT_EQ(Records(Table::kTail), 0u);
}

TEST_F(TailsTest, IsWrittenWhenItIsLong) {
  const std::string much = Pattern(kMiB);
  ASSERT_TRUE(Append(much).append().stored());
  EXPECT_TRUE(Object() == first);
  ASSERT_TRUE(Append(second).append().stored());
  EXPECT_TRUE(Object() == first + much);
  EXPECT_TRUE(ReadObjects(f) == first + much + second);
}

TEST_F(TailsTest, IsWrittenWhenItHasManyRecords) {
  std::string all = first;
  for (int i = 0; i < 4100; ++i) {
    ASSERT_TRUE(Append("x").append().stored());
    all += "x";
  }
  EXPECT_LT(Records(Table::kTail), 100u);
  EXPECT_TRUE(ReadObjects(f) == all);
}

TEST_F(TailsTest, WhoWantsToMoveTheFileOutIsGivenTheLayoutBehindIt) {
  ASSERT_TRUE(Append(second).append().stored());
  proto::MetadataRequest move;
  *move.mutable_move_out()->mutable_fid() = ToProto(f);
  ASSERT_THAT(client.Call(move), IsOk());
  EXPECT_TRUE(Object() == first + second);
}

// A client that knows the layout from before has written, and says so: it has to write again.
TEST_F(TailsTest, WhatWasWrittenByTheLayoutOfBeforeIsRefused) {
  const uint32_t before = Generation();
  ASSERT_TRUE(Append(second).append().stored());
  const uint32_t behind = Generation();
  EXPECT_GT(behind, before);
  ASSERT_TRUE(Append(third).append().stored());
  EXPECT_EQ(Generation(), behind);  // one for all
  EXPECT_THAT(Tell(before, first.size() + 10), Fails(ESTALE));
  const uint32_t given = LayoutOf(f).generation();
  EXPECT_EQ(given, behind);
  EXPECT_THAT(Tell(given, first.size() + 10), IsOk());
  ASSERT_TRUE(Append(second).append().stored());
  EXPECT_GT(Generation(), given);
  EXPECT_THAT(Tell(given, first.size() + 10), Fails(ESTALE));
}

TEST_F(TailsTest, SurvivesARestart) {
  ASSERT_TRUE(Append(second).append().stored());
  const uint32_t behind = Generation();
  harness.Restart();
  harness.RegisterOsts();
  client.Connect();
  ASSERT_TRUE(Append(third).append().stored());
  EXPECT_GT(Generation(), behind);
  EXPECT_TRUE(ReadObjects(f) == first + second + third);
}

TEST_F(TailsTest, ARepeatedAppendIsDoneOnce) {
  const proto::MetadataRequest request = client.Prepare(AppendRequest(second));
  ASSERT_THAT(harness.Await(harness.server->Handle(client.peer, request)), IsOk());
  harness.Restart();
  client.Reconnect();
  const auto again = harness.Await(harness.server->Handle(client.peer, request));
  EXPECT_THAT(again, IsOk());
  EXPECT_EQ(again.append().offset(), first.size());
  EXPECT_TRUE(ReadObjects(f) == first + second);
}

// The machine stops between the objects' write and the commit that takes the records.
TEST_F(TailsTest, IsWrittenAgainWhereThatHasNotComeToItsEnd) {
  ASSERT_TRUE(Append(second).append().stored());
  harness.StopAfterCommits(0);
  client.StayFor(4s);
  EXPECT_TRUE(Object() == first + second);
  EXPECT_EQ(Records(Table::kTail), 1u);
  harness.RestartStopped();
  client.Connect();
  EXPECT_TRUE(ReadObjects(f) == first + second);
  EXPECT_EQ(Records(Table::kTail), 0u);
}

TEST_F(TailsTest, ALossOfPowerDoesNotWriteItOverNewerBytes) {
  ASSERT_TRUE(Append(second).append().stored());
  std::string newer = ReadObjects(f);
  newer[first.size()] = 'S';
  WriteObjects(f, newer);
  harness.LosePower();
  harness.RegisterOsts();
  client.Connect();
  client.StayFor(5s);
  EXPECT_TRUE(Object() == newer);
}

TEST_F(TailsTest, IsDurableInTheObjectsBeforeTheRecordsGo) {
  ASSERT_TRUE(Append(second).append().stored());
  harness.osts.loses_power = {0, 1, 2, 3};  // when they are synced next
  EXPECT_TRUE(ReadObjects(f) == first + second);
}

// While the OST is down the client gets its place, and writes by itself when it is back.
TEST_F(TailsTest, IsNotStoredWhileItsOstIsDown) {
  ASSERT_TRUE(Append(second).append().stored());
  harness.osts.away = {Ost()};
  client.StayFor(1s);
  auto place = std::make_shared<std::optional<proto::MetadataReply>>();
  client.StayFor(20s);  // it is down by now
  client.Start(AppendRequest(third), place);
  client.StayFor(5s);
  EXPECT_FALSE(place->has_value());  // the tail has to be written first
  harness.osts.away = {};
  harness.RegisterOsts();
  ASSERT_TRUE(harness.RunUntil([&] { return place->has_value(); }));
  EXPECT_THAT(**place, IsOk());
  EXPECT_EQ((*place)->append().offset(), first.size() + second.size());
  EXPECT_TRUE(Object().substr(0, first.size() + second.size()) == first + second);
}

TEST_F(TailsTest, WithoutATailAnAppendGetsItsPlaceThoughTheOstIsDown) {
  harness.osts.away = {Ost()};
  client.StayFor(20s);
  const auto reply = Append(second);
  EXPECT_THAT(reply, IsOk());
  EXPECT_FALSE(reply.append().stored());
  EXPECT_EQ(reply.append().offset(), first.size());
  EXPECT_EQ(Records(Table::kTail), 0u);
}

TEST_F(TailsTest, AFullOstStoresNothing) {
  harness.used_bytes = [&](OstIndex) { return harness.ost_bytes; };
  client.StayFor(60s);
  EXPECT_FALSE(Append(second).append().stored());
}

TEST_F(TailsTest, ATruncationCutsItToo) {
  ASSERT_TRUE(Append(third).append().stored());
  ASSERT_THAT(client.Truncate(f, first.size() + 10), IsOk());
  EXPECT_TRUE(ReadObjects(f) == first + third.substr(0, 10));
  ASSERT_THAT(client.Truncate(f, first.size() + 20), IsOk());
  EXPECT_TRUE(ReadObjects(f) == first + third.substr(0, 10) + std::string(10, '\0'));
}

TEST_F(TailsTest, AnEmptiedFileHasNone) {
  ASSERT_TRUE(Append(second).append().stored());
  ASSERT_THAT(client.Truncate(f, 0), IsOk());
  EXPECT_EQ(Records(Table::kTail), 0u);
  client.StayFor(5s);
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
}

TEST_F(TailsTest, ARemovedFileLeavesNothing) {
  ASSERT_TRUE(Append(second).append().stored());
  ASSERT_THAT(client.Close(f, 0), IsOk());
  ASSERT_THAT(client.Unlink(kRootFid, "f"), IsOk());
  EXPECT_EQ(Records(Table::kTail), 0u);
  client.StayFor(5s);
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
}

// The objects were destroyed, or not yet, when the bytes came to them.
TEST_F(TailsTest, WhatIsWrittenWhileTheFileIsEmptiedIsDropped) {
  ASSERT_TRUE(Append(second).append().stored());
  bool emptied = false;
  harness.osts.on_call = [&](const std::string&, const proto::ObjectRequest& request) {
    if (!request.has_write() || std::exchange(emptied, true)) return OkStatus();
    proto::MetadataRequest cut;
    *cut.mutable_setattr()->mutable_fid() = ToProto(f);
    cut.mutable_setattr()->set_set_size(true);
    client.Start(cut, std::make_shared<std::optional<proto::MetadataReply>>());
    return OkStatus();
  };
  client.StayFor(60s);
  ASSERT_TRUE(emptied);
  EXPECT_EQ(Attr(f).size(), 0u);
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
  EXPECT_EQ(Records(Table::kTail), 0u);
  EXPECT_EQ(Records(Table::kMoved), 0u);
}

TEST_F(TailsTest, AMoveTakesItAlong) {
  ASSERT_TRUE(Append(third).append().stored());
  ASSERT_THAT(Ask(MigrateRequest(f, 3)), IsOk());
  EXPECT_TRUE(ReadObjects(f) == first + third);
  EXPECT_EQ(Records(Table::kTail), 0u);
}

TEST_F(TailsTest, WhatCannotBeStoredIsRefused) {
  EXPECT_THAT(Append(std::string(kMostOfAppend + 1, 'x')), Fails(EFBIG));
  proto::MetadataRequest wrong = AppendRequest(second);
  wrong.mutable_append()->set_length(1);
  EXPECT_THAT(client.Call(wrong), Fails(EINVAL));
  EXPECT_EQ(Attr(f).size(), first.size());
}

// As an MDS of before answers.
TEST_F(TailsTest, WhoBringsNoBytesGetsAPlaceBehindWhatIsStored) {
  ASSERT_TRUE(Append(second).append().stored());
  proto::MetadataRequest request = AppendRequest({});
  request.mutable_append()->set_length(10);
  const auto reply = client.Call(request);
  ASSERT_THAT(reply, IsOk());
  EXPECT_FALSE(reply.append().stored());
  EXPECT_EQ(reply.append().offset(), first.size() + second.size());
  EXPECT_TRUE(ReadObjects(f) == first + second + std::string(10, '\0'));
}

}  // namespace
}  // namespace nacre::mds
