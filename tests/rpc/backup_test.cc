// A backup over gRPC: its pieces in their order, errors of either side, and that it ends with whoever goes
// first.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "common/runtime.h"
#include "rpc/grpc_backup.h"
#include "rpc/grpc_server.h"

namespace nacre {
namespace {

class NoMds : public MetadataHandler, public ClusterHandler {
 public:
  Task<proto::MetadataReply> Handle(std::shared_ptr<MetadataPeer>, proto::MetadataRequest) override {
    co_return proto::MetadataReply();
  }
  void Disconnected(std::shared_ptr<MetadataPeer>) override {}
  Task<proto::RegisterOssReply> RegisterOss(proto::RegisterOssRequest) override {
    co_return proto::RegisterOssReply();
  }
  Task<proto::HeartbeatReply> Heartbeat(proto::HeartbeatRequest) override {
    co_return proto::HeartbeatReply();
  }
  Task<proto::ReportChainReply> ReportChain(proto::ReportChainRequest) override {
    co_return proto::ReportChainReply();
  }
  Task<proto::ClusterStatus> GetStatus() override { co_return proto::ClusterStatus(); }
  Task<proto::AdminReply> Administer(proto::AdminRequest) override { co_return proto::AdminReply(); }
};

struct Counted {
  std::atomic<int> sources{0}, pieces{0};
};

// So many pieces of 100,000 bytes, then the end or an error.
class Pieces : public BackupSource {
 public:
  Pieces(Counted* counted, int count, Status end) : counted_(counted), left_(count), end_(std::move(end)) {
    ++counted_->sources;
  }
  ~Pieces() override { --counted_->sources; }
  uint64_t expected_bytes() const override { return 4711; }
  StatusOr<std::optional<std::string>> Next() override {
    if (left_-- > 0) return std::string(100'000, static_cast<char>('a' + counted_->pieces++ % 26));
    RETURN_IF_ERROR(end_);
    return std::nullopt;
  }

 private:
  Counted* const counted_;
  int left_;
  const Status end_;
};

class Handler : public BackupHandler {
 public:
  StatusOr<std::unique_ptr<BackupSource>> BeginBackup() override {
    RETURN_IF_ERROR(refuses);
    return std::make_unique<Pieces>(&counted, count, end);
  }
  Counted counted;
  int count = 30;
  Status refuses = OkStatus(), end = OkStatus();
};

class GrpcBackupTest : public testing::Test {
 protected:
  GrpcBackupTest() {
    auto started = GrpcServer::Start(runtime.executor(), {&mds, &mds, &handler}, {"127.0.0.1:0"});
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
    address = server->addresses().front();
  }
  ~GrpcBackupTest() override {
    server->Stop();
    EXPECT_EQ(handler.counted.sources, 0) << "the store would go before its snapshots";
    runtime.Stop();
  }

  Runtime runtime{1};
  NoMds mds;
  Handler handler;
  std::unique_ptr<GrpcServer> server;
  std::string address;
};

TEST_F(GrpcBackupTest, BringsAllPiecesInTheirOrder) {
  std::string all, wanted;
  uint64_t told = 0;
  Status status = FetchBackup(address, [&](const std::string& data, uint64_t expected) {
    if (all.empty()) told = expected;
    all += data;
    return OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  for (int i = 0; i < handler.count; ++i) wanted += std::string(100'000, static_cast<char>('a' + i % 26));
  EXPECT_TRUE(all == wanted) << all.size();
  EXPECT_EQ(told, 4711u);
}

TEST_F(GrpcBackupTest, TellsWhyThereIsNoneOrNoMore) {
  auto take = [](const std::string&, uint64_t) { return OkStatus(); };
  handler.end = absl::DataLossError("a damaged block");
  EXPECT_EQ(FetchBackup(address, take).message(), "a damaged block");
  handler.refuses = ErrnoError(EBUSY, "two already");
  Status refused = FetchBackup(address, take);
  EXPECT_EQ(ToErrno(refused), EBUSY);
  EXPECT_EQ(refused.message(), "two already");
  EXPECT_FALSE(FetchBackup("127.0.0.1:9", take).ok());
}

TEST_F(GrpcBackupTest, EndsWhenTheAskerHasEnough) {
  handler.count = 1'000'000;
  Status status = FetchBackup(
      address, [](const std::string&, uint64_t) { return ErrnoError(ENOSPC, "the disk is full"); });
  EXPECT_EQ(ToErrno(status), ENOSPC);
  EXPECT_LT(handler.counted.pieces, 1000) << "they are made as they are taken";
}

TEST_F(GrpcBackupTest, AnMdsThatStopsIsNoEnd) {
  handler.count = 1'000'000;
  std::thread stop;
  Status status = FetchBackup(address, [&](const std::string&, uint64_t) {
    if (!stop.joinable()) stop = std::thread([this] { server->Stop(); });
    return OkStatus();
  });
  stop.join();
  EXPECT_FALSE(status.ok());
}

}  // namespace
}  // namespace nacre
