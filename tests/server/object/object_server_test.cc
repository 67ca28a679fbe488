#include "server/object/object_server.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "tests/server/object/server_fixture.h"

namespace nacre {
namespace {

constexpr ObjectId kId{9, 2};

TEST(ObjectServer, WritesReadsAndStats) {
  ServerFixture f;
  auto client = f.Client(1);
  std::string data(300000, 'q');
  auto reply = f.Write(client.get(), 5, kId, 1000, data);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->write().blocks_delta(), 74 * 8);
  EXPECT_EQ(f.Read(client.get(), 5, kId, 1000, 400000).value(), data);
  EXPECT_EQ(f.Read(client.get(), 0, kId, 1000, 400000).value(), "");
  proto::ObjectRequest stat;
  stat.set_ost(5);
  *stat.mutable_stat()->mutable_object() = ToProto(kId);
  reply = f.Call(client.get(), stat);
  EXPECT_TRUE(reply->stat().exists());
  EXPECT_EQ(reply->stat().size(), 301000u);
  EXPECT_EQ(FromProto(reply->stat().parent()), (Fid{7, 1, 0}));
}

TEST(ObjectServer, ARequestOfAnotherVersionIsRefused) {
  ServerFixture f;
  auto mds = f.Client(0);
  proto::ObjectRequest ping;
  ping.mutable_ping();
  ping.set_version(1);
  EXPECT_TRUE(f.Call(mds.get(), ping).ok());
  ping.set_version(2);
  const Status refused = f.Call(mds.get(), ping).status();
  EXPECT_EQ(ToErrno(refused), EPROTO);
  EXPECT_NE(refused.message().find("the sender speaks version 2 of the protocol, this OSS version 1"),
            std::string::npos)
      << refused;
}

TEST(ObjectServer, ManyRangesInOneRequest) {
  ServerFixture f;
  auto client = f.Client(1);
  for (uint32_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(f.Write(client.get(), 0, {9, i}, 100, std::string(5000, static_cast<char>('a' + i))).ok());
  }
  ClientMemory memory(f.transport.get(), 20 * 2000);
  proto::ObjectRequest request;
  for (uint32_t i = 0; i < 20; ++i)
    f.AddRange(request.mutable_read()->add_ranges(), {9, i}, 200, 2000, i * 2000);
  auto reply = f.Run(client->Call(request, CallMemory::kPutTarget, memory.Spans()));
  ASSERT_TRUE(reply.ok()) << reply.status();
  for (uint32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(reply->read().ranges(static_cast<int>(i)).length(), 2000u);
    EXPECT_EQ(memory.bytes.substr(i * 2000, 2000), std::string(2000, static_cast<char>('a' + i)));
  }
}

// Ranges that can be committed together are; the others go their own way, in the order of the list.
TEST(ObjectServer, ManyRangesInOneWrite) {
  ServerFixture f;
  auto client = f.Client(1);
  ClientMemory memory(f.transport.get(), 11 * kBlockSize);
  proto::ObjectRequest request;
  auto add = [&](ObjectId id, uint64_t offset, uint64_t memory_offset, std::string data) {
    data.copy(memory.bytes.data() + memory_offset, data.size());
    proto::ObjectRequest one = f.WriteRequest(0, id, offset, data);
    one.mutable_write()->mutable_ranges(0)->mutable_range()->set_memory_offset(memory_offset);
    *request.mutable_write()->add_ranges() = one.write().ranges(0);
  };
  const std::string a(kBlockSize, 'a'), b(2 * kBlockSize, 'b'), c(kBlockSize, 'c'), d(100, 'd'), e(100, 'e');
  add({1, 0}, kBlockSize, 0, a);
  add({1, 0}, 200 * kBlockSize, kBlockSize, b);
  add({1, 0}, 500 * kBlockSize, 3 * kBlockSize, c);
  add({2, 0}, 0, 4 * kBlockSize, a);                // another object
  add({2, 0}, 9 * kBlockSize, 6 * kBlockSize, b);   // not behind the other in memory
  add({2, 0}, 9 * kBlockSize, 8 * kBlockSize, c);   // over the one before
  add({2, 0}, 20 * kBlockSize, 9 * kBlockSize, d);  // ends within a block
  add({2, 0}, 20 * kBlockSize + 100, 9 * kBlockSize + 100, e);
  auto reply = f.Run(client->Call(request, CallMemory::kGetSource, memory.Spans()));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->write().blocks_delta(), (4 + 1 + 2 + 1) * 8);
  EXPECT_EQ(f.Read(client.get(), 0, {1, 0}, kBlockSize, kBlockSize).value(), a);
  EXPECT_EQ(f.Read(client.get(), 0, {1, 0}, 200 * kBlockSize, 2 * kBlockSize).value(), b);
  EXPECT_EQ(f.Read(client.get(), 0, {1, 0}, 500 * kBlockSize, 3 * kBlockSize).value(), c);
  EXPECT_EQ(f.Read(client.get(), 0, {2, 0}, 0, kBlockSize).value(), a);
  EXPECT_EQ(f.Read(client.get(), 0, {2, 0}, 9 * kBlockSize, 2 * kBlockSize).value(),
            c + b.substr(kBlockSize));
  EXPECT_EQ(f.Read(client.get(), 0, {2, 0}, 20 * kBlockSize, 400).value(), d + e);
}

