#include "server/metadata/move_out.h"

#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

class MoveOutTest : public testing::Test {
 protected:
  Fid MakeInline(const std::string& data) {
    Fid f = FidOf(client.Create(kRootFid, "f"));
    EXPECT_THAT(WriteInline(f, data), IsOk());
    return f;
  }
  proto::MetadataReply WriteInline(Fid f, const std::string& data) {
    proto::MetadataRequest write;
    *write.mutable_write_inline()->mutable_fid() = ToProto(f);
    write.mutable_write_inline()->set_data(data);
    return client.Call(write);
  }
  std::shared_ptr<std::optional<proto::MetadataReply>> StartMoveOut(Fid f) {
    proto::MetadataRequest request;
    *request.mutable_move_out()->mutable_fid() = ToProto(f);
    auto reply = std::make_shared<std::optional<proto::MetadataReply>>();
    client.Start(request, reply);
    return reply;
  }
  std::string OnlyObject() {
    std::vector<std::string> found;
    for (const auto& [ost, all] : harness.osts.objects) {
      for (const auto& [id, object] : all) found.push_back(object.data);
    }
    return found.size() == 1 ? found[0] : absl::StrCat(found.size(), " objects");
  }
  size_t Records(Table table) {
    return harness.store.Scan(TableKey(table), PrefixEnd(TableKey(table)), 1000)->size();
  }
  proto::Attr Attr(Fid f) { return client.Getattr(f).attr().attr(); }

  Harness harness;
  TestClient client{harness};
};

TEST_F(MoveOutTest, WritesTheBytesAndGivesTheLayout) {
  Fid f = MakeInline("hello");
  auto reply = StartMoveOut(f);
  harness.RunFor(std::chrono::seconds(1));
  ASSERT_TRUE(reply->has_value());
  ASSERT_THAT(**reply, IsOk());
  EXPECT_FALSE((*reply)->moved_out().attr().inline_data());
  EXPECT_EQ(OnlyObject(), "hello");
  EXPECT_EQ(Records(Table::kNewObjects), 0u);
  EXPECT_EQ(Records(Table::kDestroyAt), 0u);
}

TEST_F(MoveOutTest, LeavesItsObjectsAloneHoweverLongItTakes) {
  Fid f = MakeInline("hello");
  harness.osts.away = {0, 1, 2, 3};
  auto reply = StartMoveOut(f);
  client.StayFor(std::chrono::seconds(20));  // the destroyer has looked many times
  EXPECT_EQ(Records(Table::kNewObjects), 1u);
  harness.osts.away = {};
  client.StayFor(std::chrono::seconds(60));
  ASSERT_TRUE(reply->has_value());
  EXPECT_THAT(**reply, IsOk());
  EXPECT_EQ(OnlyObject(), "hello");
  EXPECT_EQ(Records(Table::kNewObjects), 0u);
}

TEST_F(MoveOutTest, BeginsAnewWhenTheFileIsWrittenMeanwhile) {
  Fid f = MakeInline("hello");
  harness.osts.away = {0, 1, 2, 3};
  auto reply = StartMoveOut(f);
  harness.RunFor(std::chrono::seconds(1));
  ASSERT_THAT(WriteInline(f, "HELLO world"), IsOk());
  harness.osts.away = {};
  client.StayFor(std::chrono::seconds(60));
  ASSERT_TRUE(reply->has_value());
  EXPECT_THAT(**reply, IsOk());
  EXPECT_EQ(OnlyObject(), "HELLO world");
  EXPECT_EQ(Records(Table::kNewObjects), 0u);
}

TEST_F(MoveOutTest, IsWithdrawnWhenTheOstRefuses) {
  Fid f = MakeInline("hello");
  for (OstIndex ost = 0; ost < 4; ++ost) harness.osts.refuses[ost] = ENOSPC;
  auto reply = StartMoveOut(f);
  harness.RunFor(std::chrono::seconds(1));
  ASSERT_TRUE(reply->has_value());
  EXPECT_THAT(**reply, Fails(ENOSPC));
  EXPECT_EQ(Records(Table::kNewObjects), 0u);
  EXPECT_TRUE(Attr(f).inline_data());
  harness.osts.refuses.clear();
  harness.RunFor(std::chrono::seconds(20));
  EXPECT_EQ(Records(Table::kDestroyAt), 0u);
}

TEST_F(MoveOutTest, IsWithdrawnWhenItsSessionEnds) {
  Fid f = MakeInline("hello");
  harness.osts.away = {0, 1, 2, 3};
  auto reply = StartMoveOut(f);
  harness.RunFor(std::chrono::seconds(120));
  EXPECT_EQ(Records(Table::kNewObjects), 0u);
  harness.osts.away = {};
  harness.RunFor(std::chrono::seconds(20));
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
  TestClient other(harness);
  EXPECT_EQ(other.Lookup(kRootFid, "f", true).entry().data(), "hello");
}

TEST_F(MoveOutTest, IsWithdrawnWhenTheFileIsRemoved) {
  Fid f = MakeInline("hello");
  ASSERT_THAT(client.Close(f), IsOk());
  harness.osts.away = {0, 1, 2, 3};
  auto reply = StartMoveOut(f);
  harness.RunFor(std::chrono::seconds(1));
  ASSERT_THAT(client.Unlink(kRootFid, "f"), IsOk());
  harness.osts.away = {};
  client.StayFor(std::chrono::seconds(60));
  ASSERT_TRUE(reply->has_value());
  EXPECT_THAT(**reply, Fails(ENOENT));
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
  EXPECT_EQ(Records(Table::kNewObjects), 0u);
}

// Nothing is left of an attempt that could not even be recorded.
TEST_F(MoveOutTest, AFullMdtLeavesNothing) {
  Fid f = MakeInline("hello");
  harness.store.SetCommitHook([](const KvBatch&) { return ErrnoError(ENOSPC, "full"); });
  auto reply = StartMoveOut(f);
  harness.RunFor(std::chrono::seconds(1));
  ASSERT_TRUE(reply->has_value());
  EXPECT_THAT(**reply, Fails(ENOSPC));
  harness.store.SetCommitHook(nullptr);
  reply = StartMoveOut(f);
  harness.RunFor(std::chrono::seconds(1));
  ASSERT_TRUE(reply->has_value());
  EXPECT_THAT(**reply, IsOk());
  EXPECT_EQ(OnlyObject(), "hello");
}

// The server stops after each commit in its turn.
class MoveOutCrashTest : public MoveOutTest, public testing::WithParamInterface<int> {};

TEST_P(MoveOutCrashTest, LeavesTheDataInOnePlace) {
  Fid f = MakeInline("hello");
  harness.StopAfterCommits(GetParam());
  auto reply = StartMoveOut(f);
  harness.RunFor(std::chrono::milliseconds(100));
  harness.RestartStopped();
  client.Reconnect();
  client.StayFor(std::chrono::seconds(20));
  EXPECT_EQ(Records(Table::kNewObjects), 0u);
  EXPECT_EQ(Records(Table::kDestroyAt), 0u);
  const bool moved = !Attr(f).inline_data();
  EXPECT_EQ(moved, GetParam() >= 2);
  EXPECT_EQ(OnlyObject(), moved ? "hello" : "0 objects");
  EXPECT_EQ(client.Lookup(kRootFid, "f", true).entry().data(), moved ? "" : "hello");
}

INSTANTIATE_TEST_SUITE_P(EachCommit, MoveOutCrashTest, testing::Range(0, 4));

}  // namespace
}  // namespace nacre::mds
