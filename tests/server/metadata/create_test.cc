#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

TEST(Create, MakesAFileThatLookupFinds) {
  Harness harness;
  TestClient client(harness);
  auto made = client.Create(kRootFid, "a", 0640);
  ASSERT_THAT(made, IsOk());
  EXPECT_EQ(made.entry().attr().mode(), S_IFREG | 0640u);
  EXPECT_EQ(made.entry().attr().nlink(), 1u);
  EXPECT_EQ(made.entry().parent().size(), 1u);
  EXPECT_EQ(made.entry().layout().components_size(), 1);
  auto found = client.Lookup(kRootFid, "a");
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(FidOf(found), FidOf(made));
}

TEST(Create, ExclusiveRefusesAnExistingNameAndOtherwiseOpensIt) {
  Harness harness;
  TestClient client(harness);
  auto made = client.Create(kRootFid, "a");
  EXPECT_THAT(client.Create(kRootFid, "a"), Fails(EEXIST));
  auto opened = client.Create(kRootFid, "a", 0600, O_RDWR | O_CREAT, /*exclusive=*/false);
  ASSERT_THAT(opened, IsOk());
  EXPECT_EQ(FidOf(opened), FidOf(made));
  EXPECT_EQ(opened.entry().attr().mode() & 0777, 0644u);
}

TEST(Create, RefusesBadNames) {
  Harness harness;
  TestClient client(harness);
  EXPECT_THAT(client.Create(kRootFid, std::string(255, 'x')), IsOk());
  EXPECT_THAT(client.Create(kRootFid, std::string(256, 'x')), Fails(ENAMETOOLONG));
  EXPECT_THAT(client.Create(kRootFid, ""), Fails(EINVAL));
  EXPECT_THAT(client.Create(kRootFid, "."), Fails(EINVAL));
  EXPECT_THAT(client.Create(kRootFid, "a/b"), Fails(EINVAL));
  EXPECT_THAT(client.Create(kRootFid, std::string("a\0b", 3)), Fails(EINVAL));
  EXPECT_THAT(client.Create(kRootFid, "\xff\n\x01"), IsOk());
}

TEST(Create, WithoutAnOstSaysSo) {
  Harness harness(0);
  TestClient client(harness);
  EXPECT_THAT(client.Create(kRootFid, "a"), Fails(ENODEV));
  EXPECT_THAT(client.Mkdir(kRootFid, "d"), IsOk());
}

TEST(Create, NeedsWritePermissionOnTheDirectory) {
  Harness harness;
  TestClient client(harness, 1000, 1000);
  EXPECT_THAT(client.Create(kRootFid, "a"), Fails(EACCES));
}

TEST(Mkdir, CountsLinks) {
  Harness harness;
  TestClient client(harness);
  auto a = client.Mkdir(kRootFid, "a");
  ASSERT_THAT(a, IsOk());
  EXPECT_EQ(a.entry().attr().nlink(), 2u);
  EXPECT_EQ(a.entry().parent().nlink(), 3u);
  auto b = client.Mkdir(FidOf(a), "b");
  EXPECT_EQ(b.entry().parent().nlink(), 3u);
  EXPECT_EQ(FidOf(client.Lookup(FidOf(b), "..")), FidOf(a));
  EXPECT_THAT(client.Rmdir(kRootFid, "a"), Fails(ENOTEMPTY));
  EXPECT_THAT(client.Rmdir(FidOf(a), "b"), IsOk());
  EXPECT_EQ(client.Getattr(FidOf(a)).attr().attr().nlink(), 2u);
}

TEST(Unlink, RemovesTheFileOnceNobodyHasItOpen) {
  Harness harness;
  TestClient client(harness);
  Fid fid = FidOf(client.Create(kRootFid, "a"));
  auto gone = client.Unlink(kRootFid, "a");
  ASSERT_THAT(gone, IsOk());
  EXPECT_EQ(gone.attr().attr().nlink(), 0u);
  EXPECT_THAT(client.Lookup(kRootFid, "a"), Fails(ENOENT));
  EXPECT_THAT(client.Getattr(fid), IsOk());
  EXPECT_THAT(client.Close(fid), IsOk());
  EXPECT_THAT(client.Getattr(fid), Fails(ENOENT));
}

TEST(Readdir, ListsEveryEntryOnceInPages) {
  Harness harness;
  TestClient client(harness);
  std::vector<std::string> names;
  for (int i = 0; i < 100; ++i) {
    names.push_back(absl::StrCat("f", i));
    ASSERT_THAT(client.Mknod(kRootFid, names.back(), S_IFREG | 0644), IsOk());
  }
  EXPECT_THAT(client.List(kRootFid, 7), testing::UnorderedElementsAreArray(names));
}

TEST(Retry, ARepeatedRequestHappensOnceAlsoAfterARestart) {
  Harness harness;
  TestClient client(harness);
  proto::MetadataRequest request;
  *request.mutable_create()->mutable_parent() = ToProto(kRootFid);
  request.mutable_create()->set_name("a");
  request.mutable_create()->set_exclusive(true);
  request = client.Prepare(request);
  auto first = harness.Await(harness.server->Handle(client.peer, request));
  ASSERT_THAT(first, IsOk());
  auto second = harness.Await(harness.server->Handle(client.peer, request));
  EXPECT_EQ(first.SerializeAsString(), second.SerializeAsString());
  harness.Restart();
  ASSERT_THAT(client.Connect(), IsOk());
  auto third = harness.Await(harness.server->Handle(client.peer, request));
  EXPECT_EQ(first.SerializeAsString(), third.SerializeAsString());
  EXPECT_THAT(client.List(kRootFid), testing::ElementsAre("a"));
}

TEST(Mkdir, TimesOfADirectoryDoNotGoBackWithASlowerClock) {
  Harness harness;
  TestClient client(harness);
  auto make = [&](const std::string& name, int64_t seconds) {
    proto::MetadataRequest request;
    *request.mutable_mknod()->mutable_parent() = ToProto(kRootFid);
    request.mutable_mknod()->set_name(name);
    request.mutable_mknod()->set_mode(S_IFDIR | 0755);
    request.mutable_time()->set_seconds(seconds);
    return client.Call(request);
  };
  ASSERT_THAT(make("a", 2'000'000'000), IsOk());
  auto slower = make("b", 1'999'999'000);
  ASSERT_THAT(slower, IsOk());
  EXPECT_EQ(slower.entry().attr().mtime().seconds(), 1'999'999'000);
  EXPECT_EQ(client.Getattr(kRootFid).attr().attr().mtime().seconds(), 2'000'000'000);
  EXPECT_EQ(client.Getattr(kRootFid).attr().attr().ctime().seconds(), 2'000'000'000);
}

}  // namespace
}  // namespace nacre::mds