TEST(ObjectServer, TheOtherOperations) {
  ServerFixture f;
  auto client = f.Client(1), mds = f.Client(0);
  ASSERT_TRUE(f.Write(client.get(), 0, kId, 0, std::string(20000, 'x')).ok());
  proto::ObjectRequest request;
  *request.mutable_truncate()->mutable_object() = ToProto(kId);
  request.mutable_truncate()->set_size(10000);
  EXPECT_EQ(f.Call(mds.get(), request)->write().blocks_delta(), -16);
  *request.mutable_punch()->mutable_object() = ToProto(kId);
  request.mutable_punch()->set_length(4096);
  EXPECT_EQ(f.Call(client.get(), request)->write().blocks_delta(), -8);
  *request.mutable_preallocate()->mutable_object() = ToProto(kId);
  request.mutable_preallocate()->set_offset(1 << 20);
  request.mutable_preallocate()->set_length(8192);
  EXPECT_EQ(f.Call(client.get(), request)->write().blocks_delta(), 16);
  *request.mutable_seek()->mutable_object() = ToProto(kId);
  EXPECT_EQ(f.Call(client.get(), request)->seek().offset(), 4096u);
  request.mutable_list()->set_limit(5);
  auto listed = f.Call(mds.get(), request);
  ASSERT_EQ(listed->list().objects_size(), 1);
  EXPECT_EQ(listed->list().objects(0).size(), 10000u);
  EXPECT_TRUE(listed->list().end());
  request.mutable_statfs();
  auto statfs = f.Call(client.get(), request);
  EXPECT_EQ(statfs->statfs().total_bytes(), ServerFixture::kBlocks * kBlockSize);
  EXPECT_EQ(statfs->statfs().objects(), 1u);
  request.mutable_sync();
  EXPECT_TRUE(f.Call(client.get(), request).ok());
  request.mutable_ping();
  EXPECT_TRUE(f.Call(client.get(), request).ok());
  *request.mutable_destroy()->add_objects() = ToProto(kId);
  EXPECT_EQ(f.Call(client.get(), request)->write().blocks_delta(), -32);
  EXPECT_TRUE(f.Call(client.get(), request).ok()) << "destroying again is no error";
}

// A client that asks for these is in error.
TEST(ObjectServer, SomeRequestsAreTheMdsAlone) {
  ServerFixture f;
  auto client = f.Client(1);
  ASSERT_TRUE(f.Write(client.get(), 0, kId, 0, "hello").ok());
  proto::ObjectRequest request;
  *request.mutable_truncate()->mutable_object() = ToProto(kId);
  EXPECT_EQ(ToErrno(f.Call(client.get(), request).status()), EPERM);
  request.mutable_fence()->set_session(2);
  EXPECT_EQ(ToErrno(f.Call(client.get(), request).status()), EPERM);
  request.mutable_list();
  EXPECT_EQ(ToErrno(f.Call(client.get(), request).status()), EPERM);
  request.mutable_list_grown();
  EXPECT_EQ(ToErrno(f.Call(client.get(), request).status()), EPERM);
  request.mutable_settle_grown();
  EXPECT_EQ(ToErrno(f.Call(client.get(), request).status()), EPERM);
  EXPECT_EQ(f.Read(client.get(), 0, kId, 0, 10).value(), "hello");
}

