// The answers that a session keeps.
#include <cerrno>

#include "common/status.h"
#include "rpc/convert.h"
#include "server/metadata/keys.h"
#include "server/metadata/records.h"
#include "server/metadata/session.h"
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

class SessionAnswers : public testing::Test {
 protected:
  // Carries out a mutation; its errno if it was refused.
  int Do(uint64_t sequence, uint64_t low_water) {
    Session::Begun begun = session.BeginMutation(sequence, low_water);
    if (begun.answer) return ToErrno(FromProto(begun.answer->status()));
    EXPECT_FALSE(begun.wait.has_value());
    proto::MetadataReply reply;
    KvBatch batch;
    session.Record(sequence, reply, &batch);
    for (const KvBatch::Op& op : batch.ops()) {
      EXPECT_FALSE(op.erase);
      records.insert(op.key);
    }
    session.EndMutation(sequence, reply);
    return 0;
  }
  void Acknowledge(uint64_t answered_below, std::vector<std::pair<uint64_t, uint64_t>> unanswered) {
    proto::MetadataRequest request;
    request.set_answered_below(answered_below);
    for (auto [begin, end] : unanswered) {
      request.add_unanswered()->set_begin(begin);
      request.mutable_unanswered(request.unanswered_size() - 1)->set_end(end);
    }
    session.Acknowledge(request);
  }

  Session session{7, SessionRecord{"client", 1, false}, Duration(0)};
  std::set<std::string> records;  // keys of replies in the store
};

// Mutation 1 waits for an OST that does not come back.
TEST_F(SessionAnswers, OneThatWaitsForeverDoesNotStopTheOthers) {
  EXPECT_FALSE(session.BeginMutation(1, 1).answer.has_value());
  for (uint64_t sequence = 2; sequence < 2 * kMaxOutstanding.count; ++sequence) {
    if (sequence % 1024 == 0) Acknowledge(sequence, {{1, 2}});
    ASSERT_EQ(Do(sequence, 1), 0) << sequence;
    ASSERT_LE(records.size(), 2048u);
  }
  EXPECT_TRUE(session.BeginMutation(1, 1).wait.has_value());  // it is still under way
}

TEST_F(SessionAnswers, WhatIsAcknowledgedIsRefusedAndTheRestIsAnswered) {
  for (uint64_t sequence = 1; sequence <= 10; ++sequence) EXPECT_EQ(Do(sequence, 1), 0);
  Acknowledge(9, {{3, 5}, {7, 8}});
  for (uint64_t sequence : {1, 2, 5, 6, 8}) EXPECT_EQ(Do(sequence, 1), ESTALE) << sequence;
  for (uint64_t sequence : {3, 4, 7, 9, 10}) {
    Session::Begun begun = session.BeginMutation(sequence, 1);
    ASSERT_TRUE(begun.answer.has_value()) << sequence;
    EXPECT_EQ(begun.answer->status().error(), 0u) << sequence;
  }
  Acknowledge(5, {});  // came late: it says less than what is known
  EXPECT_TRUE(session.BeginMutation(3, 1).answer.has_value());
}

TEST(StoredAnswers, AreInFewSlots) {
  Harness harness;
  TestClient client(harness);
  for (int i = 0; i < 50; ++i) ASSERT_THAT(client.Mkdir(kRootFid, absl::StrCat("d", i)), IsOk());
  const std::string prefix = TableKey(Table::kReply);
  EXPECT_LE(harness.store.Scan(prefix, PrefixEnd(prefix), 100)->size(), 2u);
}

// As an MDS of format version 1 has left them.
TEST(StoredAnswers, ThoseBySequenceGetSlots) {
  Harness harness;
  TestClient client(harness);
  ASSERT_THAT(client.Mkdir(kRootFid, "first"), IsOk());
  proto::MetadataRequest request;
  *request.mutable_mknod()->mutable_parent() = ToProto(kRootFid);
  request.mutable_mknod()->set_name("d");
  request.mutable_mknod()->set_mode(S_IFDIR | 0755);
  request = client.Prepare(request);
  const proto::MetadataReply answer = harness.Await(harness.server->Handle(client.peer, request));
  ASSERT_THAT(answer, IsOk());
  KvBatch older;
  const std::string prefix = TableKey(Table::kReply);
  const auto recorded = harness.store.Scan(prefix, PrefixEnd(prefix), 9);
  for (const KvEntry& entry : *recorded) {
    const ReplyRecord record = *ParseReply(entry.value);
    std::string key = NumberKey(Table::kReplyBySequence, client.session);
    PutBig(&key, record.sequence);
    older.Erase(entry.key);
    older.Put(std::move(key), record.encoded);
  }
  std::string orphan = NumberKey(Table::kReplyBySequence, client.session + 1);
  PutBig(&orphan, uint64_t{1});
  older.Put(std::move(orphan), "of a session that is gone");
  ASSERT_TRUE(harness.Await(harness.store.Commit(std::move(older))).ok());
  for (int start = 0; start < 2; ++start) {
    harness.Restart();
    const std::string by_sequence = TableKey(Table::kReplyBySequence);
    EXPECT_TRUE(harness.store.Scan(by_sequence, PrefixEnd(by_sequence), 9)->empty());
    client.Reconnect({});
    EXPECT_EQ(harness.Await(harness.server->Handle(client.peer, request)).SerializeAsString(),
              answer.SerializeAsString());
  }
  EXPECT_EQ(client.Getattr(kRootFid).attr().attr().nlink(), 4u);
}

TEST(StoredAnswers, ADamagedOneStopsNobody) {
  Harness harness;
  TestClient client(harness);
  ASSERT_THAT(client.Mkdir(kRootFid, "a"), IsOk());
  KvBatch damage;
  damage.Put(ReplyKey(client.session, 0), "short");
  damage.Put(ReplyKey(client.session, 1), EncodeReply({0, "of no sequence"}));
  ASSERT_TRUE(harness.Await(harness.store.Commit(std::move(damage))).ok());
  harness.Restart();
  client.Reconnect({});
  for (int i = 0; i < 4; ++i) EXPECT_THAT(client.Mkdir(kRootFid, absl::StrCat("b", i)), IsOk());
  harness.Restart();
  client.Reconnect({});
  EXPECT_THAT(client.Mkdir(kRootFid, "c"), IsOk());
}

}  // namespace
}  // namespace nacre::mds
