// Hostile requests to an MDS, by a client that has a session: each is answered, with an error or not, or
// waits for something, and nothing breaks.
#include <cstdlib>

#include "tests/fuzz/message_filler.h"
#include "tests/fuzz/simulated_mds.h"

namespace nacre::fuzz {
namespace {

constexpr int kMaxRequests = 20;

void SendRequests(FuzzedDataProvider& input) {
  SimulatedMds mds;
  if (!mds.Start()) std::abort();
  if (input.ConsumeBool()) mds.RegisterOst();
  mds.Connect();
  for (int i = 0; i < kMaxRequests && input.remaining_bytes() > 0; ++i) {
    proto::MetadataRequest request;
    FillMessage(input, &request);
    if (request.has_disconnect()) continue;  // this session is needed
    (void)mds.Ask(std::move(request));
  }
}

}  // namespace
}  // namespace nacre::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  nacre::fuzz::SendRequests(input);
  return 0;
}