TEST(ObjectServer, RefusesNonsenseWithAMessage) {
  ServerFixture f;
  auto client = f.Client(1);
  proto::ObjectRequest request;
  EXPECT_EQ(ToErrno(f.Call(client.get(), request).status()), EOPNOTSUPP);
  request.set_ost(77);
  request.mutable_ping();
  Status status = f.Call(client.get(), request).status();
  EXPECT_EQ(ToErrno(status), ENODEV);
  EXPECT_NE(status.message().find("77"), absl::string_view::npos);
  ClientMemory memory(f.transport.get(), 100);
  proto::ObjectRequest read;
  f.AddRange(read.mutable_read()->add_ranges(), kId, 0, 200, 0);
  EXPECT_EQ(ToErrno(f.Run(client->Call(read, CallMemory::kPutTarget, memory.Spans())).status()), EINVAL);
  EXPECT_EQ(ToErrno(f.Run(client->Call(read, CallMemory::kNone, {})).status()), EINVAL);
  auto peer = *f.transport->Connect("inproc:oss");
  CallRequest raw;
  raw.body = "\xff\xff\xff";
  auto reply = f.Run(peer->Call(std::move(raw), 1s));
  ASSERT_TRUE(reply.ok());
  proto::ObjectReply decoded;
  ASSERT_TRUE(decoded.ParseFromString(*reply));
  EXPECT_EQ(decoded.status().error(), static_cast<uint32_t>(EPROTO));
}

TEST(ObjectServer, SurvivesACrashAndARestart) {
  ServerFixture f;
  auto client = f.Client(1);
  ASSERT_TRUE(f.Write(client.get(), 0, kId, 0, "hello").ok());
  ASSERT_TRUE(f.Restart().ok());
  EXPECT_EQ(f.Read(client.get(), 0, kId, 0, 10).value(), "hello");
  EXPECT_TRUE(f.Run(f.server->Stop()).ok());
  f.server.reset();
  EXPECT_EQ(f.kv[0].unsynced_batches(), 0u);
  EXPECT_EQ(f.kv[0].Scan("U", PrefixEnd("U"), 1)->size(), 0u);
}

// A session's request sent by hand, so that sequences can be repeated.
StatusOr<proto::ObjectReply> Raw(ServerFixture* f, proto::ObjectRequest request, std::string data = "") {
  auto peer = *f->transport->Connect("inproc:oss");
  CallRequest call;
  call.body = request.SerializeAsString();
  ClientMemory memory(f->transport.get(), std::max<size_t>(1, data.size()));
  std::copy(data.begin(), data.end(), memory.bytes.begin());
  if (!data.empty()) {
    call.kind = CallMemory::kGetSource;
    call.memory = memory.Spans();
  }
  auto body = f->Run(peer->Call(std::move(call), 5s));
  if (!body.ok()) return body.status();
  proto::ObjectReply reply;
  EXPECT_TRUE(reply.ParseFromString(*body));
  RETURN_IF_ERROR(FromProto(reply.status()));
  return reply;
}

TEST(ObjectServer, ARepeatedMutationIsAnsweredAndNotDone) {
  ServerFixture f;
  proto::ObjectRequest first = f.WriteRequest(0, kId, 0, "aaaa");
  first.set_session(4);
  first.set_sequence(1);
  first.set_low_water(1);
  ASSERT_EQ(Raw(&f, first, "aaaa")->write().blocks_delta(), 8);
  proto::ObjectRequest second = f.WriteRequest(0, kId, 0, "bbbb");
  second.set_session(4);
  second.set_sequence(2);
  second.set_low_water(1);
  ASSERT_EQ(Raw(&f, second, "bbbb")->write().blocks_delta(), 0);
  EXPECT_EQ(Raw(&f, first, "aaaa")->write().blocks_delta(), 8) << "the first answer again";
  auto client = f.Client(9);
  EXPECT_EQ(f.Read(client.get(), 0, kId, 0, 4).value(), "bbbb");
  proto::ObjectRequest third = f.WriteRequest(0, kId, 0, "cccc");
  third.set_session(4);
  third.set_sequence(3);
  third.set_low_water(3);
  ASSERT_TRUE(Raw(&f, third, "cccc").ok());
  EXPECT_EQ(ToErrno(Raw(&f, second, "bbbb").status()), ESTALE) << "a late copy";
  EXPECT_EQ(f.Read(client.get(), 0, kId, 0, 4).value(), "cccc");
}

