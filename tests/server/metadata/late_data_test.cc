// WRITE leases of files whose data comes late: who wants such a file waits, who wants others does not.
#include "server/metadata/late_data.h"

#include <fcntl.h>

#include <cerrno>

#include "tests/server/metadata/lease_clients.h"

namespace nacre::mds {
namespace {

using namespace std::chrono_literals;
using Answer = std::shared_ptr<std::optional<proto::MetadataReply>>;

class LateDataTest : public testing::Test {
 protected:
  LateDataTest() : harness_(2, WithLeases()), other_(harness_), holder_(harness_) {
    directory_ = FidOf(holder_.Mkdir(kRootFid, "d"));
    file_ = FidOf(holder_.Mknod(directory_, "f", S_IFREG | 0644));
    proto::MetadataRequest make;
    *make.mutable_mknod()->mutable_parent() = ToProto(directory_);
    make.mutable_mknod()->set_name("g");
    make.mutable_mknod()->set_mode(S_IFREG | 0644);
    make.set_want_lease(true);
    const proto::MetadataReply made = holder_.Call(holder_.Prepare(std::move(make)));
    EXPECT_EQ(made.directory_leases_size(), 1);
    lease_ = Acquire(holder_).lease().lease().id();
    EXPECT_NE(lease_, 0u);
    Release(holder_, made.directory_leases(0).id());
  }

  proto::MetadataReply Acquire(TestClient& client) {
    proto::MetadataRequest request;
    *request.mutable_acquire_lease()->mutable_resource() = ToProto(file_);
    request.mutable_acquire_lease()->set_mode(proto::LEASE_WRITE);
    return client.Call(std::move(request));
  }
  Answer Ask(proto::MetadataRequest request) {
    auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
    other_.Start(other_.Prepare(std::move(request)), answer);
    harness_.RunFor(100ms);
    return answer;
  }
  // It is answered when the data has come, and not before.
  void ExpectWaits(proto::MetadataRequest request) {
    const Answer answer = Ask(std::move(request));
    EXPECT_FALSE(answer->has_value());
    Release(holder_, lease_);
    ASSERT_TRUE(harness_.RunUntil([&] { return answer->has_value(); }, 1s));
    EXPECT_THAT(**answer, IsOk());
  }
  void ExpectAtOnce(proto::MetadataRequest request) {
    const Answer answer = Ask(std::move(request));
    ASSERT_TRUE(answer->has_value());
    EXPECT_THAT(**answer, IsOk());
  }
  proto::MetadataRequest LookupOf(const std::string& name) {
    proto::MetadataRequest request;
    *request.mutable_lookup()->mutable_parent() = ToProto(directory_);
    request.mutable_lookup()->set_name(name);
    return request;
  }
  proto::MetadataRequest RenameOf(const std::string& name) {
    proto::MetadataRequest request;
    *request.mutable_rename()->mutable_parent() = ToProto(directory_);
    *request.mutable_rename()->mutable_new_parent() = ToProto(kRootFid);
    request.mutable_rename()->set_name(name);
    request.mutable_rename()->set_new_name("h");
    return request;
  }

  Harness harness_;
  TestClient other_, holder_;
  Fid directory_, file_;
  uint64_t lease_ = 0;
};

TEST_F(LateDataTest, IsForWhoHoldsTheDirectory) {
  EXPECT_EQ(Acquire(other_).status().error(), static_cast<uint32_t>(ESTALE));
  proto::MetadataRequest directory;
  *directory.mutable_acquire_lease()->mutable_resource() = ToProto(directory_);
  directory.mutable_acquire_lease()->set_mode(proto::LEASE_WRITE);
  EXPECT_EQ(other_.Call(std::move(directory)).status().error(), static_cast<uint32_t>(EINVAL));
}

TEST_F(LateDataTest, ALookWaits) { ExpectWaits(LookupOf("f")); }

TEST_F(LateDataTest, AnOpenWaits) {
  proto::MetadataRequest open;
  *open.mutable_open()->mutable_fid() = ToProto(file_);
  ExpectWaits(std::move(open));
}

TEST_F(LateDataTest, AChangeWaits) {
  proto::MetadataRequest set;
  *set.mutable_setattr()->mutable_fid() = ToProto(file_);
  set.mutable_setattr()->set_set_mode(true);
  set.mutable_setattr()->set_mode(0600);
  ExpectWaits(std::move(set));
}

TEST_F(LateDataTest, ARenameWaits) { ExpectWaits(RenameOf("f")); }

TEST_F(LateDataTest, ACreateThatFindsItWaits) {
  proto::MetadataRequest create;
  *create.mutable_create()->mutable_parent() = ToProto(directory_);
  create.mutable_create()->set_name("f");
  create.mutable_create()->set_mode(0644);
  create.mutable_create()->set_flags(O_RDWR | O_CREAT);
  ExpectWaits(std::move(create));
}

TEST_F(LateDataTest, OthersInTheDirectoryDoNot) {
  ExpectAtOnce(LookupOf("g"));
  ExpectAtOnce(RenameOf("g"));
}

TEST_F(LateDataTest, ItsRemovalDoesNot) {
  proto::MetadataRequest unlink;
  *unlink.mutable_unlink()->mutable_parent() = ToProto(directory_);
  unlink.mutable_unlink()->set_name("f");
  ExpectAtOnce(std::move(unlink));
}

TEST_F(LateDataTest, AListingLeavesItsAttributesOut) {
  proto::MetadataRequest list;
  *list.mutable_readdir()->mutable_fid() = ToProto(directory_);
  list.mutable_readdir()->set_plus(true);
  const Answer answer = Ask(std::move(list));
  ASSERT_TRUE(answer->has_value());
  for (const proto::DirEntry& entry : (*answer)->readdir().entries())
    EXPECT_EQ(entry.has_attr(), entry.name() != "f") << entry.name();
}

TEST_F(LateDataTest, ItsHolderIsNotKeptWaiting) {
  proto::MetadataRequest update;
  *update.mutable_setattr()->mutable_fid() = ToProto(file_);
  update.mutable_setattr()->set_set_size(true);
  update.mutable_setattr()->set_size(5);
  EXPECT_THAT(holder_.Call(holder_.Prepare(std::move(update))), IsOk());
}

}  // namespace
}  // namespace nacre::mds
