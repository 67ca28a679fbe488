// Opens whose reply comes, or is lost, while the stream to the MDS breaks: the MDS knows of a handle as long
// as it is open here, and no longer.
#include "client/inode.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

class Opens : public testing::Test {
 protected:
  Opens() : mine_(harness_.Mount()), theirs_(harness_.Mount()) {}

  // The reply to the next request of this kind comes before the stream is lost, and is looked at after the
  // client has taken up its session again (`late`); or it never comes.
  void LoseStreamAt(bool (proto::MetadataRequest::*kind)() const, bool late) {
    mine_->before_reply = [this, kind, late,
                           done = std::make_shared<bool>()](const proto::MetadataRequest& request) {
      const bool now = (request.*kind)() && !std::exchange(*done, *done || (request.*kind)());
      return Fault(now, late);
    };
  }
  Task<Status> Fault(bool now, bool late) {
    if (!now) co_return OkStatus();
    co_await mine_->LoseStream();
    if (late) co_return OkStatus();
    co_return absl::UnavailableError("the reply was lost with the stream");
  }

  void RemoveByOther(const std::string& name) {
    ASSERT_TRUE(theirs_->Await(theirs_->fs().Unlink(theirs_->caller, kRootFid, name)).ok());
    harness_.world.RunFor(10s);
  }
  // Whether the file without a name is there until its last handle here is closed, and gone then.
  void ExpectKeptUntilClosed(const std::string& name, const HandlePtr& handle) {
    const Fid fid = handle->inode->fid;
    mine_->Write(handle, 0, "data");
    RemoveByOther(name);
    EXPECT_EQ(mine_->Read(handle, 0, 100), "data");
    EXPECT_TRUE(theirs_->Await(theirs_->fs().Getattr(theirs_->caller, fid, nullptr)).ok());
    EXPECT_TRUE(mine_->Close(handle).ok());
    harness_.world.RunFor(10s);
    EXPECT_THAT(theirs_->Await(theirs_->fs().Getattr(theirs_->caller, fid, nullptr)).status(),
                HasErrno(ENOENT));
  }

  Harness harness_;
  std::unique_ptr<Mounted> mine_;
  std::unique_ptr<Mounted> theirs_;
};

TEST_F(Opens, AReplyThatIsLookedAtAfterTheReclaim) {
  ASSERT_TRUE(theirs_->Close(theirs_->Create("f")).ok());
  LoseStreamAt(&proto::MetadataRequest::has_open, true);
  ExpectKeptUntilClosed("f", mine_->OpenName("f"));
}

TEST_F(Opens, AReplyThatIsLost) {
  ASSERT_TRUE(theirs_->Close(theirs_->Create("f")).ok());
  LoseStreamAt(&proto::MetadataRequest::has_open, false);
  ExpectKeptUntilClosed("f", mine_->OpenName("f"));
}

TEST_F(Opens, OfAFileThatIsOpenAlready) {
  ASSERT_TRUE(theirs_->Close(theirs_->Create("f")).ok());
  HandlePtr first = mine_->OpenName("f");
  LoseStreamAt(&proto::MetadataRequest::has_open, false);
  HandlePtr second = mine_->OpenName("f");
  EXPECT_TRUE(mine_->Close(first).ok());
  ExpectKeptUntilClosed("f", second);
}

TEST_F(Opens, TheReplyToACreateThatIsLookedAtAfterTheReclaim) {
  LoseStreamAt(&proto::MetadataRequest::has_create, true);
  ExpectKeptUntilClosed("f", mine_->Create("f"));
}

TEST_F(Opens, TheReplyToACreateThatIsLost) {
  LoseStreamAt(&proto::MetadataRequest::has_create, false);
  ExpectKeptUntilClosed("f", mine_->Create("f"));
}

TEST_F(Opens, ARefusalThatIsLookedAtAfterTheReclaim) {
  ASSERT_TRUE(theirs_->Close(theirs_->Create("f")).ok());
  HandlePtr first = mine_->OpenName("f");
  mine_->caller = {1000, 1000, {}};
  LoseStreamAt(&proto::MetadataRequest::has_open, true);
  const Fid fid = first->inode->fid;
  EXPECT_THAT(mine_->Await(mine_->fs().Open(mine_->caller, fid, O_RDWR)).status(), HasErrno(EACCES));
  mine_->caller = {};
  ExpectKeptUntilClosed("f", first);
}

}  // namespace
}  // namespace nacre::client
