// Reads from any member of a chain (docs/decisions/0076-reads-from-any-member.md): the versions that members
// name with what they answer.
#include <gtest/gtest.h>

#include <cerrno>

#include "common/metrics.h"
#include "server/object/change_proto.h"
#include "tests/server/object/chain_fixture.h"
#include "tests/server/object/store_fixture.h"

namespace nacre::ost {
namespace {

constexpr ObjectId kReadObject{7, 0}, kSecondObject{8, 0};

class MemberReadsTest : public testing::Test {
 protected:
  struct Answer {
    Status status;
    std::string bytes;
    ObjectVersion version;
  };

  // One attempt.
  Answer ReadAt(int member, ObjectId id, uint64_t length, SessionId session = 6) {
    ClientMemory memory(f_.transports[ChainFixture::kServers].get(), length);
    proto::ObjectRequest request;
    request.mutable_read()->set_versions(true);
    ServerFixture::AddRange(request.mutable_read()->add_ranges(), id, 0, length, 0);
    auto client = f_.Client(member, session);
    auto reply = f_.Run(client->CallOnce(std::move(request), CallMemory::kPutTarget, memory.Spans(), 10s));
    if (!reply.ok()) return {reply.status(), "", {}};
    const proto::ReadRangeResult& result = reply->read().ranges(0);
    EXPECT_EQ(result.status().error() == 0, result.has_version());
    return {FromProto(result.status()), memory.bytes.substr(0, result.length()), FromProto(result.version())};
  }

  static proto::ObjectRequest Question(ObjectId id, uint64_t offset, uint64_t length) {
    proto::ObjectRequest request;
    ServerFixture::AddRange(request.mutable_versions()->add_ranges(), id, offset, length, 0);
    return request;
  }
  StatusOr<ObjectVersion> VersionAt(int member, ObjectId id) {
    auto client = f_.Client(member, 6);
    auto reply = f_.Run(client->CallOnce(Question(id, 0, kBlockSize), CallMemory::kNone, {}, 10s));
    if (!reply.ok()) return reply.status();
    return FromProto(reply->versions().versions(0));
  }

  Status Write(int head, ObjectId id, std::string data) {
    auto client = f_.Client(head, 5);
    return f_.Write(client.get(), id, 0, std::move(data));
  }
  Status Fence(int head, SessionId session) {
    proto::ObjectRequest request;
    request.mutable_fence()->set_session(session);
    auto mds = f_.Client(head, 0);
    return f_.Change(mds.get(), std::move(request));
  }
  const proto::OstInfo& Heard(int i) {
    const std::string address = absl::StrCat("inproc:oss", i);
    EXPECT_TRUE(f_.RunUntil([&] { return f_.judge->heard[address].osts_size() > 0; }));
    return f_.judge->heard[address].osts(0);
  }

