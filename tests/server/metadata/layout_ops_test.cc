// Striping as a user sets and sees it.
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

constexpr uint64_t kEnd = ~uint64_t{0};
constexpr uint32_t kMiB = 1 << 20;

class LayoutOpsTest : public testing::Test {
 protected:
  struct Wish {
    uint64_t end;
    uint32_t stripe_size;
    int32_t stripe_count;
    uint32_t copies = 0;
  };

  proto::MetadataReply Set(Fid fid, const std::vector<Wish>& wishes) {
    proto::MetadataRequest request;
    *request.mutable_set_layout()->mutable_fid() = ToProto(fid);
    request.mutable_set_layout()->mutable_layout();
    for (const Wish& wish : wishes) {
      proto::TemplateComponent* component = request.mutable_set_layout()->mutable_layout()->add_components();
      component->set_end(wish.end);
      component->set_stripe_size(wish.stripe_size);
      component->set_stripe_count(wish.stripe_count);
      component->set_copies(wish.copies);
    }
    return client.Call(request);
  }
  proto::MetadataReply Get(Fid fid) {
    proto::MetadataRequest request;
    *request.mutable_get_layout()->mutable_fid() = ToProto(fid);
    return client.Call(request);
  }

  Harness harness{4};
  TestClient client{harness};
};

TEST_F(LayoutOpsTest, ADirectorysDefaultIsInheritedUntilADirectoryHasItsOwn) {
  const Fid outer = FidOf(client.Mkdir(kRootFid, "outer"));
  const Fid inner = FidOf(client.Mkdir(outer, "inner"));
  EXPECT_TRUE(Get(inner).layout().inherited());
  auto set = Set(outer, {{kEnd, 2 * kMiB, 3}});
  ASSERT_THAT(set, IsOk());
  EXPECT_FALSE(set.layout().inherited());
  auto below = Get(inner).layout();
  EXPECT_TRUE(below.inherited());
  ASSERT_EQ(below.directory_default().components_size(), 1);
  EXPECT_EQ(below.directory_default().components(0).stripe_count(), 3);
  auto file = client.Create(inner, "f");
  ASSERT_EQ(file.entry().layout().components_size(), 1);
  EXPECT_EQ(file.entry().layout().components(0).ost_group_size(), 3);
  EXPECT_EQ(file.entry().layout().components(0).stripe_size(), 2 * kMiB);
  ASSERT_THAT(Set(inner, {{kEnd, kMiB, 1}}), IsOk());
  EXPECT_EQ(client.Create(inner, "g").entry().layout().components(0).ost_group_size(), 1);
  ASSERT_THAT(Set(inner, {}), IsOk());  // inherits again
  EXPECT_EQ(client.Create(inner, "h").entry().layout().components(0).ost_group_size(), 3);
}

TEST_F(LayoutOpsTest, ProgressiveComponentsAndAllOsts) {
  const Fid dir = FidOf(client.Mkdir(kRootFid, "d"));
  ASSERT_THAT(Set(dir, {{kMiB, kMiB, 1}, {64 * kMiB, kMiB, 2}, {kEnd, 4 * kMiB, -1}}), IsOk());
  auto layout = client.Create(dir, "f").entry().layout();
  ASSERT_EQ(layout.components_size(), 3);
  EXPECT_EQ(layout.components(0).end(), kMiB);
  EXPECT_EQ(layout.components(1).ost_group_size(), 2);
  EXPECT_EQ(layout.components(2).ost_group_size(), 4);
  EXPECT_EQ(layout.components(2).end(), kEnd);
}

TEST_F(LayoutOpsTest, AFileTakesALayoutWhileItIsEmpty) {
  const Fid file = FidOf(client.Create(kRootFid, "f"));
  const uint32_t before = Get(file).layout().layout().generation();
  auto set = Set(file, {{kEnd, kMiB, 2}});
  ASSERT_THAT(set, IsOk());
  EXPECT_GT(set.layout().layout().generation(), before);
  EXPECT_EQ(Get(file).layout().layout().components(0).ost_group_size(), 2);
  EXPECT_THAT(Set(file, {}), Fails(EINVAL));
  proto::MetadataRequest write;
  *write.mutable_write_inline()->mutable_fid() = ToProto(file);
  write.mutable_write_inline()->set_data("x");
  ASSERT_THAT(client.Call(write), IsOk());
  EXPECT_THAT(Set(file, {{kEnd, kMiB, 1}}), Fails(EBUSY));
}

