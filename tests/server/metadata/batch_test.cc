// Batches of mutations: order, what fails in the middle, repeats, FIDs and times that the client gives.
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

class Batch : public testing::Test {
 protected:
  Batch() : client_(harness_) {}

  Fid OwnFid(uint32_t number) { return {own_sequence_, number, 0}; }

  proto::MetadataRequest& Add(proto::MetadataRequest mutation) {
    mutation.set_sequence(++client_.sequence);
    mutation.mutable_credentials()->set_uid(client_.uid);
    return *batch_.mutable_batch()->add_requests() = std::move(mutation);
  }
  proto::MetadataRequest& AddMknod(Fid parent, const std::string& name, uint32_t mode, Fid fid) {
    proto::MetadataRequest mutation;
    *mutation.mutable_mknod()->mutable_parent() = ToProto(parent);
    mutation.mutable_mknod()->set_name(name);
    mutation.mutable_mknod()->set_mode(mode);
    *mutation.mutable_mknod()->mutable_fid() = ToProto(fid);
    return Add(std::move(mutation));
  }
  proto::MetadataRequest& AddUnlink(Fid parent, const std::string& name) {
    proto::MetadataRequest mutation;
    *mutation.mutable_unlink()->mutable_parent() = ToProto(parent);
    mutation.mutable_unlink()->set_name(name);
    return Add(std::move(mutation));
  }
  // The batch as it stands, with everything in it unanswered.
  proto::MetadataRequest Whole() {
    proto::MetadataRequest request = batch_;
    request.set_session(client_.session);
    request.set_low_water(1);
    return request;
  }
  proto::MetadataReply Send() { return harness_.Await(harness_.server->Handle(client_.peer, Whole())); }

  Harness harness_;
  TestClient client_;
  uint64_t own_sequence_ = client_.Connect().connect().fid_sequence();
  proto::MetadataRequest batch_;
};

TEST_F(Batch, IsDoneInItsOrder) {
  AddMknod(kRootFid, "d", S_IFDIR | 0755, OwnFid(1));
  AddMknod(OwnFid(1), "f", S_IFREG | 0644, OwnFid(2));
  AddMknod(OwnFid(1), "g", S_IFREG | 0600, OwnFid(3));
  AddUnlink(OwnFid(1), "f");
  auto reply = Send();
  ASSERT_THAT(reply, IsOk());
  ASSERT_EQ(reply.batch().replies_size(), 4);
  for (const proto::MetadataReply& one : reply.batch().replies()) EXPECT_THAT(one, IsOk());
  EXPECT_TRUE(reply.batch().names_behind());
  EXPECT_EQ(client_.List(OwnFid(1)), std::vector<std::string>{"g"});
  EXPECT_EQ(FidOf(client_.Lookup(OwnFid(1), "g")), OwnFid(3));
}

TEST_F(Batch, AFailureKeepsNothingBack) {
  AddMknod(kRootFid, "a", S_IFREG | 0644, OwnFid(1));
  AddMknod(kRootFid, "a", S_IFREG | 0644, OwnFid(2));
  AddUnlink(kRootFid, "none");
  AddMknod(kRootFid, "b", S_IFREG | 0644, OwnFid(3));
  proto::MetadataRequest lookup;
  *lookup.mutable_lookup()->mutable_parent() = ToProto(kRootFid);
  Add(std::move(lookup));
  auto reply = Send();
  ASSERT_EQ(reply.batch().replies_size(), 5);
  EXPECT_THAT(reply.batch().replies(0), IsOk());
  EXPECT_THAT(reply.batch().replies(1), Fails(EEXIST));
  EXPECT_THAT(reply.batch().replies(2), Fails(ENOENT));
  EXPECT_THAT(reply.batch().replies(3), IsOk());
  EXPECT_THAT(reply.batch().replies(4), Fails(EPROTO));
}

TEST_F(Batch, WhoKnowsTheAttributesIsToldTheirChangeAlone) {
  AddMknod(kRootFid, "a", S_IFREG | 0644, OwnFid(1)).set_change_only(true);
  AddMknod(kRootFid, "b", S_IFREG | 0644, OwnFid(2)).set_change_only(true);
  AddUnlink(kRootFid, "a").set_change_only(true);
  proto::MetadataRequest& kept = AddUnlink(kRootFid, "b");
  kept.set_change_only(true);
  kept.mutable_unlink()->set_keep_open(true);
  for (int sent = 0; sent < 2; ++sent) {  // the second time from the records
    auto reply = Send();
    ASSERT_EQ(reply.batch().replies_size(), 4);
    proto::Attr change_alone;
    change_alone.set_change(1);
    const proto::Entry& made = reply.batch().replies(0).entry();
    EXPECT_EQ(made.attr().SerializeAsString(), change_alone.SerializeAsString());
    EXPECT_FALSE(made.has_parent());
    EXPECT_GT(made.layout().components_size(), 0);
    change_alone.set_change(2);
    const proto::AttrReply& removed = reply.batch().replies(2).attr();
    EXPECT_EQ(removed.attr().SerializeAsString(), change_alone.SerializeAsString());
    EXPECT_FALSE(removed.has_parent());
    // The sender has to find out which file is kept for it, also from the record.
    EXPECT_EQ(FromProto(reply.batch().replies(3).attr().attr().fid()), OwnFid(2));
    EXPECT_TRUE(reply.batch().replies(3).attr().has_parent());
  }
}