  ChainFixture f_;
};

TEST_F(MemberReadsTest, EveryMemberAnswersInTheHeadsVersion) {
  f_.SetChain({0, 1, 2});
  for (const char* data : {"first", "next", "another"}) {
    ASSERT_TRUE(Write(0, kReadObject, data).ok());
    auto head = VersionAt(0, kReadObject);
    ASSERT_TRUE(head.ok()) << head.status();
    for (int i = 0; i < 3; ++i) {
      const Answer answer = ReadAt(i, kReadObject, strlen(data));
      EXPECT_TRUE(answer.status.ok()) << i << ": " << answer.status;
      EXPECT_EQ(answer.bytes, data) << i;
      EXPECT_EQ(answer.version, *head) << i;
    }
  }
  EXPECT_EQ(VersionAt(0, kSecondObject).value(), ObjectVersion{});
  for (int i = 0; i < 3; ++i) {
    const Answer answer = ReadAt(i, kSecondObject, 100);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.bytes, "");
    EXPECT_EQ(answer.version, ObjectVersion{});
  }
}

TEST_F(MemberReadsTest, OnlyTheHeadSaysWhichVersionCounts) {
  f_.SetChain({0, 1});
  ASSERT_TRUE(Write(0, kReadObject, "there").ok());
  EXPECT_EQ(ToErrno(VersionAt(1, kReadObject).status()), ECONNRESET);
}

TEST_F(MemberReadsTest, WhoIsNotInSyncAnswersNothing) {
  EXPECT_EQ(ToErrno(ReadAt(0, kReadObject, 10).status), ECONNRESET) << "it has not been told";
  f_.SetChain({0});
  ASSERT_TRUE(Write(0, kReadObject, "there").ok());
  f_.judge->away = true;  // nobody can say that it has everything
  f_.SetChain({0}, /*joining=*/{1});
  EXPECT_EQ(ToErrno(ReadAt(1, kReadObject, 10).status), ECONNRESET) << "it is being filled";
  f_.judge->away = false;
  ASSERT_TRUE(f_.RunUntil([&] { return f_.judge->chain.members_size() == 2; }));
  ASSERT_TRUE(f_.RunUntil([&] { return ReadAt(1, kReadObject, 5).bytes == "there"; }));
  f_.Crash(1);
  f_.Start(1);
  EXPECT_EQ(ToErrno(ReadAt(1, kReadObject, 10).status), ECONNRESET) << "it has been started again";
}

TEST_F(MemberReadsTest, AnOrdinaryReadIsTheHeadsAlone) {
  f_.SetChain({0, 1});
  ASSERT_TRUE(Write(0, kReadObject, "there").ok());
  proto::ObjectRequest request;
  ServerFixture::AddRange(request.mutable_read()->add_ranges(), kReadObject, 0, 5, 0);
  ClientMemory memory(f_.transports[ChainFixture::kServers].get(), 5);
  auto client = f_.Client(1, 6);
  auto reply = f_.Run(client->CallOnce(std::move(request), CallMemory::kPutTarget, memory.Spans(), 10s));
  EXPECT_EQ(ToErrno(reply.status()), ECONNRESET);
}

// The member is cut off from head and MGS, and goes on as it was.
TEST_F(MemberReadsTest, WhatAMemberThatWasTakenOutAnswersIsOfAnOldVersion) {
  f_.SetChain({0, 1});
  ASSERT_TRUE(Write(0, kReadObject, "old").ok());
  ASSERT_TRUE(Write(0, kSecondObject, "stays").ok());
  f_.SetChain({0});
  ASSERT_TRUE(Write(0, kReadObject, "new").ok());
  const Answer answer = ReadAt(1, kReadObject, 3);
  EXPECT_EQ(answer.bytes, "old") << "it does not know better";
  EXPECT_NE(answer.version, VersionAt(0, kReadObject).value());
  EXPECT_EQ(ReadAt(1, kSecondObject, 5).version, VersionAt(0, kSecondObject).value());
}

// The change is at the member behind and never comes to be acknowledged: another one takes its place, as the
// same number of changes.
TEST_F(MemberReadsTest, AChangeThatTheHeadHasNotMadeIsOfAVersionOfItsOwn) {
  f_.SetChain({0, 1});
  ASSERT_TRUE(Write(0, kReadObject, "old").ok());
  const ObjectVersion old = VersionAt(0, kReadObject).value();
  f_.judge->away = true;
  f_.kv[0].SetCommitHook([](const KvBatch&) { return ErrnoError(EIO, "a broken disk"); });
  auto client = f_.Client(0, 5);
  auto written = std::make_unique<std::optional<Status>>();
  f_.StartWrite(client.get(), kReadObject, 0, "lost", written.get());
  ASSERT_TRUE(f_.RunUntil([&] { return ReadAt(1, kReadObject, 4).bytes == "lost"; }));
  EXPECT_NE(ReadAt(1, kReadObject, 4).version, old);
  f_.kv[0].SetCommitHook(nullptr);
  ASSERT_TRUE(f_.RunUntil([&] { return written->has_value(); }));
  f_.SetChain({0});
  EXPECT_NE(ReadAt(1, kReadObject, 4).version, VersionAt(0, kReadObject).value());
  ASSERT_TRUE(Write(0, kReadObject, "next").ok());
  EXPECT_EQ(VersionAt(0, kReadObject)->changes, ReadAt(1, kReadObject, 4).version.changes);
  EXPECT_NE(VersionAt(0, kReadObject).value(), ReadAt(1, kReadObject, 4).version);
}

TEST_F(MemberReadsTest, TheHeadNamesNoVersionWhileTheRangeIsBeingChanged) {
  f_.SetChain({0, 1});
  ASSERT_TRUE(Write(0, kReadObject, std::string(3 * kBlockSize, 'o')).ok());
  const ObjectVersion old = VersionAt(0, kReadObject).value();
  f_.judge->away = true;
  f_.Crash(1);
  auto writer = f_.Client(0, 5), reader = f_.Client(0, 6);
  auto written = std::make_unique<std::optional<Status>>();
  f_.StartWrite(writer.get(), kReadObject, 0, std::string(kBlockSize, 'n'), written.get());
  EXPECT_FALSE(f_.RunUntil([&] { return written->has_value(); }, 200ms));
  auto named = std::make_shared<std::optional<StatusOr<proto::ObjectReply>>>();
  std::vector<MemorySpan> none;
  Spawn(f_.context.get_executor(),
        reader->CallOnce(Question(kReadObject, 100, 10), CallMemory::kNone, std::move(none), 60s),
        [named](StatusOr<proto::ObjectReply> reply) { *named = std::move(reply); });
  EXPECT_FALSE(f_.RunUntil([&] { return named->has_value(); }, 200ms));
  auto beside = f_.Run(reader->CallOnce(Question(kReadObject, kBlockSize, 10), CallMemory::kNone, {}, 10s));
  ASSERT_TRUE(beside.ok()) << beside.status();
  EXPECT_EQ(FromProto(beside->versions().versions(0)), old);
  f_.judge->away = false;
  ASSERT_TRUE(f_.RunUntil([&] { return named->has_value() && written->has_value(); }));
  ASSERT_TRUE((*named)->ok()) << (*named)->status();
  EXPECT_EQ(FromProto((**named)->versions().versions(0)), VersionAt(0, kReadObject).value());
  EXPECT_NE(VersionAt(0, kReadObject).value(), old);
}

TEST_F(MemberReadsTest, AnEvictedSessionReadsNowhere) {
  f_.SetChain({0, 1});
  ASSERT_TRUE(Write(0, kReadObject, "there").ok());
  ASSERT_TRUE(Fence(0, 6).ok());
  EXPECT_EQ(ToErrno(VersionAt(0, kReadObject).status()), ESTALE);
  EXPECT_EQ(ToErrno(ReadAt(1, kReadObject, 5).status), ESTALE);
}

TEST_F(MemberReadsTest, ABadBlockIsRepairedFromTheHeadAsFromTheNextMember) {
  f_.SetChain({0, 1, 2});
  const std::string data(3 * kBlockSize, 'r');
  ASSERT_TRUE(Write(0, kReadObject, data).ok());
  static Counter& repaired = GetCounter("ost.repaired_blocks");
  for (int bad : {1, 2}) {
    f_.Restart({0, 1, 2});
    f_.Spoil(bad, kReadObject, 1);
    const int64_t before = repaired.Get();
    EXPECT_EQ(ToErrno(ReadAt(bad, kReadObject, data.size()).status), EAGAIN) << bad;
    const Answer answer = ReadAt(bad, kReadObject, data.size());
    EXPECT_TRUE(answer.status.ok()) << bad << ": " << answer.status;
    EXPECT_TRUE(answer.bytes == data) << bad;
    EXPECT_EQ(answer.version, VersionAt(0, kReadObject).value());
    EXPECT_EQ(repaired.Get() - before, 1) << bad;
    EXPECT_TRUE(Heard(bad).problems().empty());
  }
}

TEST_F(MemberReadsTest, WhatNobodyHasIsAnErrorAndReported) {
  f_.SetChain({0, 1});
  ASSERT_TRUE(Write(0, kReadObject, std::string(3 * kBlockSize, 'r')).ok());
  f_.Restart({0, 1});
  for (int i : {0, 1}) f_.Spoil(i, kReadObject, 1);
  EXPECT_EQ(ToErrno(ReadAt(1, kReadObject, 3 * kBlockSize).status), EIO);
  EXPECT_TRUE(f_.RunUntil([&] { return Heard(1).problems_size() == 1; }));
  EXPECT_EQ(ReadAt(1, kReadObject, kBlockSize).bytes, std::string(kBlockSize, 'r'));
}

// --- the store ---

// Does something before it takes the first bytes.
class ActingSink : public StringSink {
 public:
  ActingSink(size_t size, std::function<void()> act) : StringSink(size), act_(std::move(act)) {}
  Task<Status> Deliver(uint64_t offset, std::span<const std::span<const std::byte>> buffers,
                       std::shared_ptr<void> keep) override {
    if (act_) std::exchange(act_, nullptr)();
    co_return co_await StringSink::Deliver(offset, buffers, std::move(keep));
  }

