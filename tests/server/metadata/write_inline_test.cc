// Data that lives in the MDT, and its way out of there: WriteInline, MoveOut, and what comes after
// (UpdateSize, Append).
#include <limits>

#include "server/metadata/check.h"
#include "tests/common/await.h"
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

class InlineTest : public testing::Test {
 protected:
  proto::MetadataReply Write(Fid fid, uint64_t offset, const std::string& data, bool append = false) {
    proto::MetadataRequest request;
    *request.mutable_write_inline()->mutable_fid() = ToProto(fid);
    request.mutable_write_inline()->set_offset(offset);
    request.mutable_write_inline()->set_data(data);
    request.mutable_write_inline()->set_append(append);
    return client.Call(request);
  }
  proto::MetadataReply Replace(Fid fid, const std::string& data) {
    proto::MetadataRequest request;
    *request.mutable_write_inline()->mutable_fid() = ToProto(fid);
    request.mutable_write_inline()->set_replace(true);
    request.mutable_write_inline()->set_data(data);
    return client.Call(request);
  }
  // After the file has gone nothing of it is left, in the MDT or in objects.
  void ExpectCleanWithout(const std::string& name) {
    ASSERT_THAT(client.Unlink(kRootFid, name), IsOk());
    ASSERT_THAT(client.Close(file, 0), IsOk());
    harness.RunFor(10s);
    EXPECT_EQ(harness.osts.CountObjects(), 0u);
    harness.Crash();
    auto report = Await(CheckMdt(harness.store, false));
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_THAT(report->problems, testing::IsEmpty());
  }
  proto::MetadataReply MoveOut(Fid fid) {
    proto::MetadataRequest request;
    *request.mutable_move_out()->mutable_fid() = ToProto(fid);
    return client.Call(request);
  }
  proto::MetadataReply Append(Fid fid, uint64_t length) {
    proto::MetadataRequest request;
    *request.mutable_append()->mutable_fid() = ToProto(fid);
    request.mutable_append()->set_length(length);
    return client.Call(request);
  }
  proto::MetadataReply UpdateSize(Fid fid, uint64_t size, uint32_t generation) {
    proto::MetadataRequest request;
    *request.mutable_update_size()->mutable_fid() = ToProto(fid);
    request.mutable_update_size()->set_size(size);
    request.mutable_update_size()->set_layout_generation(generation);
    return client.Call(request);
  }
  std::string Data(Fid fid) { return client.Open(fid).entry().data(); }

  Harness harness;
  TestClient client{harness};
  const Fid file = FidOf(client.Create(kRootFid, "f", 0666));
};

TEST_F(InlineTest, WritesOverBehindAndBeyond) {
  ASSERT_THAT(Write(file, 0, "hello"), IsOk());
  ASSERT_THAT(Write(file, 1, "EL"), IsOk());
  EXPECT_EQ(Data(file), "hELlo");
  auto beyond = Write(file, 8, "x");
  ASSERT_THAT(beyond, IsOk());
  EXPECT_EQ(beyond.attr().attr().size(), 9u);
  EXPECT_EQ(Data(file), std::string("hELlo\0\0\0x", 9));
  EXPECT_EQ(Write(file, 0, "end", /*append=*/true).attr().attr().size(), 12u);
  EXPECT_EQ(Data(file).substr(9), "end");
  ASSERT_THAT(Write(file, 100, ""), IsOk());
  EXPECT_EQ(Data(file).size(), 12u);
}

TEST_F(InlineTest, TheLimitIsExact) {
  const uint64_t limit = harness.options.inline_limit;
  EXPECT_THAT(Write(file, 0, std::string(limit, 'x')), IsOk());
  EXPECT_THAT(Write(file, 0, std::string(limit + 1, 'x')), Fails(EFBIG));
  EXPECT_THAT(Write(file, limit, "x"), Fails(EFBIG));
  EXPECT_THAT(Write(file, ~uint64_t{0}, "x"), Fails(EFBIG));
  EXPECT_THAT(Write(file, 0, "x", /*append=*/true), Fails(EFBIG));
}

TEST_F(InlineTest, ReplacesAllThatTheFileHad) {
  ASSERT_THAT(Write(file, 0, "a longer one"), IsOk());
  auto shorter = Replace(file, "short");
  ASSERT_THAT(shorter, IsOk());
  EXPECT_EQ(shorter.attr().attr().size(), 5u);
  EXPECT_EQ(Data(file), "short");
  ASSERT_THAT(Replace(file, ""), IsOk());
  EXPECT_EQ(client.Getattr(file).attr().attr().size(), 0u);
  EXPECT_EQ(Data(file), "");
  ASSERT_THAT(Write(file, 3, "x"), IsOk());
  EXPECT_EQ(Data(file), std::string("\0\0\0x", 4));
  ExpectCleanWithout("f");
}

