// Three OSSes that each serve a member of OST 0, in memory behind the in-process transport, and a judge who
// does what a test wants of the MGS. On one thread.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>

#include "tests/server/object/server_fixture.h"

namespace nacre {

// Keeps the chain of one OST: takes members out and in as its head asks for it.
class Judge : public ClusterChannel {
 public:
  using Tell = std::function<Task<void>(const proto::Chain& chain, std::string member)>;

  Task<StatusOr<proto::RegisterOssReply>> RegisterOss(proto::RegisterOssRequest request) override {
    registered[request.address()] = request;
    proto::RegisterOssReply reply;
    reply.set_cluster_uuid("cluster-1");
    co_return reply;
  }
  Task<StatusOr<proto::HeartbeatReply>> Heartbeat(proto::HeartbeatRequest request) override {
    heard[request.address()] = std::move(request);
    proto::HeartbeatReply reply;
    if (scrub.number() != 0) *reply.mutable_scrub() = scrub;
    co_return reply;
  }
  Task<StatusOr<proto::ClusterStatus>> GetStatus() override { co_return proto::ClusterStatus(); }
  Task<StatusOr<proto::AdminReply>> Administer(proto::AdminRequest) override {
    co_return proto::AdminReply();
  }
  Task<StatusOr<proto::ReportChainReply>> ReportChain(proto::ReportChainRequest request) override;

  proto::Chain chain;
  Tell tell;
  std::map<std::string, proto::RegisterOssRequest> registered;  // by address
  std::map<std::string, proto::HeartbeatRequest> heard;         // likewise
  proto::ScrubOrder scrub;                                      // number 0: none
  bool away = false;
  uint64_t mdt_epoch = 0;  // of its answers
  Duration between{0};     // from telling one member of a chain to telling the one before it
  std::vector<proto::ReportChainRequest> reports;
};

class ChainFixture {
 public:
  static constexpr int kServers = 3;
  static constexpr uint64_t kBlocks = 8192;

  explicit ChainFixture(uint64_t fill_bytes_per_second = 0);
  ~ChainFixture();

  void Start(int i);
  void Crash(int i) { servers[i].reset(); }
  // All of them at once, in a new chain of them. Their caches are empty afterwards.
  void Restart(std::vector<int> members);
  // Changes a bit of a block, which is written, on the member's disk.
  void Spoil(int member, const ObjectId& id, uint64_t block);
  // The power of server i fails: what was not synced may be gone.
  void LosePower(int i);
  proto::ChainMember Member(int i) const;
  // The judge decides, with the next epoch, and tells all members, the head last, or not: until it asks.
  void SetChain(std::vector<int> members, std::vector<int> joining = {}, bool head_hears = true);
  bool RunUntil(const std::function<bool()>& done, Duration limit = std::chrono::seconds(20));

  template <typename T>
  T Run(Task<T> task) {
    std::optional<T> result;
    Spawn(context.get_executor(), std::move(task), [&result](T value) { result = std::move(value); });
    EXPECT_TRUE(RunUntil([&result] { return result.has_value(); })) << "the task never finished";
    return *std::move(result);
  }

  std::unique_ptr<ObjectStub> Client(int server, SessionId session);
  // Starts a write to the head; its result comes into *status.
  void StartWrite(ObjectStub* stub, ObjectId id, uint64_t offset, std::string data,
                  std::optional<Status>* status);
  Status Write(ObjectStub* stub, ObjectId id, uint64_t offset, std::string data);
  Status Change(ObjectStub* stub, proto::ObjectRequest request);
  StatusOr<std::string> Read(ObjectStub* stub, ObjectId id, uint64_t length);
  // Everything that member i has, read from it as the only member of a chain of its own: objects with their
  // versions and what their bytes sum up to.
  std::map<std::string, std::string> Contents(int i);

  asio::io_context context;
  SeededRandom random{1};
  std::shared_ptr<InprocNetwork> network = MakeInprocNetwork();
  std::array<std::unique_ptr<Transport>, kServers + 1> transports;  // the last one: the clients'
  std::array<MemKv, kServers> kv;
  std::array<std::unique_ptr<MemBlockStore>, kServers> disk;
  std::array<std::unique_ptr<ObjectServer>, kServers> servers;
  std::shared_ptr<Judge> judge = std::make_shared<Judge>();
  uint64_t sequence = 1;  // of the clients' mutations
  Duration scrub_every{0};

 private:
  Task<void> TellMember(proto::Chain chain, std::string member);
  const uint64_t rate_;
  std::array<int, kServers> boots_{};  // of each server's machine
};

}  // namespace nacre
