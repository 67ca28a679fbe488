// READ leases of single files: asked back before another session's change is answered, whatever is lost on
// the way.
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

using namespace std::chrono_literals;
using Answer = std::shared_ptr<std::optional<proto::MetadataReply>>;

class RecallTest : public testing::Test {
 protected:
  RecallTest() : harness_(2, QuickRevocation()), a_(harness_), b_(harness_), c_(harness_) {
    f_ = FidOf(a_.Mknod(kRootFid, "f", S_IFREG | 0644));
    g_ = FidOf(a_.Mknod(kRootFid, "g", S_IFREG | 0644));
    Spawn(harness_.context.get_executor(), KeepAlive(this));
  }

  // All clients live, whatever they do or do not do with their leases.
  static Task<void> KeepAlive(RecallTest* test) {
    while (true) {
      co_await test->harness_.clock.Sleep(1s);
      for (TestClient* client : {&test->a_, &test->b_, &test->c_}) {
        if (client->peer->closed || test->silent == client) continue;
        proto::MetadataRequest request;
        request.mutable_keep_alive();
        request.set_session(client->session);
        std::shared_ptr<MetadataPeer> peer = client->peer;
        (void)co_await test->harness_.server->Handle(std::move(peer), std::move(request));
      }
    }
  }

  static MetadataOptions QuickRevocation() {
    MetadataOptions options;
    options.leases = false;  // of directories
    options.revoke_timeout = 8s;
    options.session_timeout = 1h;  // nobody is evicted for its silence
    options.lease = 2s;
    return options;
  }

  static uint64_t HoldPages(TestClient& client, Fid fid) {
    proto::MetadataRequest request;
    *request.mutable_acquire_lease()->mutable_resource() = ToProto(fid);
    request.mutable_acquire_lease()->set_mode(proto::LEASE_READ);
    proto::MetadataReply reply = client.Call(std::move(request));
    EXPECT_THAT(reply, IsOk());
    return reply.lease().lease().id();
  }

  static void Release(TestClient& client, uint64_t id) {
    proto::MetadataRequest request;
    request.mutable_release_lease()->set_id(id);
    EXPECT_THAT(client.Call(std::move(request)), IsOk());
  }

  static Answer StartTruncate(TestClient& client, Fid fid) {
    proto::MetadataRequest request;
    *request.mutable_setattr()->mutable_fid() = ToProto(fid);
    request.mutable_setattr()->set_set_size(true);
    auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
    client.Start(std::move(request), answer);
    return answer;
  }

  // The stream is lost and made again; the client names these leases of f_.
  void ComeBack(TestClient& client, const std::vector<uint64_t>& leases) {
    harness_.server->Disconnected(client.peer);
    ASSERT_THAT(client.Connect(), IsOk());
    proto::MetadataRequest reclaim;
    reclaim.mutable_reclaim()->set_last(true);
    for (uint64_t id : leases) {
      proto::Lease* lease = reclaim.mutable_reclaim()->add_leases();
      *lease->mutable_resource() = ToProto(f_);
      lease->set_mode(proto::LEASE_READ);
      lease->set_id(id);
    }
    EXPECT_THAT(client.Call(std::move(reclaim)), IsOk());
  }

  bool Answered(const Answer& answer, Duration within) {
    return harness_.RunUntil([&] { return answer->has_value(); }, within);
  }

  Harness harness_;
  TestClient a_, b_, c_;
  TestClient* silent = nullptr;  // says nothing any more
  Fid f_, g_;
};

TEST_F(RecallTest, AChangeIsAnsweredWhenTheOthersHaveReleased) {
  const uint64_t mine = HoldPages(a_, f_), theirs = HoldPages(b_, f_);
  Answer changed = StartTruncate(a_, f_);
  EXPECT_FALSE(Answered(changed, 1s));
  EXPECT_TRUE(a_.peer->pushes.empty()) << "its own lease is not in its way";
  ASSERT_EQ(b_.peer->pushes.size(), 1u);
  EXPECT_EQ(b_.peer->pushes[0].revoke().id(), theirs);
  EXPECT_EQ(harness_.Await(harness_.server->GetStatus()).revocations(), 1);
  Release(b_, theirs);
  ASSERT_TRUE(Answered(changed, 1s));
  EXPECT_THAT(**changed, IsOk());
  Release(a_, mine);
}

