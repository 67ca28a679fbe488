#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

class SetattrTest : public testing::Test {
 protected:
  proto::Attr Attr(Fid fid) { return client.Getattr(fid).attr().attr(); }
  proto::MetadataRequest Set(Fid fid) {
    proto::MetadataRequest request;
    *request.mutable_setattr()->mutable_fid() = ToProto(fid);
    return request;
  }

  Harness harness;
  TestClient client{harness};
};

TEST_F(SetattrTest, ChmodIsForTheOwnerAndKeepsTheType) {
  Fid f = FidOf(client.Create(kRootFid, "f", 0644));
  EXPECT_THAT(client.Chmod(f, 04755), IsOk());
  EXPECT_EQ(Attr(f).mode(), S_IFREG | 04755u);
  client.As(1000, 1000);
  EXPECT_THAT(client.Chmod(f, 0777), Fails(EPERM));
}

TEST_F(SetattrTest, WhoMayWriteMayDropSetuidAndNothingElse) {
  Fid f = FidOf(client.Create(kRootFid, "f", 0777));
  ASSERT_THAT(client.Chmod(f, 06777), IsOk());
  client.As(1000, 1000);
  EXPECT_THAT(client.Chmod(f, 0755), Fails(EPERM));
  EXPECT_THAT(client.Chmod(f, 07777), Fails(EPERM));
  EXPECT_THAT(client.Chmod(f, 0777), IsOk());
  EXPECT_EQ(Attr(f).mode() & 07777, 0777u);
  client.As(0, 0);
  ASSERT_THAT(client.Chmod(f, 04755), IsOk());
  client.As(1000, 1000);
  EXPECT_THAT(client.Chmod(f, 0755), Fails(EACCES));
}

TEST_F(SetattrTest, SetgidNeedsTheGroup) {
  Fid f = FidOf(client.Create(kRootFid, "f"));
  client.Chown(f, 1000, 50);
  client.As(1000, 1000);
  ASSERT_THAT(client.Chmod(f, 02755), IsOk());
  EXPECT_EQ(Attr(f).mode() & 07777, 0755u);
  client.As(1000, 1000, {50});
  ASSERT_THAT(client.Chmod(f, 02755), IsOk());
  EXPECT_EQ(Attr(f).mode() & 07777, 02755u);
}

TEST_F(SetattrTest, ChownRules) {
  Fid f = FidOf(client.Create(kRootFid, "f"));
  ASSERT_THAT(client.Chown(f, 1000, 1000), IsOk());
  client.As(1000, 1000, {50});
  EXPECT_THAT(client.Chown(f, 2000, -1), Fails(EPERM));
  EXPECT_THAT(client.Chown(f, -1, 60), Fails(EPERM));
  EXPECT_THAT(client.Chown(f, -1, 50), IsOk());
  EXPECT_THAT(client.Chown(f, 1000, -1), IsOk());
  client.As(2000, 2000);
  EXPECT_THAT(client.Chown(f, 2000, -1), Fails(EPERM));
}

TEST_F(SetattrTest, ChownClearsSetuidOnFilesAlone) {
  Fid f = FidOf(client.Create(kRootFid, "f")), d = FidOf(client.Mkdir(kRootFid, "d"));
  client.Chmod(f, 06755);
  client.Chmod(d, 06755);
  client.Chown(f, 1, 1);
  client.Chown(d, 1, 1);
  EXPECT_EQ(Attr(f).mode() & 07777, 0755u);
  EXPECT_EQ(Attr(d).mode() & 07777, 06755u);
  client.Chmod(f, 02644);  // mandatory locking's mark, no setgid program
  client.Chown(f, 2, 2);
  EXPECT_EQ(Attr(f).mode() & 07777, 02644u);
}

