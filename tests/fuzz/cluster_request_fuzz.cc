// Hostile registrations and heartbeats of OSSes: each is answered, with an error or not, and whatever the MGS
// has taken in, an MDS can start with it again.
#include <cstdlib>

#include "server/kv/mem_kv.h"
#include "server/metadata/metadata_server.h"
#include "tests/fuzz/message_filler.h"
#include "tests/fuzz/simulated.h"

namespace nacre::fuzz {
namespace {

constexpr int kMaxRequests = 20;

class FuzzedManagement : Simulated {
 public:
  void Start() {
    process_ = world.Start(0, "mds");
    std::shared_ptr<Transport> transport = sim::NewTransport(network, process_);
    process_->Own(transport);
    MetadataEnvironment environment{process_->executor(), world.clock(), process_->random(), store_,
                                    *transport};
    auto started = Await(process_, MetadataServer::Start(environment, MetadataOptions{}));
    if (!started.has_value() || !started->ok()) std::abort();
    server_ = (*started)->get();
    process_->Own(std::shared_ptr<MetadataServer>(**std::move(started)));
  }

  void Crash() {
    world.Kill(process_);
    store_.CrashProcess();
  }

  void Register(FuzzedDataProvider& input) {
    proto::RegisterOssRequest request;
    FillMessage(input, &request);
    if (input.ConsumeBool()) request.clear_cluster_uuid();
    if (input.ConsumeBool()) request.set_address(input.ConsumeBool() ? "sim:oss0" : "sim:oss1");
    (void)Await(process_, server_->RegisterOss(std::move(request)));
  }

  void Heartbeat(FuzzedDataProvider& input) {
    proto::HeartbeatRequest request;
    FillMessage(input, &request);
    if (!Await(process_, server_->Heartbeat(std::move(request)))) std::abort();
  }

  void Look() {
    if (!Await(process_, server_->GetStatus())) std::abort();
    world.RunFor(7s);  // OSTs go down
  }

 private:
  MemKv store_;
  sim::Process* process_ = nullptr;
  MetadataServer* server_ = nullptr;
};

}  // namespace
}  // namespace nacre::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  nacre::fuzz::FuzzedManagement management;
  management.Start();
  for (int i = 0; i < nacre::fuzz::kMaxRequests && input.remaining_bytes() > 0; ++i) {
    switch (input.ConsumeIntegralInRange<int>(0, 3)) {
      case 0:
        management.Look();
        break;
      case 1:
        management.Heartbeat(input);
        break;
      default:
        management.Register(input);
    }
  }
  management.Crash();
  management.Start();
  management.Look();
  return 0;
}