TEST_F(RecallTest, ARevocationThatWasLostIsRepeated) {
  const uint64_t id = HoldPages(b_, f_);
  Answer changed = StartTruncate(a_, f_);
  EXPECT_FALSE(Answered(changed, 1s));
  ComeBack(b_, {id});
  ASSERT_EQ(b_.peer->pushes.size(), 1u);
  EXPECT_EQ(b_.peer->pushes[0].revoke().id(), id);
  Release(b_, id);
  EXPECT_TRUE(Answered(changed, 1s));
}

// The client has never heard of it, nor of the revocation, so it cannot give it back.
TEST_F(RecallTest, ALeaseWhoseReplyWasLostEndsWithTheNextReclaim) {
  (void)HoldPages(b_, f_);
  Answer changed = StartTruncate(a_, f_);
  EXPECT_FALSE(Answered(changed, 1s));
  ComeBack(b_, {});
  EXPECT_TRUE(Answered(changed, 1s));
  EXPECT_FALSE(b_.peer->closed);
}

TEST_F(RecallTest, WhoDoesNotReleaseIsEvicted) {
  (void)HoldPages(b_, f_);
  Answer changed = StartTruncate(a_, f_);
  EXPECT_FALSE(Answered(changed, 7s));
  ASSERT_TRUE(Answered(changed, 4s));
  EXPECT_THAT(**changed, IsOk());
  EXPECT_TRUE(b_.peer->closed);
}

// It may believe in its lease, and answer reads from its pages, until that has run out by its clock.
TEST_F(RecallTest, ASilentHolderIsWaitedForUntilItsLeaseHasRunOut) {
  (void)HoldPages(b_, f_);
  silent = &b_;
  Answer changed = StartTruncate(a_, f_);
  EXPECT_FALSE(Answered(changed, 2s));
  ASSERT_TRUE(Answered(changed, 3s));
  EXPECT_THAT(**changed, IsOk());
  EXPECT_TRUE(b_.peer->closed);
}

TEST_F(RecallTest, SilentHoldersAreWaitedForTogether) {
  (void)HoldPages(b_, f_);
  (void)HoldPages(c_, f_);
  Answer changed = StartTruncate(a_, f_);
  ASSERT_TRUE(Answered(changed, 13s)) << "not one behind the other";
}

// The holder may have locked a page for which it reads from that OST.
TEST_F(RecallTest, WhileAnOstIsAwayAHolderHasLongerButNotForEver) {
  const uint64_t id = HoldPages(b_, f_);
  harness_.osts.away = {1};
  harness_.RunFor(10s);
  Answer changed = StartTruncate(a_, f_);
  EXPECT_FALSE(Answered(changed, 20s));
  EXPECT_FALSE(b_.peer->closed);
  harness_.osts.away = {};
  harness_.RunFor(3s);
  EXPECT_FALSE(b_.peer->closed);
  Release(b_, id);
  ASSERT_TRUE(Answered(changed, 1s));
  EXPECT_THAT(**changed, IsOk());
  (void)HoldPages(b_, f_);
  harness_.osts.away = {1};
  harness_.RunFor(10s);
  changed = StartTruncate(a_, f_);
  ASSERT_TRUE(Answered(changed, 40s)) << "one dead OST must not let one client stop all others";
  EXPECT_TRUE(b_.peer->closed);
}

// A page of g may be locked until the change of f is answered, so that b cannot give g back before.
TEST_F(RecallTest, WhoWaitsItselfIsNotEvictedForIt) {
  (void)HoldPages(c_, f_);  // and c never answers
  const uint64_t id = HoldPages(b_, g_);
  Answer first = StartTruncate(a_, g_);
  EXPECT_FALSE(Answered(first, 4s));
  Answer second = StartTruncate(b_, f_);
  ASSERT_TRUE(Answered(second, 20s));
  EXPECT_THAT(**second, IsOk());
  EXPECT_TRUE(c_.peer->closed);
  Release(b_, id);
  ASSERT_TRUE(Answered(first, 1s));
  EXPECT_THAT(**first, IsOk());
  EXPECT_FALSE(b_.peer->closed);
}

}  // namespace
}  // namespace nacre::mds
