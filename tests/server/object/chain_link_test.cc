#include "server/object/chain_link.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <optional>

#include "common/task.h"
#include "rpc/convert.h"

namespace nacre::ost {
namespace {

// Refuses or answers, and notes what it is asked.
class NotingPeer : public Peer {
 public:
  Task<StatusOr<std::string>> Call(CallRequest request, Duration /*timeout*/) override {
    EXPECT_TRUE(asked.emplace_back().ParseFromString(request.body));
    proto::ObjectReply reply;
    if (refuses) *reply.mutable_status() = ToProto(ErrnoError(EIO, "it cannot be done"));
    co_return reply.SerializeAsString();
  }
  PathInfo path() const override { return {}; }
  std::string address() const override { return "there"; }
  void Close() override {}

  std::vector<proto::ObjectRequest> asked;
  bool refuses = false;
};

class ChainLinkTest : public testing::Test {
 protected:
  const proto::ObjectRequest& Ask(uint32_t epoch, bool refused) {
    peer_->refuses = refused;
    proto::ObjectRequest request;
    request.set_chain_epoch(epoch);
    request.mutable_sync();
    std::optional<bool> answered;
    std::vector<MemorySpan> none;
    std::function<bool()> goes_on = [] { return true; };
    Spawn(context_.get_executor(),
          link_.Call(std::move(request), std::move(none), ChainLink::kChangeTimeout, std::move(goes_on)),
          [&answered](StatusOr<proto::ObjectReply> reply) { answered = reply.ok(); });
    context_.restart();
    context_.run();
    EXPECT_EQ(answered, !refused);
    return peer_->asked.back();
  }

  boost::asio::io_context context_;
  std::shared_ptr<NotingPeer> peer_ = std::make_shared<NotingPeer>();
  ChainLink link_{peer_, RealClock(), 0, {}};
};

// The other may have made a change that is not made here, and must count the object as in doubt (seed
// 5600010000235 --copies 3 --mds 3: a head that was new did not compare it).
TEST_F(ChainLinkTest, ACallThatHasFailedHoldsTheLowWaterBackForItsEpoch) {
  EXPECT_EQ(Ask(1, false).chain_low_water(), 1u);
  EXPECT_EQ(Ask(1, false).chain_low_water(), 2u);
  EXPECT_EQ(Ask(1, true).chain_turn(), 3u);
  for (uint64_t turn : {4u, 5u}) {
    const proto::ObjectRequest& next = Ask(1, false);
    EXPECT_EQ(next.chain_turn(), turn);
    EXPECT_EQ(next.chain_low_water(), 3u);
    EXPECT_EQ(next.chain_under_way().turns_size(), 0) << "nobody waits for it: a copy comes late";
  }
  EXPECT_EQ(Ask(2, false).chain_low_water(), 6u) << "that epoch is over";
}

}  // namespace
}  // namespace nacre::ost
