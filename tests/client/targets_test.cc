#include "client/targets.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <optional>

#include "transport/inproc/inproc_transport.h"

namespace nacre::client {
namespace {

proto::ClusterMap MapOf(OstIndex index, const std::string& address) {
  proto::ClusterMap map;
  map.add_osts()->mutable_info()->set_index(index);
  map.mutable_osts(0)->set_address(address);
  return map;
}

// An OSS may serve at an address that this client's transports do not understand.
TEST(Targets, AnAddressThatIsNoneFailsTheCallsAndNothingElse) {
  asio::io_context context;
  auto transport = MakeInprocTransport(MakeInprocNetwork(), context.get_executor(), RealClock());
  RetryPolicy policy;
  policy.hard = false;
  Targets targets(*transport, RealClock(), policy, [](OstIndex, uint64_t) {});
  targets.Reset(1, 1);
  targets.SetMap(MapOf(0, "nowhere"));
  uint64_t epoch = 1;
  auto call = [&] {
    proto::ObjectRequest request;
    request.mutable_sync();
    std::vector<MemorySpan> none;
    std::optional<Status> ended;
    Spawn(context.get_executor(), targets.Call(epoch, std::move(request), CallMemory::kNone, std::move(none)),
          [&ended](StatusOr<proto::ObjectReply> reply) { ended = reply.status(); });
    context.restart();
    context.poll();
    return ended.value_or(OkStatus());
  };
  EXPECT_EQ(ToErrno(call()), EINVAL);
  EXPECT_EQ(ToErrno(call()), EINVAL);
  EXPECT_TRUE(targets.Paths().empty());
  targets.SetMap(MapOf(0, "nowhere else"));
  targets.Reset(2, 2);
  EXPECT_EQ(ToErrno(call()), EIO);  // begun in the old epoch
  epoch = 2;
  EXPECT_EQ(ToErrno(call()), EINVAL);
  targets.Close();
}

}  // namespace
}  // namespace nacre::client