TEST_F(LayoutOpsTest, RefusesLayoutsThatDoNotHoldTogether) {
  const Fid dir = FidOf(client.Mkdir(kRootFid, "d"));
  EXPECT_THAT(Set(dir, {{kEnd, 1000, 1}}), Fails(EINVAL));
  EXPECT_THAT(Set(dir, {{kEnd, kMiB, -2}}), Fails(EINVAL));
  EXPECT_THAT(Set(dir, {{kMiB, kMiB, 1}}), Fails(EINVAL));                       // does not reach the end
  EXPECT_THAT(Set(dir, {{kMiB, kMiB, 1}, {kMiB, kMiB, 1}}), Fails(EINVAL));      // empty component
  EXPECT_THAT(Set(dir, {{kMiB, 2 * kMiB, 1}, {kEnd, kMiB, 1}}), Fails(EINVAL));  // not whole stripes
  EXPECT_THAT(Set(dir, std::vector<Wish>(1000, Wish{kEnd, kMiB, 1})), Fails(EINVAL));
  EXPECT_TRUE(Get(dir).layout().inherited());
}

std::vector<uint32_t> GroupsOf(const proto::Component& component) {
  std::vector<uint32_t> groups(component.ost_group().begin(), component.ost_group().end());
  std::ranges::sort(groups);
  return groups;
}

TEST_F(LayoutOpsTest, FilesGoToOstsWithAsManyCopiesAsAsked) {
  harness.SetCopies(1, 2);
  harness.SetCopies(3, 2);
  const Fid dir = FidOf(client.Mkdir(kRootFid, "d"));
  ASSERT_THAT(Set(dir, {{kMiB, kMiB, -1, 2}, {kEnd, kMiB, -1, 1}}), IsOk());
  harness.Restart();
  client.Reconnect();
  harness.RegisterOsts();
  const Fid inner = FidOf(client.Mkdir(dir, "inner"));
  auto shown = Get(inner).layout();
  EXPECT_TRUE(shown.inherited());
  EXPECT_EQ(shown.directory_default().components(0).copies(), 2u);
  auto layout = client.Create(inner, "f").entry().layout();
  ASSERT_EQ(layout.components_size(), 2);
  EXPECT_THAT(GroupsOf(layout.components(0)), testing::ElementsAre(1, 3));
  EXPECT_THAT(GroupsOf(layout.components(1)), testing::ElementsAre(0, 2));
  // Without a number of copies the layout gets OSTs with as few as there are.
  ASSERT_THAT(Set(dir, {{kEnd, kMiB, -1}}), IsOk());
  layout = client.Create(inner, "g").entry().layout();
  EXPECT_THAT(GroupsOf(layout.components(0)), testing::ElementsAre(0, 2));
  // Also where they are away: nothing goes to OSTs with another number.
  harness.osts.away = {0, 2};
  harness.RunFor(std::chrono::seconds(10));
  const Fid file = FidOf(client.Create(kRootFid, "h"));
  ASSERT_THAT(Set(file, {{kEnd, kMiB, -1, 1}}), IsOk());
  EXPECT_THAT(GroupsOf(Get(file).layout().layout().components(0)), testing::ElementsAre(0, 2));
}

TEST_F(LayoutOpsTest, WithoutAnOstOfSoManyCopiesNoFileIsMade) {
  harness.SetCopies(1, 2);
  const Fid dir = FidOf(client.Mkdir(kRootFid, "d"));
  EXPECT_THAT(Set(dir, {{kEnd, kMiB, 1, 4}}), Fails(EINVAL));
  ASSERT_THAT(Set(dir, {{kEnd, kMiB, 1, 3}}), IsOk());
  auto made = client.Create(dir, "f");
  EXPECT_THAT(made, Fails(ENODEV));
  EXPECT_THAT(made.status().message(), testing::HasSubstr("no OST has 3 copies: there are OSTs with 1, 2"));
}

TEST_F(LayoutOpsTest, IsForTheOwnerOfADirectoryAndWritersOfAFile) {
  const Fid dir = FidOf(client.Mkdir(kRootFid, "d", 0777));
  const Fid file = FidOf(client.Create(kRootFid, "f", 0644));
  const Fid link = FidOf(client.Symlink(kRootFid, "l", "x"));
  EXPECT_THAT(Set(link, {{kEnd, kMiB, 1}}), Fails(EINVAL));
  EXPECT_THAT(Get(link), Fails(EINVAL));
  client.As(1000, 1000);
  EXPECT_THAT(Set(dir, {{kEnd, kMiB, 1}}), Fails(EPERM));
  EXPECT_THAT(Set(file, {{kEnd, kMiB, 1}}), Fails(EACCES));
  EXPECT_THAT(Get(file), IsOk());
}

}  // namespace
}  // namespace nacre::mds