TEST_F(InlineTest, ReplacesWhatLiesInObjects) {
  ASSERT_THAT(Write(file, 0, "moves out"), IsOk());
  const auto moved = MoveOut(file);
  ASSERT_THAT(moved, IsOk());
  ASSERT_EQ(harness.osts.CountObjects(), 1u);
  const auto replaced = Replace(file, "new");
  ASSERT_THAT(replaced, IsOk());
  EXPECT_TRUE(replaced.attr().attr().inline_data());
  EXPECT_GT(replaced.attr().attr().layout_generation(), moved.moved_out().layout().generation());
  EXPECT_EQ(Data(file), "new");
  harness.RunFor(10s);
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
  EXPECT_THAT(UpdateSize(file, 9, moved.moved_out().layout().generation()), Fails(ESTALE));
  ExpectCleanWithout("f");
}

// Its layout is for objects although nothing was ever written there.
TEST_F(InlineTest, ReplacesAnEmptyFileThatHasMovedOut) {
  ASSERT_THAT(MoveOut(file), IsOk());
  const auto replaced = Replace(file, "new");
  ASSERT_THAT(replaced, IsOk());
  EXPECT_TRUE(replaced.attr().attr().inline_data());
  EXPECT_EQ(Data(file), "new");
  ExpectCleanWithout("f");
}

TEST_F(InlineTest, AReplacementBeginsAtZeroAndFits) {
  ASSERT_THAT(Write(file, 0, "old"), IsOk());
  proto::MetadataRequest request;
  *request.mutable_write_inline()->mutable_fid() = ToProto(file);
  request.mutable_write_inline()->set_replace(true);
  request.mutable_write_inline()->set_offset(1);
  EXPECT_THAT(client.Call(request), Fails(EINVAL));
  request.mutable_write_inline()->set_offset(0);
  request.mutable_write_inline()->set_append(true);
  EXPECT_THAT(client.Call(request), Fails(EINVAL));
  EXPECT_THAT(Replace(file, std::string(harness.options.inline_limit + 1, 'x')), Fails(EFBIG));
  EXPECT_EQ(Data(file), "old");
}

TEST_F(InlineTest, MovesOutOnceAndIsNotWrittenInlineAgain) {
  ASSERT_THAT(Write(file, 0, "moves out"), IsOk());
  auto moved = MoveOut(file);
  ASSERT_THAT(moved, IsOk());
  EXPECT_FALSE(moved.moved_out().attr().inline_data());
  EXPECT_EQ(moved.moved_out().attr().size(), 9u);
  ASSERT_EQ(harness.osts.CountObjects(), 1u);
  auto again = MoveOut(file);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again.moved_out().layout().SerializeAsString(), moved.moved_out().layout().SerializeAsString());
  EXPECT_EQ(harness.osts.CountObjects(), 1u);
  EXPECT_THAT(Write(file, 0, "x"), Fails(ESTALE));
  EXPECT_EQ(Data(file), "");
}

TEST_F(InlineTest, AppendTakesRangesBehindEachOther) {
  EXPECT_THAT(Append(file, 10), Fails(ESTALE));  // lies in the MDT
  ASSERT_THAT(MoveOut(file), IsOk());
  EXPECT_EQ(Append(file, 10).append().offset(), 0u);
  auto second = Append(file, 5);
  EXPECT_EQ(second.append().offset(), 10u);
  EXPECT_EQ(second.append().attr().size(), 15u);
  EXPECT_THAT(Append(file, uint64_t{1} << 62), Fails(EFBIG));
  EXPECT_THAT(Append(file, ~uint64_t{0}), Fails(EFBIG));
}

TEST_F(InlineTest, SizesOnlyGrowAndOnlyByTheLayoutOfToday) {
  EXPECT_THAT(UpdateSize(file, 10, 0), Fails(ESTALE));  // lies in the MDT
  const uint32_t generation = MoveOut(file).moved_out().layout().generation();
  EXPECT_EQ(UpdateSize(file, 100, generation).attr().attr().size(), 100u);
  EXPECT_EQ(UpdateSize(file, 50, generation).attr().attr().size(), 100u);
  EXPECT_THAT(UpdateSize(file, 200, generation + 1), Fails(ESTALE));
  EXPECT_THAT(UpdateSize(file, ~uint64_t{0}, generation), Fails(EFBIG));
}

TEST_F(InlineTest, BlocksNeverGoBelowZero) {
  ASSERT_THAT(MoveOut(file), IsOk());
  EXPECT_EQ(client.UpdateSize(file, 0, 24).attr().attr().blocks(), 24u);
  EXPECT_EQ(client.UpdateSize(file, 0, -8).attr().attr().blocks(), 16u);
  EXPECT_EQ(client.UpdateSize(file, 0, -100).attr().attr().blocks(), 0u);
  EXPECT_EQ(client.UpdateSize(file, 0, std::numeric_limits<int64_t>::min()).attr().attr().blocks(), 0u);
}

TEST_F(InlineTest, AreForRegularFiles) {
  const Fid dir = FidOf(client.Mkdir(kRootFid, "d"));
  EXPECT_THAT(Write(dir, 0, "x"), Fails(EINVAL));
  EXPECT_THAT(MoveOut(dir), Fails(EINVAL));
  EXPECT_THAT(Append(dir, 1), Fails(EINVAL));
  EXPECT_THAT(UpdateSize(dir, 1, 0), Fails(EINVAL));
}

}  // namespace
}  // namespace nacre::mds
