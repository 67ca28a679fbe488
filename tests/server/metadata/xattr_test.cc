// Extended attributes: names, values, who may, and what stays of them.
#include <sys/xattr.h>

#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class XattrTest : public testing::Test {
 protected:
  proto::MetadataReply Set(Fid fid, const std::string& name, const std::string& value, uint32_t flags = 0) {
    proto::MetadataRequest request;
    *request.mutable_set_xattr()->mutable_fid() = ToProto(fid);
    request.mutable_set_xattr()->set_name(name);
    request.mutable_set_xattr()->set_value(value);
    request.mutable_set_xattr()->set_flags(flags);
    return client.Call(request);
  }
  proto::MetadataReply Get(Fid fid, const std::string& name) {
    proto::MetadataRequest request;
    *request.mutable_get_xattr()->mutable_fid() = ToProto(fid);
    request.mutable_get_xattr()->set_name(name);
    return client.Call(request);
  }
  proto::MetadataReply Remove(Fid fid, const std::string& name) {
    proto::MetadataRequest request;
    *request.mutable_remove_xattr()->mutable_fid() = ToProto(fid);
    request.mutable_remove_xattr()->set_name(name);
    return client.Call(request);
  }
  std::vector<std::string> List(Fid fid) {
    proto::MetadataRequest request;
    *request.mutable_list_xattr()->mutable_fid() = ToProto(fid);
    auto reply = client.Call(request);
    EXPECT_THAT(reply, IsOk());
    return {reply.list_xattr().names().begin(), reply.list_xattr().names().end()};
  }
  bool HasXattrs(Fid fid) { return client.Getattr(fid).attr().attr().has_xattrs(); }

  Harness harness;
  TestClient client{harness};
  Fid file = FidOf(client.Create(kRootFid, "f", 0666));
};

TEST_F(XattrTest, SetGetListRemove) {
  EXPECT_THAT(Get(file, "user.a"), Fails(ENODATA));
  EXPECT_FALSE(HasXattrs(file));
  const std::string bytes("\0\xff\n", 3);
  auto set = Set(file, "user.a", bytes);
  ASSERT_THAT(set, IsOk());
  EXPECT_TRUE(set.attr().attr().has_xattrs());
  ASSERT_THAT(Set(file, "security.b", ""), IsOk());
  EXPECT_EQ(Get(file, "user.a").xattr().value(), bytes);
  EXPECT_THAT(Get(file, "security.b"), IsOk());
  EXPECT_THAT(List(file), UnorderedElementsAre("user.a", "security.b"));
  ASSERT_THAT(Set(file, "user.a", "new"), IsOk());
  EXPECT_EQ(Get(file, "user.a").xattr().value(), "new");
  ASSERT_THAT(Remove(file, "user.a"), IsOk());
  EXPECT_THAT(Remove(file, "user.a"), Fails(ENODATA));
  ASSERT_THAT(Remove(file, "security.b"), IsOk());
  EXPECT_FALSE(HasXattrs(file));
  EXPECT_THAT(List(file), IsEmpty());
}

TEST_F(XattrTest, CreateAndReplaceSayWhatTheyExpect) {
  EXPECT_THAT(Set(file, "user.a", "1", XATTR_REPLACE), Fails(ENODATA));
  EXPECT_THAT(Set(file, "user.a", "1", XATTR_CREATE), IsOk());
  EXPECT_THAT(Set(file, "user.a", "2", XATTR_CREATE), Fails(EEXIST));
  EXPECT_THAT(Set(file, "user.a", "2", XATTR_REPLACE), IsOk());
  EXPECT_THAT(Set(file, "user.a", "3", 4), Fails(EINVAL));
  EXPECT_EQ(Get(file, "user.a").xattr().value(), "2");
}

TEST_F(XattrTest, NamesAndSizesHaveLimits) {
  EXPECT_THAT(Set(file, "user.", "1"), Fails(EINVAL));
  EXPECT_THAT(Set(file, "other.a", "1"), Fails(EOPNOTSUPP));
  EXPECT_THAT(Set(file, "system.posix_acl_access", "1"), Fails(EOPNOTSUPP));
  EXPECT_THAT(Set(file, "user." + std::string(250, 'n'), "1"), IsOk());
  EXPECT_THAT(Set(file, "user." + std::string(251, 'n'), "1"), Fails(ERANGE));
  EXPECT_THAT(Set(file, "user.big", std::string(65536, 'v')), IsOk());
  EXPECT_THAT(Set(file, "user.bigger", std::string(65537, 'v')), Fails(E2BIG));
}

// As many as listxattr(2) can name in its 65536 bytes.
TEST_F(XattrTest, TheNamesTogetherHaveALimitTheirNumberHasNone) {
  for (int i = 0; i < 3000; ++i) ASSERT_THAT(Set(file, absl::StrFormat("user.%04d", i), ""), IsOk()) << i;
  EXPECT_EQ(List(file).size(), 3000u);  // 30000 bytes
  for (int i = 0; i < 138; ++i)
    ASSERT_THAT(Set(file, absl::StrFormat("user.%03d%s", i, std::string(247, 'n')), ""), IsOk()) << i;
  ASSERT_THAT(Set(file, "user." + std::string(202, 'n'), ""), IsOk());  // 65536 bytes with it
  EXPECT_THAT(Set(file, "user.m", ""), Fails(ENOSPC));
  EXPECT_THAT(Set(file, "user.0002", "changed"), IsOk());
  EXPECT_EQ(List(file).size(), 3139u);
  EXPECT_THAT(Remove(file, "user.0001"), IsOk());
  EXPECT_THAT(Set(file, "user.m", ""), IsOk());
}

