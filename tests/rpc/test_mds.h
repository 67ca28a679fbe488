// An MDS of a few words for tests of what lies between an MDS and those who ask it.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "common/runtime.h"
#include "rpc/backup_channel.h"
#include "rpc/cluster_channel.h"
#include "rpc/convert.h"
#include "rpc/metadata_channel.h"

namespace nacre {

// Answers everything with `status`, at once or after `go`; Statfs with `inodes`.
class TestMds : public MetadataHandler, public ClusterHandler, public BackupHandler {
 public:
  Task<proto::MetadataReply> Handle(std::shared_ptr<MetadataPeer>, proto::MetadataRequest request) override {
    proto::MetadataReply reply;
    co_await Work();
    *reply.mutable_status() = ToProto(status);
    if (request.has_connect()) reply.mutable_connect()->set_session(number);
    if (request.has_readlink()) reply.mutable_readlink()->set_target(std::to_string(number));
    co_return reply;
  }
  void Disconnected(std::shared_ptr<MetadataPeer>) override { ++disconnected; }

  Task<proto::RegisterOssReply> RegisterOss(proto::RegisterOssRequest) override {
    return Answer<proto::RegisterOssReply>();
  }
  Task<proto::HeartbeatReply> Heartbeat(proto::HeartbeatRequest) override {
    return Answer<proto::HeartbeatReply>();
  }
  Task<proto::ReportChainReply> ReportChain(proto::ReportChainRequest) override {
    return Answer<proto::ReportChainReply>();
  }
  Task<proto::ClusterStatus> GetStatus() override {
    proto::ClusterStatus reply;
    co_await Work();
    reply.set_inodes(number);
    co_return reply;
  }
  Task<proto::AdminReply> Administer(proto::AdminRequest) override {
    proto::AdminReply reply;
    co_await Work();
    reply.set_evicted(std::to_string(number));
    co_return reply;
  }
  StatusOr<std::unique_ptr<BackupSource>> BeginBackup() override {
    ++handled;
    return ErrnoError(EBUSY, std::to_string(number));
  }

  uint64_t number = 1;  // tells it from others
  uint64_t epoch = 0;
  Status status;
  bool waits = false;
  OneShot<Unit> go;  // for one
  std::atomic<int> handled{0}, disconnected{0};

 private:
  Task<void> Work() {
    ++handled;
    OneShot<Unit> let = go;
    if (waits) co_await let.Wait();
  }
  template <typename Reply>
  Task<Reply> Answer() {
    Reply reply;
    co_await Work();
    *reply.mutable_status() = ToProto(status);
    reply.set_mdt_epoch(epoch);
    co_return reply;
  }
};

inline proto::MetadataRequest ConnectRequest() {
  proto::MetadataRequest request;
  request.mutable_connect()->set_version(2);
  return request;
}

inline proto::MetadataRequest WhoIsThere() {
  proto::MetadataRequest request;
  request.mutable_readlink();
  return request;
}

}  // namespace nacre
