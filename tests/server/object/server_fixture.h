// An OSS with two OSTs in memory behind the in-process transport, and clients of it, on one thread.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>

#include "common/crc32c.h"
#include "rpc/convert.h"
#include "rpc/object_stub.h"
#include "server/kv/mem_kv.h"
#include "server/object/mem_block_store.h"
#include "server/object/object_server.h"
#include "transport/inproc/inproc_transport.h"

namespace nacre {

// Runs the context until it is done, or the time is over; returns whether it is.
inline bool RunUntil(asio::io_context& context, const std::function<bool()>& done, Duration limit) {
  const Duration deadline = RealClock().Now() + limit;
  context.restart();
  while (!done() && RealClock().Now() < deadline) context.run_one_for(std::chrono::milliseconds(100));
  return done();
}

// A client's registered memory.
struct ClientMemory {
  ClientMemory(Transport* transport, size_t size) : bytes(size, '\0') {
    region = *transport->Register(reinterpret_cast<std::byte*>(bytes.data()), bytes.size());
  }
  std::vector<MemorySpan> Spans() { return {{region, 0, bytes.size()}}; }
  std::string bytes;
  std::shared_ptr<MemoryRegion> region;
};

class ServerFixture {
 public:
  static constexpr uint64_t kBlocks = 4096;

  explicit ServerFixture(ObjectOptions options = {}, std::shared_ptr<ClusterChannel> cluster = nullptr)
      : options_(std::move(options)), cluster_(std::move(cluster)) {
    options_.listen = "inproc:oss";
    options_.pool_bytes = 8 << 20;
    Status status = Start();
    EXPECT_TRUE(status.ok()) << status;
  }
  ~ServerFixture() {
    server.reset();
    context.restart();
    context.poll();
  }

  Status Start() {
    ObjectEnvironment environment{context.get_executor(), RealClock(), random, *transport, cluster_};
    std::vector<OstDevices> osts{{0, &kv[0], &disk[0], "memory0"}, {5, &kv[1], &disk[1], "memory5"}};
    auto started = Run(ObjectServer::Start(environment, osts, options_));
    if (!started.ok()) return started.status();
    server = *std::move(started);
    return OkStatus();
  }
  Status Restart() {
    server.reset();
    return Start();
  }

  std::unique_ptr<ObjectStub> Client(SessionId session) {
    RetryPolicy policy;
    policy.hard = false;
    policy.soft_timeout = 2s;
    policy.pause = 1ms;
    return std::make_unique<ObjectStub>(*transport->Connect("inproc:oss"), RealClock(), session, 1, policy);
  }

  template <typename T>
  T Run(Task<T> task) {
    std::optional<T> result;
    Spawn(context.get_executor(), [](Task<T> task, std::optional<T>* result) -> Task<void> {
      result->emplace(co_await std::move(task));
    }(std::move(task), &result));
    context.restart();
    while (!result && context.run_one() > 0) {
    }
    EXPECT_TRUE(result.has_value()) << "the task never finished";
    return *std::move(result);
  }

  StatusOr<proto::ObjectReply> Call(ObjectStub* stub, proto::ObjectRequest request) {
    return Run(stub->Call(std::move(request), CallMemory::kNone, {}));
  }

  static void AddRange(proto::ObjectRange* range, ObjectId id, uint64_t offset, uint64_t length,
                       uint64_t memory_offset) {
    *range->mutable_object() = ToProto(id);
    range->set_offset(offset);
    range->set_length(length);
    range->set_memory_offset(memory_offset);
  }

  static proto::ObjectRequest WriteRequest(OstIndex ost, ObjectId id, uint64_t offset,
                                           const std::string& data) {
    proto::ObjectRequest request;
    request.set_ost(ost);
    proto::WriteRange* range = request.mutable_write()->add_ranges();
    AddRange(range->mutable_range(), id, offset, data.size(), 0);
    *range->mutable_parent() = ToProto(Fid{7, 1, 0});
    std::vector<uint32_t> crc(CrcCount(offset, data.size()));
    Crc32cBlocks(offset, {reinterpret_cast<const std::byte*>(data.data()), data.size()}, crc.data());
    range->mutable_crc()->Add(crc.begin(), crc.end());
    return request;
  }

  StatusOr<proto::ObjectReply> Write(ObjectStub* stub, OstIndex ost, ObjectId id, uint64_t offset,
                                     std::string data, uint64_t grant_used = 0, bool sync = false) {
    proto::ObjectRequest request = WriteRequest(ost, id, offset, data);
    request.mutable_write()->set_grant_used(grant_used);
    request.mutable_write()->set_sync(sync);
    ClientMemory sent(transport.get(), data.size());
    std::copy(data.begin(), data.end(), sent.bytes.begin());
    return Run(stub->Call(std::move(request), CallMemory::kGetSource, sent.Spans()));
  }

  StatusOr<std::string> Read(ObjectStub* stub, OstIndex ost, ObjectId id, uint64_t offset, uint64_t length) {
    ClientMemory memory(transport.get(), length);
    proto::ObjectRequest request;
    request.set_ost(ost);
    AddRange(request.mutable_read()->add_ranges(), id, offset, length, 0);
    auto reply = Run(stub->Call(std::move(request), CallMemory::kPutTarget, memory.Spans()));
    if (!reply.ok()) return reply.status();
    const proto::ReadRangeResult& result = reply->read().ranges(0);
    RETURN_IF_ERROR(FromProto(result.status()));
    return memory.bytes.substr(0, result.length());
  }

  asio::io_context context;
  SeededRandom random{1};
  std::unique_ptr<Transport> transport =
      MakeInprocTransport(MakeInprocNetwork(), context.get_executor(), RealClock());
  MemKv kv[2];
  MemBlockStore disk[2] = {MemBlockStore(kBlocks), MemBlockStore(kBlocks)};
  std::unique_ptr<ObjectServer> server;

 private:
  ObjectOptions options_;
  std::shared_ptr<ClusterChannel> cluster_;
};

}  // namespace nacre