TEST_F(SetattrTest, TimesNeedOwnershipOrWriteForNow) {
  Fid f = FidOf(client.Create(kRootFid, "f", 0666));
  auto explicit_time = Set(f);
  explicit_time.mutable_setattr()->set_set_mtime(true);
  explicit_time.mutable_setattr()->mutable_mtime()->set_seconds(-5);
  explicit_time.mutable_setattr()->mutable_mtime()->set_nanos(999'999'999);
  ASSERT_THAT(client.Call(explicit_time), IsOk());
  EXPECT_EQ(Attr(f).mtime().seconds(), -5);
  EXPECT_EQ(Attr(f).mtime().nanos(), 999'999'999u);
  auto now = Set(f);
  now.mutable_setattr()->set_set_atime(true);
  now.mutable_setattr()->set_atime_now(true);
  client.As(1000, 1000);
  EXPECT_THAT(client.Call(explicit_time), Fails(EPERM));
  EXPECT_THAT(client.Call(now), IsOk());
  client.As(0, 0);
  client.Chmod(f, 0644);
  client.As(1000, 1000);
  EXPECT_THAT(client.Call(now), Fails(EACCES));
  client.As(0, 0);
  explicit_time.mutable_setattr()->mutable_mtime()->set_nanos(1'000'000'000);
  EXPECT_THAT(client.Call(explicit_time), Fails(EINVAL));
}

TEST_F(SetattrTest, TruncateChecksTypeAndPermission) {
  Fid f = FidOf(client.Create(kRootFid, "f", 0444)), d = FidOf(client.Mkdir(kRootFid, "d"));
  EXPECT_THAT(client.Truncate(d, 0), Fails(EISDIR));
  EXPECT_THAT(client.Truncate(FidOf(client.Mknod(kRootFid, "p", S_IFIFO | 0666)), 0), Fails(EINVAL));
  EXPECT_THAT(client.Truncate(f, uint64_t{1} << 63), Fails(EFBIG));
  client.As(1000, 1000);
  EXPECT_THAT(client.Truncate(f, 0), Fails(EACCES));
  auto through_handle = Set(f);
  through_handle.mutable_setattr()->set_set_size(true);
  through_handle.mutable_setattr()->set_open_handle(true);
  EXPECT_THAT(client.Call(through_handle), IsOk());
}

TEST_F(SetattrTest, TruncateOfInlineData) {
  Fid f = FidOf(client.Create(kRootFid, "f"));
  proto::MetadataRequest write;
  *write.mutable_write_inline()->mutable_fid() = ToProto(f);
  write.mutable_write_inline()->set_data("hello world");
  ASSERT_THAT(client.Call(write), IsOk());
  ASSERT_THAT(client.Truncate(f, 5), IsOk());
  EXPECT_EQ(client.Lookup(kRootFid, "f", true).entry().data(), "hello");
  ASSERT_THAT(client.Truncate(f, 7), IsOk());
  EXPECT_EQ(client.Lookup(kRootFid, "f", true).entry().data(), std::string("hello\0\0", 7));
  ASSERT_THAT(client.Truncate(f, 1 << 20), IsOk());
  EXPECT_FALSE(Attr(f).inline_data());
  EXPECT_EQ(Attr(f).size(), 1u << 20);
  EXPECT_EQ(harness.osts.CountObjects(), 1u);
}

class TruncateTest : public SetattrTest {
 protected:
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
};

TEST_F(TruncateTest, CutsTheObjects) {
  Fid f = Striped(1 << 20);
  uint32_t generation = Attr(f).layout_generation();
  ASSERT_THAT(client.Truncate(f, (64 << 10) * 5 + 100), IsOk());
  EXPECT_THAT(Sizes(),
              testing::UnorderedElementsAre(2 * (64u << 10), (64u << 10) + 100, 64u << 10, 64u << 10));
  EXPECT_EQ(Attr(f).size(), (64u << 10) * 5 + 100);
  EXPECT_GT(Attr(f).layout_generation(), generation);
}

TEST_F(TruncateTest, CutsAgainWhatALossOfPowerHasTakenBack) {
  Fid f = Striped(1 << 20);
  ASSERT_THAT(client.Truncate(f, (1 << 20) - 1), IsOk());  // and syncs
  harness.osts.loses_power = {0, 1, 2, 3};
  ASSERT_THAT(client.Truncate(f, 1000), IsOk());
  EXPECT_THAT(harness.osts.loses_power, testing::IsEmpty());
  EXPECT_THAT(Sizes(), testing::UnorderedElementsAre(1000, 0, 0, 0));
}

TEST_F(TruncateTest, DestroysAgainWhatALossOfPowerHasBroughtBack) {
  Fid f = Striped(1 << 20);
  ASSERT_THAT(client.Truncate(f, (1 << 20) - 1), IsOk());
  harness.osts.loses_power = {0, 1, 2, 3};
  ASSERT_THAT(client.Truncate(f, 0), IsOk());
  harness.RunFor(std::chrono::seconds(5));
  EXPECT_THAT(harness.osts.loses_power, testing::IsEmpty());
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
}

TEST_F(TruncateTest, ToZeroExchangesTheObjectsAndDestroysTheOldOnes) {
  Fid f = Striped(1 << 20);
  EXPECT_EQ(harness.osts.CountObjects(), 4u);
  auto cut = client.Truncate(f, 0);
  ASSERT_THAT(cut, IsOk());
  EXPECT_TRUE(cut.attr().attr().inline_data());
  EXPECT_EQ(cut.attr().attr().blocks(), 0u);
  harness.RunFor(std::chrono::seconds(3));
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
}

TEST_F(TruncateTest, IsDoneAfterACrashInBetween) {
  Fid f = Striped(1 << 20);
  harness.osts.away = {0, 1, 2, 3};
  proto::MetadataRequest request = Set(f);
  request.mutable_setattr()->set_set_size(true);
  request.mutable_setattr()->set_size(1000);
  auto reply = std::make_shared<std::optional<proto::MetadataReply>>();
  client.Start(request, reply);
  harness.RunFor(std::chrono::seconds(2));
  EXPECT_FALSE(reply->has_value());
  harness.Restart();
  harness.osts.away = {};
  ASSERT_THAT(client.Connect(), IsOk());
  harness.RunFor(std::chrono::seconds(10));
  EXPECT_EQ(Attr(f).size(), 1000u);
  EXPECT_THAT(Sizes(), testing::UnorderedElementsAre(1000, 0, 0, 0));
}

TEST_F(SetattrTest, SizesHaveALimit) {
  Fid f = FidOf(client.Create(kRootFid, "f"));
  EXPECT_THAT(client.UpdateSize(f, ~uint64_t{0}), Fails(EFBIG));
  EXPECT_THAT(client.Truncate(f, ~uint64_t{0}), Fails(EFBIG));
}

TEST_F(TruncateTest, AWriteUnderTheOldLayoutIsRefused) {
  Fid f = Striped(1 << 20);
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

TEST_F(TruncateTest, OfAFileThatIsRemovedMeanwhileLeavesNothing) {
  Fid f = Striped(1 << 20);
  ASSERT_THAT(client.Close(f), IsOk());
  harness.osts.away = {0, 1, 2, 3};
  proto::MetadataRequest request = Set(f);
  request.mutable_setattr()->set_set_size(true);
  request.mutable_setattr()->set_size(1000);
  auto reply = std::make_shared<std::optional<proto::MetadataReply>>();
  client.Start(request, reply);
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

}  // namespace
}  // namespace nacre::mds