// Its answer was lost, another has written since, the OSS is started again: the repeat must not undo that.
TEST(ObjectServer, ARepeatedMutationIsNotDoneAfterARestartEither) {
  ServerFixture f;
  proto::ObjectRequest first = f.WriteRequest(0, kId, 0, "first");
  first.set_session(1);
  first.set_sequence(1);
  first.set_low_water(1);
  auto answered = Raw(&f, first, "first");
  ASSERT_TRUE(answered.ok()) << answered.status();
  auto other = f.Client(2);
  ASSERT_TRUE(f.Write(other.get(), 0, kId, 0, "other").ok());
  ASSERT_TRUE(f.Restart().ok());
  auto repeated = Raw(&f, first, "first");
  ASSERT_TRUE(repeated.ok()) << repeated.status();
  EXPECT_EQ(repeated->write().blocks_delta(), answered->write().blocks_delta());
  EXPECT_EQ(f.Read(other.get(), 0, kId, 0, 10).value(), "other");
}

// The truncation found nothing to cut; done again it would cut what another has written since.
TEST(ObjectServer, ARepeatOfWhatChangedNothingChangesNothingAfterARestart) {
  ServerFixture f;
  auto other = f.Client(2);
  ASSERT_TRUE(f.Write(other.get(), 0, kId, 0, "short").ok());
  proto::ObjectRequest truncate;
  *truncate.mutable_truncate()->mutable_object() = ToProto(kId);
  truncate.mutable_truncate()->set_size(5);
  truncate.set_sequence(1);
  truncate.set_low_water(1);
  ASSERT_TRUE(Raw(&f, truncate).ok());
  ASSERT_TRUE(f.Write(other.get(), 0, kId, 5, "er now").ok());
  ASSERT_TRUE(f.Restart().ok());
  ASSERT_TRUE(Raw(&f, truncate).ok());
  EXPECT_EQ(f.Read(other.get(), 0, kId, 0, 20).value(), "shorter now");
}

// The change of blocks is that of the whole request, of which only the last change records the answer.
TEST(ObjectServer, TheAnswerAfterARestartIsThatOfAllRanges) {
  ServerFixture f;
  ClientMemory memory(f.transport.get(), 3 * kBlockSize);
  proto::ObjectRequest request;
  request.set_session(1);
  request.set_sequence(1);
  request.set_low_water(1);
  const std::string block(kBlockSize, 'b');
  for (uint32_t i = 0; i < 3; ++i) {
    proto::ObjectRequest one = f.WriteRequest(0, {9, i}, 0, block);
    one.mutable_write()->mutable_ranges(0)->mutable_range()->set_memory_offset(i * kBlockSize);
    *request.mutable_write()->add_ranges() = one.write().ranges(0);
  }
  const std::string data = block + block + block;
  EXPECT_EQ(Raw(&f, request, data)->write().blocks_delta(), 24);
  ASSERT_TRUE(f.Restart().ok());
  EXPECT_EQ(f.kv[0].Scan("A", PrefixEnd("A"), 9)->size(), 1u);
  EXPECT_EQ(Raw(&f, request, data)->write().blocks_delta(), 24);
}

// A change that a loss of power has taken back was not made, so its answer must be gone, too: the repeat
// makes it again.
TEST(ObjectServer, ARepeatIsDoneAgainIfPowerWasLostBetween) {
  ServerFixture f;
  proto::ObjectRequest first = f.WriteRequest(0, kId, 0, "first");
  first.set_session(1);
  first.set_sequence(1);
  first.set_low_water(1);
  for (int attempt = 0; attempt < 20; ++attempt) {
    ASSERT_TRUE(Raw(&f, first, "first").ok());
    f.server.reset();
    f.kv[0].LosePower(f.random);
    f.disk[0].LosePower(f.random);
    ASSERT_TRUE(f.Start().ok());
    ASSERT_TRUE(Raw(&f, first, "first").ok());
    auto client = f.Client(2);
    EXPECT_EQ(f.Read(client.get(), 0, kId, 0, 10).value(), "first");
    // Takes it all back for the next attempt.
    proto::ObjectRequest destroy;
    *destroy.mutable_destroy()->add_objects() = ToProto(kId);
    ASSERT_TRUE(f.Call(client.get(), destroy).ok());
    first.set_sequence(first.sequence() + 1);
    first.set_low_water(first.sequence());
  }
}

