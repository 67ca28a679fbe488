// A client keeps a bounded amount for a server over shared memory, into whichever memory the server puts. A
// put counts until the socket has taken the word that it has been taken, which this server does not read.
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "tests/transport/fake_device.h"
#include "tests/transport/shm/raw_server.h"
#include "tests/transport/tcp/raw_socket.h"
#include "tests/transport/transport_fixture.h"
#include "transport/shm/pieces.h"
#include "transport/shm/setup.h"
#include "transport/shm/shm_transport.h"

namespace nacre {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int kPuts = 300'000;  // so many words that no socket has room for them
constexpr size_t kRegionSize = 4096;
constexpr size_t kSetupBytes = 16 + 8 * shm::kMaxRegions;

// Answers the first call with puts, and with nothing else.
void PutOnAndOn(RawServer* listener) {
  const int fd = listener->Accept();
  const auto own = SharedMemory::Create("nacre-test", kRegionSize).value();
  EXPECT_EQ(shm::SendSetup(fd, {own}), OkStatus());
  RawSocket socket(fd);
  (void)socket.Receive(kSetupBytes);
  socket.AnswerGreeting();
  std::string body;
  FrameHeader put{FrameType::kSharedPut, 0, 0, 0, 24, kRegionSize};
  put.call_id = socket.ReceiveFrame(FrameReceiver::kServer, &body).call_id;
  std::string piece;
  shm::AppendPiece({0, 0, kRegionSize}, &piece);
  Bytes frames;
  for (int i = 0; i < kPuts; ++i) {
    const size_t at = frames.size();
    frames.resize(at + kFrameHeaderSize + piece.size());
    EncodeFrameHeader(put, frames.data() + at);
    std::memcpy(frames.data() + at + kFrameHeaderSize, piece.data(), piece.size());
  }
  socket.Send(frames);
  EXPECT_TRUE(socket.WaitForEnd());
}

class UnheardTest : public TransportTest {
 protected:
  void ExpectCutOff(const std::function<std::shared_ptr<MemoryRegion>(Transport&)>& memory) {
    const std::string where = absl::StrCat("unix:@nacre_unheard.", ::getpid());
    RawServer listener(where);
    std::thread server([&] { PutOnAndOn(&listener); });
    {
      auto transport = MakeShmTransport(executor(), RealClock());
      auto region = memory(*transport);
      auto peer = transport->Connect(where).value();
      const Status status = Call(*peer, "x", CallMemory::kPutTarget, {{region, 0, kRegionSize}}).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr("does not hear what has been taken"));
    }
    server.join();
  }
};

INSTANTIATE_TEST_SUITE_P(All, UnheardTest, testing::ValuesIn(ShmKinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(UnheardTest, AServerThatPutsIntoHostMemory) {
  Bytes memory(kRegionSize);
  ExpectCutOff([&](Transport& transport) { return *transport.Register(memory.data(), memory.size()); });
}

TEST_P(UnheardTest, AServerThatPutsIntoTheMemoryOfADevice) {
  const auto device = std::make_shared<FakeDevice>(kRegionSize);
  ExpectCutOff(
      [&](Transport& transport) { return *transport.RegisterDevice(device, device->data(), kRegionSize); });
}

// A device that is busy has copies to make.
TEST_P(UnheardTest, AServerThatPutsIntoTheMemoryOfADeviceThatIsBusy) {
  const auto device = std::make_shared<FakeDevice>(kRegionSize);
  device->Hold();
  std::thread busy([&] {
    EXPECT_TRUE(Eventually([&] { return device->copies_waiting() > 4000; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // for many more, if they were taken
    EXPECT_LT(device->copies_waiting(), 10'000);
    device->Resume();
  });
  ExpectCutOff(
      [&](Transport& transport) { return *transport.RegisterDevice(device, device->data(), kRegionSize); });
  busy.join();
}

}  // namespace
}  // namespace nacre