 private:
  std::function<void()> act_;
};

// A head that waits for a member's change, which waits for a reader that takes no bytes, would give the
// member up.
TEST(ReadBesideChanges, KeepsNoChangeWaitingWhileItsReaderTakesBytes) {
  StoreFixture f;
  const uint64_t size = 300 * kBlockSize;  // two pieces
  ASSERT_TRUE(f.Write(kReadObject, 0, std::string(size, 'o')).ok());
  for (const bool in_first_piece : {true, false}) {
    std::optional<StatusOr<int64_t>> written;
    auto write = [](StoreFixture* f, uint64_t offset) -> Task<StatusOr<int64_t>> {
      const std::string data(kBlockSize, 'n');
      Allotment memory = co_await f->store->Admit(2, 1);
      WriteArgs args{kReadObject, {{offset, data.size()}}, Fid{7, 1, 0}, Checksums(offset, data), nullptr};
      StringSource source(data);
      co_return co_await f->store->Write(std::move(args), &source, &memory);
    };
    ActingSink sink(size, [&] {
      Spawn(f.context.get_executor(), write(&f, in_first_piece ? 0 : 290 * kBlockSize),
            [&written](StatusOr<int64_t> result) { written = std::move(result); });
      while (!written && f.context.run_one() > 0) {
      }
    });
    Allotment memory = f.Admit(size);
    const RangeRead read = f.Run(f.store->ReadBesideChanges(kReadObject, 0, size, &sink, &memory));
    ASSERT_TRUE(written.has_value());
    EXPECT_TRUE(written->ok()) << written->status();
    EXPECT_EQ(ToErrno(read.status), EAGAIN) << "its pieces are of two versions";
  }
  StringSink sink(kBlockSize);
  Allotment memory = f.Admit(kBlockSize);
  const RangeRead read = f.Run(f.store->ReadBesideChanges(kReadObject, 0, kBlockSize, &sink, &memory));
  EXPECT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.version, f.Run(f.store->VersionAt(kReadObject, 0, 1)).value());
  EXPECT_EQ(sink.data, std::string(kBlockSize, 'n'));
}

TEST(ReadBesideChanges, OfOnePieceIsOfTheVersionThatItWasReadIn) {
  StoreFixture f;
  ASSERT_TRUE(f.Write(kReadObject, 0, "old").ok());
  const ObjectVersion old = f.Run(f.store->VersionAt(kReadObject, 0, 1)).value();
  Allotment memory = f.Admit(kBlockSize);
  StringSink sink(3);
  const RangeRead read = f.Run(f.store->ReadBesideChanges(kReadObject, 0, 3, &sink, &memory));
  ASSERT_TRUE(f.Write(kReadObject, 0, "new").ok());
  EXPECT_EQ(read.version, old);
  EXPECT_EQ(sink.data, "old");
  EXPECT_NE(f.Run(f.store->VersionAt(kReadObject, 0, 1)).value(), old);
  const uint64_t beyond = kMaxObjectBlocks * kBlockSize;
  EXPECT_FALSE(f.Run(f.store->VersionAt(kReadObject, beyond, 1)).ok());
  EXPECT_FALSE(f.Run(f.store->ReadBesideChanges(kReadObject, beyond, 1, &sink, &memory)).status.ok());
}

}  // namespace
}  // namespace nacre::ost