TEST_F(Batch, ARepeatGetsTheSameAnswers) {
  AddMknod(kRootFid, "a", S_IFREG | 0644, OwnFid(1));
  AddUnlink(kRootFid, "none");
  auto first = Send();
  auto second = Send();
  EXPECT_EQ(first.SerializeAsString(), second.SerializeAsString());
}

// The MDS ended after a part of it: the repeat does the rest.
TEST_F(Batch, ARepeatAfterARestartDoesWhatIsMissing) {
  AddMknod(kRootFid, "a", S_IFREG | 0644, OwnFid(1));
  AddMknod(kRootFid, "b", S_IFREG | 0644, OwnFid(2));
  ASSERT_THAT(Send(), IsOk());
  AddUnlink(kRootFid, "a");
  AddMknod(kRootFid, "c", S_IFREG | 0644, OwnFid(3));
  harness_.Restart();
  ASSERT_THAT(client_.Connect(), IsOk());
  auto reply = Send();
  ASSERT_EQ(reply.batch().replies_size(), 4);
  for (const proto::MetadataReply& one : reply.batch().replies()) EXPECT_THAT(one, IsOk());
  EXPECT_EQ(client_.List(kRootFid), (std::vector<std::string>{"b", "c"}));
}

// Of two that are under way the second may come first, over a new stream.
TEST_F(Batch, WaitsForTheOneThatItFollows) {
  AddMknod(kRootFid, "a", S_IFREG | 0644, OwnFid(1));
  AddMknod(kRootFid, "b", S_IFREG | 0644, OwnFid(2));
  const proto::MetadataRequest first = Whole();
  batch_ = {};
  batch_.mutable_batch()->set_after(client_.sequence);
  AddUnlink(kRootFid, "a");
  auto early = std::make_shared<std::optional<proto::MetadataReply>>();
  client_.Start(Whole(), early);
  harness_.RunFor(10s);
  EXPECT_FALSE(early->has_value());
  EXPECT_THAT(harness_.Await(harness_.server->Handle(client_.peer, first)), IsOk());
  harness_.RunFor(1s);
  ASSERT_TRUE(early->has_value());
  EXPECT_THAT((*early)->batch().replies(0), IsOk());
  EXPECT_EQ(client_.List(kRootFid), std::vector<std::string>{"b"});
  EXPECT_THAT(Send().batch().replies(0), IsOk()) << "a repeat, when what it follows has long been done";
}

TEST_F(Batch, ThatFollowsAnotherGoesNoFurtherThanItsStream) {
  batch_.mutable_batch()->set_after(7);  // never comes
  AddMknod(kRootFid, "a", S_IFREG | 0644, OwnFid(1));
  auto lost = std::make_shared<std::optional<proto::MetadataReply>>();
  client_.Start(Whole(), lost);
  harness_.RunFor(1s);
  EXPECT_FALSE(lost->has_value());
  client_.Reconnect();
  harness_.RunFor(1s);
  ASSERT_TRUE(lost->has_value());
  EXPECT_THAT(**lost, Fails(ESTALE));
  EXPECT_TRUE(client_.List(kRootFid).empty());
}

