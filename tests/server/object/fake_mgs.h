// An MGS that answers an OSS as the test tells it to, and OSSes that ask it all the time.
#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "tests/server/object/server_fixture.h"

namespace nacre {

class FakeMgs : public ClusterChannel {
 public:
  Task<StatusOr<proto::RegisterOssReply>> RegisterOss(proto::RegisterOssRequest request) override {
    registrations.push_back(std::move(request));
    if (away) co_return ErrnoError(ECONNREFUSED, "nobody listens");
    proto::RegisterOssReply reply;
    *reply.mutable_status() = ToProto(refusal);
    reply.set_cluster_uuid("cluster-1");
    reply.set_heartbeat_ms(1);
    reply.set_lease_ms(lease_ms);
    reply.set_mdt_epoch(mdt_epoch);
    reply.set_version(version);
    co_return reply;
  }
  Task<StatusOr<proto::HeartbeatReply>> Heartbeat(proto::HeartbeatRequest request) override {
    heartbeats.push_back(std::move(request));
    if (away) co_return ErrnoError(ECONNREFUSED, "nobody listens");
    proto::HeartbeatReply reply;
    if (forget) *reply.mutable_status() = ToProto(ErrnoError(ENOENT, "who are you?"));
    forget = false;
    reply.set_mdt_epoch(mdt_epoch);
    co_return reply;
  }
  Task<StatusOr<proto::ClusterStatus>> GetStatus() override { co_return proto::ClusterStatus(); }
  Task<StatusOr<proto::ReportChainReply>> ReportChain(proto::ReportChainRequest) override {
    co_return proto::ReportChainReply();
  }
  Task<StatusOr<proto::AdminReply>> Administer(proto::AdminRequest) override {
    co_return proto::AdminReply();
  }

  bool away = false;
  bool forget = false;  // the next heartbeat is that of a server that the MGS does not know
  uint32_t lease_ms = 60'000;
  uint64_t mdt_epoch = 0;
  uint32_t version = 0;  // that it speaks; 0: it does not say
  Status refusal;        // of registrations
  std::vector<proto::RegisterOssRequest> registrations;
  std::vector<proto::HeartbeatRequest> heartbeats;
};

inline ObjectOptions OftenBeating() {
  ObjectOptions options;
  options.heartbeat = std::chrono::milliseconds(1);
  return options;
}

inline void RunUntil(ServerFixture* f, const std::function<bool()>& done) {
  ASSERT_TRUE(RunUntil(f->context, done, std::chrono::seconds(20)));
}

}  // namespace nacre
