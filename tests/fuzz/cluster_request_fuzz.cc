// Hostile registrations and heartbeats of OSSes: each is answered, with an error or not, and whatever the MGS
// has taken in, an MDS can start with it again.
#include <cstdlib>

#include "tests/fuzz/message_filler.h"
#include "tests/fuzz/simulated_mds.h"

namespace nacre::fuzz {
namespace {

constexpr int kMaxRequests = 20;

class FuzzedManagement : public SimulatedMds {
 public:
  void Register(FuzzedDataProvider& input) {
    proto::RegisterOssRequest request;
    FillMessage(input, &request);
    if (input.ConsumeBool()) request.clear_cluster_uuid();
    if (input.ConsumeBool()) request.set_address(input.ConsumeBool() ? "sim:oss0" : "sim:oss1");
    (void)Wait(server->RegisterOss(std::move(request)));
  }

  void Heartbeat(FuzzedDataProvider& input) {
    proto::HeartbeatRequest request;
    FillMessage(input, &request);
    if (!Wait(server->Heartbeat(std::move(request)))) std::abort();
  }

  void Administer(FuzzedDataProvider& input) {
    proto::AdminRequest request;
    FillMessage(input, &request);
    (void)Wait(server->Administer(std::move(request)));
  }

  void Look() {
    if (!Wait(server->GetStatus())) std::abort();
    world.RunFor(7s);  // OSTs go down
  }
};

}  // namespace
}  // namespace nacre::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  nacre::fuzz::FuzzedManagement management;
  if (!management.Start()) std::abort();
  for (int i = 0; i < nacre::fuzz::kMaxRequests && input.remaining_bytes() > 0; ++i) {
    switch (input.ConsumeIntegralInRange<int>(0, 4)) {
      case 0:
        management.Look();
        break;
      case 1:
        management.Heartbeat(input);
        break;
      case 2:
        management.Administer(input);
        break;
      default:
        management.Register(input);
    }
  }
  management.Crash();
  if (!management.Start()) std::abort();
  management.Look();
  return 0;
}
