// Round trips of a metadata request that does nothing, through each form of the channel: what a create pays
// before the MDS has done anything.
//   build/bin/rpc_bench [--benchmark_filter=unix]
// The arguments are the number of requests in flight, and the KiB that each has with it: 0 for a create, 512
// for a batch of small files.
#include <absl/strings/str_cat.h>
#include <benchmark/benchmark.h>
#include <unistd.h>

#include "common/runtime.h"
#include "rpc/grpc_channel.h"
#include "rpc/grpc_server.h"
#include "rpc/inproc_channel.h"

namespace nacre {
namespace {

class NullMds : public MetadataHandler, public ClusterHandler {
 public:
  Task<proto::MetadataReply> Handle(std::shared_ptr<MetadataPeer>, proto::MetadataRequest request) override {
    proto::MetadataReply reply;
    proto::Attr* attr = reply.mutable_entry()->mutable_attr();
    attr->mutable_fid()->set_sequence(request.create().parent().sequence());
    attr->mutable_mtime()->set_seconds(1);
    attr->set_mode(0100644);
    co_return reply;
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

// A create, or so many bytes.
proto::MetadataRequest NewRequest(size_t bytes) {
  proto::MetadataRequest request;
  request.set_session(1);
  request.set_sequence(1);
  if (bytes > 0) {
    request.mutable_write_inline()->set_data(std::string(bytes, 'x'));
  } else {
    request.mutable_create()->mutable_parent()->set_sequence(5);
    request.mutable_create()->set_name("a-file-name.txt");
  }
  return request;
}

Task<int> Loop(std::shared_ptr<MetadataChannel> channel, int count, size_t bytes) {
  int good = 0;
  for (int i = 0; i < count; ++i) {
    proto::MetadataRequest request = NewRequest(bytes);
    auto reply = co_await channel->Call(std::move(request));
    good += reply.ok();
  }
  co_return good;
}

Task<int> Loops(std::shared_ptr<MetadataChannel> channel, int count, int in_flight, size_t bytes) {
  std::vector<Task<int>> tasks;
  for (int i = 0; i < in_flight; ++i) tasks.push_back(Loop(channel, count / in_flight, bytes));
  int good = 0;
  for (int n : co_await WhenAll(std::move(tasks))) good += n;
  co_return good;
}

void RoundTrips(benchmark::State& state, const std::string& form) {
  const int in_flight = static_cast<int>(state.range(0));
  const size_t bytes = static_cast<size_t>(state.range(1)) << 10;
  const int count = bytes > 0 ? 160 : 1600;
  NullMds mds;
  Runtime server_threads(2), client_threads(2);
  std::unique_ptr<InprocServer> inproc;
  std::unique_ptr<GrpcServer> grpc;
  std::shared_ptr<MetadataConnector> connector;
  if (form == "inproc") {
    inproc = std::make_unique<InprocServer>(server_threads.executor(), mds, mds);
    connector = inproc->NewConnector("bench");
  } else {
    std::string address =
        form == "unix" ? absl::StrCat("unix:/tmp/nacre-rpc-bench.", getpid()) : "127.0.0.1:0";
    grpc = GrpcServer::Start(server_threads.executor(), {&mds, &mds}, {address}).value();
    connector = NewGrpcConnector(grpc->addresses()[0]).value();
  }
  {
    auto channel = client_threads.Run(connector->Connect({}, 5s)).value();
    client_threads.Run(Loops(channel, 64, 8, 0));
    for (auto _ : state) {
      if (client_threads.Run(Loops(channel, count, in_flight, bytes)) != count)
        state.SkipWithError("a call failed");
    }
    state.SetItemsProcessed(state.iterations() * count);
    channel->Close();
  }
  if (grpc != nullptr) grpc->Stop();
  if (inproc != nullptr) inproc->Stop();
}

void Sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"in_flight", "KiB"})->Args({1, 0})->Args({32, 0})->Args({1, 512})->Args({2, 512});
  benchmark->UseRealTime();
}
BENCHMARK_CAPTURE(RoundTrips, inproc, "inproc")->Apply(Sizes);
BENCHMARK_CAPTURE(RoundTrips, unix, "unix")->Apply(Sizes);
BENCHMARK_CAPTURE(RoundTrips, tcp, "tcp")->Apply(Sizes);

}  // namespace
}  // namespace nacre

BENCHMARK_MAIN();