TEST(ObjectServer, FailuresAreAnswersToo) {
  ServerFixture f;
  proto::ObjectRequest request = f.WriteRequest(0, kId, 0, "aaaa");
  request.mutable_write()->mutable_ranges(0)->set_crc(0, 1);
  request.set_session(4);
  request.set_sequence(1);
  request.set_low_water(1);
  EXPECT_EQ(ToErrno(Raw(&f, request, "aaaa").status()), EIO);
  proto::ObjectRequest good = f.WriteRequest(0, kId, 0, "aaaa");
  good.set_session(4);
  good.set_sequence(1);
  good.set_low_water(1);
  EXPECT_EQ(ToErrno(Raw(&f, good, "aaaa").status()), EIO) << "the same sequence is the same request";
}

TEST(ObjectServer, AFencedSessionStaysOutAcrossRestarts) {
  ServerFixture f;
  auto client = f.Client(4), other = f.Client(5), mds = f.Client(0);
  ASSERT_TRUE(f.Write(client.get(), 0, kId, 0, "aaaa").ok());
  proto::ObjectRequest fence;
  fence.mutable_fence()->set_session(4);
  EXPECT_EQ(ToErrno(f.Call(other.get(), fence).status()), EPERM);
  ASSERT_TRUE(f.Call(mds.get(), fence).ok());
  EXPECT_EQ(ToErrno(f.Write(client.get(), 0, kId, 0, "bbbb").status()), ESTALE);
  EXPECT_EQ(ToErrno(f.Read(client.get(), 0, kId, 0, 4).status()), ESTALE);
  EXPECT_TRUE(f.Write(client.get(), 5, kId, 0, "bbbb").ok()) << "another OST";
  f.server.reset();
  f.kv[0].LosePower(f.random);  // a fence is on stable storage
  ASSERT_TRUE(f.Start().ok());
  EXPECT_EQ(ToErrno(f.Write(client.get(), 0, kId, 0, "bbbb").status()), ESTALE);
  EXPECT_EQ(f.Read(other.get(), 0, kId, 0, 4).value(), "aaaa");
}

TEST(ObjectServer, AWriteUnderAGrantFindsSpace) {
  ServerFixture f;
  auto holder = f.Client(1), greedy = f.Client(2), mds = f.Client(0);
  proto::ObjectRequest reserve;
  reserve.mutable_grant()->set_want(100 * kBlockSize);
  EXPECT_EQ(f.Call(holder.get(), reserve)->grant(), 100 * kBlockSize);
  StatusOr<proto::ObjectReply> filled = proto::ObjectReply();
  for (uint64_t size : {1 << 18, 1 << 12}) {
    filled = proto::ObjectReply();
    for (uint64_t i = 0; filled.ok(); ++i) {
      filled = f.Write(greedy.get(), 0, {1, static_cast<uint32_t>(size)}, i * size, std::string(size, 'g'));
    }
  }
  EXPECT_EQ(ToErrno(filled.status()), ENOSPC) << filled.status();
  for (uint64_t i = 0; i < 100; ++i) {
    auto reply = f.Write(holder.get(), 0, kId, i * kBlockSize, std::string(kBlockSize, 'h'), kBlockSize);
    ASSERT_TRUE(reply.ok()) << i << ": " << reply.status();
    EXPECT_EQ(reply->grant(), (99 - i) * kBlockSize);
  }
  EXPECT_EQ(f.Call(holder.get(), reserve)->grant(), 0u) << "nothing is left to promise";
}

TEST(ObjectServer, GrantsAreGivenBack) {
  ServerFixture f;
  auto client = f.Client(1), mds = f.Client(0);
  auto available = [&] {
    proto::ObjectRequest statfs;
    statfs.mutable_statfs();
    return f.Call(mds.get(), statfs)->statfs().available_bytes();
  };
  uint64_t before = available();
  proto::ObjectRequest reserve;
  reserve.mutable_grant()->set_want(1 << 20);
  ASSERT_EQ(f.Call(client.get(), reserve)->grant(), 1u << 20);
  EXPECT_EQ(available(), before - (1 << 20));
  reserve.mutable_grant()->set_want(0);
  EXPECT_EQ(f.Call(client.get(), reserve)->grant(), 0u);
  EXPECT_EQ(available(), before);
  reserve.mutable_grant()->set_want(~uint64_t{0});
  EXPECT_LE(f.Call(client.get(), reserve)->grant(), before / 2 + (1 << 20)) << "nobody gets everything";
  proto::ObjectRequest fence;
  fence.mutable_fence()->set_session(1);
  ASSERT_TRUE(f.Call(mds.get(), fence).ok());
  EXPECT_EQ(available(), before);
}

}  // namespace
}  // namespace nacre