TEST_F(XattrTest, ACapabilityGoesWithATruncationAndAChangeOfOwner) {
  const std::string name = "security.capability";
  auto set = [&] {
    ASSERT_THAT(Set(file, name, "1"), IsOk());
    ASSERT_THAT(Set(file, "user.a", "1"), IsOk());
  };
  auto setattr = [&](auto fill) {
    proto::MetadataRequest request;
    *request.mutable_setattr()->mutable_fid() = ToProto(file);
    fill(request.mutable_setattr());
    return client.Call(request);
  };
  set();
  client.As(1000, 1000);
  ASSERT_THAT(setattr([](proto::Setattr* out) { out->set_set_size(true); }), IsOk());
  EXPECT_THAT(List(file), ElementsAre("user.a"));
  client.As(0, 0);
  set();
  ASSERT_THAT(setattr([](proto::Setattr* out) {
                out->set_set_mode(true);
                out->set_mode(0666);
              }),
              IsOk());
  EXPECT_THAT(Get(file, name), IsOk());
  ASSERT_THAT(setattr([](proto::Setattr* out) {
                out->set_set_uid(true);
                out->set_uid(1000);
              }),
              IsOk());
  EXPECT_THAT(List(file), ElementsAre("user.a"));
  set();
  client.As(1001, 1001);
  EXPECT_THAT(Remove(file, name), IsOk());  // the kernel does so for whoever writes
  EXPECT_THAT(Set(file, name, "1"), Fails(EPERM));
}

TEST_F(XattrTest, UserAttributesFollowThePermissionBits) {
  const Fid secret = FidOf(client.Create(kRootFid, "secret", 0600));
  ASSERT_THAT(Set(secret, "user.a", "1"), IsOk());
  const Fid readable = FidOf(client.Create(kRootFid, "readable", 0644));
  ASSERT_THAT(Set(readable, "user.a", "1"), IsOk());
  client.As(1000, 1000);
  EXPECT_THAT(Get(secret, "user.a"), Fails(EACCES));
  EXPECT_THAT(Get(readable, "user.a"), IsOk());
  EXPECT_THAT(Set(readable, "user.a", "2"), Fails(EACCES));
  EXPECT_THAT(Remove(readable, "user.a"), Fails(EACCES));
  EXPECT_THAT(Set(file, "user.a", "2"), IsOk());
}

TEST_F(XattrTest, TrustedIsForRootAndSecurityWrittenByRoot) {
  ASSERT_THAT(Set(file, "trusted.t", "1"), IsOk());
  ASSERT_THAT(Set(file, "security.s", "2"), IsOk());
  client.As(1000, 1000);
  EXPECT_THAT(Get(file, "trusted.t"), Fails(ENODATA));
  EXPECT_THAT(Set(file, "trusted.t", "x"), Fails(EPERM));
  EXPECT_EQ(Get(file, "security.s").xattr().value(), "2");
  EXPECT_THAT(Set(file, "security.s", "x"), Fails(EPERM));
  EXPECT_THAT(Remove(file, "security.s"), Fails(EPERM));
  EXPECT_THAT(List(file), ElementsAre("security.s"));
}

TEST_F(XattrTest, UserAttributesNeedAFileOrADirectory) {
  const Fid link = FidOf(client.Symlink(kRootFid, "l", "target"));
  EXPECT_THAT(Set(link, "user.a", "1"), Fails(EPERM));
  EXPECT_THAT(Get(link, "user.a"), Fails(ENODATA));
  EXPECT_THAT(Set(link, "trusted.a", "1"), IsOk());
  const Fid sticky = FidOf(client.Mkdir(kRootFid, "d", 01777));
  EXPECT_THAT(Set(sticky, "user.a", "1"), IsOk());
  client.As(1000, 1000);
  EXPECT_THAT(Set(sticky, "user.a", "2"), Fails(EPERM));
}

TEST_F(XattrTest, TheyOutliveARestartAndGoWithTheFile) {
  ASSERT_THAT(Set(file, "user.a", "kept"), IsOk());
  ASSERT_THAT(client.Close(file), IsOk());
  harness.Restart();
  ASSERT_THAT(client.Connect(), IsOk());
  proto::MetadataRequest whole;
  whole.mutable_reclaim()->set_last(true);
  ASSERT_THAT(client.Call(whole), IsOk());
  EXPECT_EQ(Get(file, "user.a").xattr().value(), "kept");
  ASSERT_THAT(client.Unlink(kRootFid, "f"), IsOk());
  EXPECT_THAT(Get(file, "user.a"), Fails(ENOENT));
  auto left = harness.store.Scan("\x13", "\x14", 10);  // the table of attributes
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_TRUE(left->empty());
}

}  // namespace
}  // namespace nacre::mds