TEST_F(Batch, TimesAreTheClients) {
  proto::MetadataRequest& mknod = AddMknod(kRootFid, "a", S_IFREG | 0644, OwnFid(1));
  mknod.mutable_time()->set_seconds(2'000'001'234);
  mknod.mutable_time()->set_nanos(5);
  AddMknod(kRootFid, "b", S_IFREG | 0644, OwnFid(2)).mutable_time()->set_nanos(1'000'000'000);
  auto reply = Send();
  EXPECT_THAT(reply.batch().replies(1), Fails(EINVAL));
  const proto::Attr attr = client_.Getattr(OwnFid(1)).attr().attr();
  EXPECT_EQ(attr.ctime().seconds(), 2'000'001'234);
  EXPECT_EQ(attr.btime().nanos(), 5u);
  EXPECT_EQ(client_.Getattr(kRootFid).attr().attr().mtime().seconds(), 2'000'001'234);
}

TEST_F(Batch, AFidIsTheSessionsOwnAndGivenOnce) {
  AddMknod(kRootFid, "a", S_IFREG | 0644, OwnFid(1));
  AddMknod(kRootFid, "b", S_IFREG | 0644, OwnFid(1));
  AddMknod(kRootFid, "c", S_IFREG | 0644, Fid{own_sequence_ + 1, 1, 0});
  AddMknod(kRootFid, "d", S_IFREG | 0644, Fid{own_sequence_, 2, 1});
  AddMknod(kRootFid, "e", S_IFREG | 0644, kRootFid);
  auto reply = Send();
  ASSERT_EQ(reply.batch().replies_size(), 5);
  EXPECT_THAT(reply.batch().replies(0), IsOk());
  for (int i = 1; i < 5; ++i) EXPECT_THAT(reply.batch().replies(i), Fails(EPERM)) << i;
  EXPECT_EQ(client_.List(kRootFid), std::vector<std::string>{"a"});
}

TEST_F(Batch, NoFidIsGivenTwiceAfterARestartEither) {
  AddMknod(kRootFid, "a", S_IFREG | 0644, OwnFid(5));
  ASSERT_THAT(Send().batch().replies(0), IsOk());
  harness_.Restart();
  ASSERT_THAT(client_.Connect(), IsOk());
  batch_ = {};
  AddMknod(kRootFid, "b", S_IFREG | 0644, OwnFid(5));
  AddMknod(kRootFid, "c", S_IFREG | 0644, OwnFid(3));  // left out so far
  AddMknod(kRootFid, "d", S_IFREG | 0644, OwnFid(6));
  AddMknod(kRootFid, "e", S_IFREG | 0644, OwnFid(6));
  AddMknod(kRootFid, "f", S_IFREG | 0644, OwnFid(3));
  auto reply = Send();
  ASSERT_EQ(reply.batch().replies_size(), 5);
  EXPECT_THAT(reply.batch().replies(0), Fails(EPERM));
  EXPECT_THAT(reply.batch().replies(1), IsOk());
  EXPECT_THAT(reply.batch().replies(2), IsOk());
  EXPECT_THAT(reply.batch().replies(3), Fails(EPERM));
  EXPECT_THAT(reply.batch().replies(4), Fails(EPERM));
  EXPECT_THAT(client_.List(kRootFid), testing::UnorderedElementsAre("a", "c", "d"));
}

TEST(NamesBehind, NotWithoutAnOst) {
  Harness harness(0);
  TestClient client(harness);
  EXPECT_FALSE(client.Connect().connect().names_behind());
}

// A commit has its place at once and shows 10 ms later: what follows may begin in between.
class Beside : public Batch {
 protected:
  Beside() {
    for (uint32_t i = 0; i < kDirectories; ++i) {
      const std::string name = "d" + std::to_string(i);
      directories_.push_back(FidOf(client_.Mkdir(kRootFid, name)));
    }
    // Commits pause three times: before they have their places, before they show and before they return. So
    // the longest of what overlaps here is two of them.
    harness_.store.SetCommitPause([this]() -> Task<void> { co_await harness_.clock.Sleep(10ms); });
    harness_.store.SetCommitHook([this](const KvBatch& batch) {
      for (const KvBatch::Op& op : batch.ops()) {
        if (op.key.starts_with(TableKey(Table::kReply))) order_.push_back(ParseReply(op.value)->sequence);
      }
      return OkStatus();
    });
  }

  // How long the batch takes; all of it succeeds and is stored in its order.
  Duration Measure() {
    const uint64_t first = batch_.batch().requests(0).sequence();
    const Duration begin = harness_.clock.Now();
    const proto::MetadataReply reply = Send();
    EXPECT_EQ(reply.batch().replies_size(), batch_.batch().requests_size());
    for (const proto::MetadataReply& one : reply.batch().replies()) EXPECT_THAT(one, IsOk());
    std::vector<uint64_t> expected;
    for (int i = 0; i < batch_.batch().requests_size(); ++i)
      expected.push_back(first + static_cast<uint64_t>(i));
    EXPECT_EQ(order_, expected);
    return harness_.clock.Now() - begin;
  }

  void AddSetattr(Fid fid, uint32_t mode) {
    proto::MetadataRequest mutation;
    *mutation.mutable_setattr()->mutable_fid() = ToProto(fid);
    mutation.mutable_setattr()->set_set_mode(true);
    mutation.mutable_setattr()->set_mode(mode);
    Add(std::move(mutation));
  }
  void AddLink(Fid fid, Fid parent, const std::string& name) {
    proto::MetadataRequest mutation;
    *mutation.mutable_link()->mutable_fid() = ToProto(fid);
    *mutation.mutable_link()->mutable_parent() = ToProto(parent);
    mutation.mutable_link()->set_name(name);
    Add(std::move(mutation));
  }

  static constexpr uint32_t kDirectories = 8;
  std::vector<Fid> directories_;
  std::vector<uint64_t> order_;  // of the sequences that were stored
};

TEST_F(Beside, ChangesOfSeveralDirectoriesOverlap) {
  for (uint32_t i = 0; i < kDirectories; ++i) AddMknod(directories_[i], "f", S_IFREG | 0644, OwnFid(i + 1));
  // Each waits for the first pause of the one before.
  EXPECT_LE(Measure(), (kDirectories + 2) * 10ms);
}

TEST_F(Beside, ChangesOfOneDirectoryDoNot) {
  for (uint32_t i = 0; i < kDirectories; ++i)
    AddMknod(directories_[0], "f" + std::to_string(i), S_IFREG | 0644, OwnFid(i + 1));
  EXPECT_GE(Measure(), kDirectories * 20ms);
  EXPECT_EQ(client_.List(directories_[0]).size(), kDirectories);
}

// Among others that are under way: what is made, changed and removed again by its FID and by its name.
TEST_F(Beside, AFileIsWhatTheOneBeforeHasLeft) {
  for (uint32_t i = 0; i + 1 < kDirectories; i += 2) {
    AddMknod(directories_[i], "f", S_IFREG | 0644, OwnFid(2 * i + 1));
    AddMknod(directories_[i + 1], "g", S_IFREG | 0644, OwnFid(2 * i + 2));
    AddSetattr(OwnFid(2 * i + 1), 0600);
    AddSetattr(OwnFid(2 * i + 2), 0640);
    AddUnlink(directories_[i], "f");
  }
  Measure();
  EXPECT_EQ(client_.Getattr(OwnFid(2)).attr().attr().mode() & 07777, 0640u);
  EXPECT_TRUE(client_.List(directories_[0]).empty());
  EXPECT_EQ(client_.List(directories_[1]), std::vector<std::string>{"g"});
}

// A name goes while its file gets another one in another directory: in the other order the file would be
// gone.
TEST_F(Beside, AFileLivesOnByItsOtherName) {
  AddMknod(directories_[0], "f", S_IFREG | 0644, OwnFid(1));
  AddLink(OwnFid(1), directories_[1], "g");
  AddUnlink(directories_[0], "f");
  AddUnlink(directories_[2], "none");
  const proto::MetadataReply reply = Send();
  EXPECT_THAT(reply.batch().replies(1), IsOk());
  EXPECT_THAT(reply.batch().replies(2), IsOk());
  EXPECT_THAT(reply.batch().replies(3), Fails(ENOENT));
  EXPECT_EQ(client_.Getattr(OwnFid(1)).attr().attr().nlink(), 1u);
}

// Its entries are removed in the same batch, by a request that does not name it.
TEST_F(Beside, ADirectoryIsEmptiedBeforeItIsRemoved) {
  AddMknod(directories_[0], "f", S_IFREG | 0644, OwnFid(1));
  AddMknod(directories_[1], "g", S_IFREG | 0644, OwnFid(2));
  ASSERT_THAT(Send(), IsOk());
  batch_ = {};
  order_.clear();
  AddUnlink(directories_[0], "f");
  AddUnlink(directories_[1], "g");
  proto::MetadataRequest rmdir;
  *rmdir.mutable_unlink()->mutable_parent() = ToProto(kRootFid);
  rmdir.mutable_unlink()->set_name("d0");
  rmdir.mutable_unlink()->set_directory(true);
  Add(std::move(rmdir));
  AddMknod(directories_[2], "h", S_IFREG | 0644, OwnFid(3));
  Measure();
}

// Though only the last one of it is waited for.
TEST_F(Beside, TheNextBatchIsStoredBehindThisOne) {
  for (uint32_t i = 0; i < kDirectories; ++i) AddMknod(directories_[i], "f", S_IFREG | 0644, OwnFid(i + 1));
  auto first = std::make_shared<std::optional<proto::MetadataReply>>();
  client_.Start(Whole(), first);
  batch_ = {};
  batch_.mutable_batch()->set_after(client_.sequence);
  AddMknod(directories_[0], "g", S_IFREG | 0644, OwnFid(20));
  const uint64_t next = client_.sequence;
  EXPECT_THAT(Send().batch().replies(0), IsOk());
  ASSERT_EQ(order_.size(), kDirectories + 1);
  EXPECT_EQ(order_.back(), next);
}

}  // namespace
}  // namespace nacre::mds
