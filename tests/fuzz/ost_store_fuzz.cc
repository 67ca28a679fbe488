// A damaged OST: records changed, added and removed under a server. It starts or says why it cannot, serves
// or answers with errors; the checker finds its way through it, and its repair comes to an end.
#include <cstdlib>

#include "common/bytes.h"
#include "common/crc32c.h"
#include "rpc/convert.h"
#include "rpc/mutation.h"
#include "rpc/object_stub.h"
#include "server/kv/mem_kv.h"
#include "server/object/check.h"
#include "server/object/mem_block_store.h"
#include "server/object/object_server.h"
#include "tests/fuzz/message_filler.h"
#include "tests/fuzz/simulated.h"
#include "tests/fuzz/store_damage.h"

namespace nacre::fuzz {
namespace {

constexpr int kMaxChanges = 12;
constexpr size_t kMemory = 16 << 10;
constexpr char kAddress[] = "sim:oss";

class FuzzedOst : Simulated {
 public:
  // Two objects to damage; stopped in the middle, so that there are undo records.
  FuzzedOst() {
    if (!Start()) std::abort();
    for (uint32_t stripe : {0, 1}) {
      for (uint64_t offset : {0, 100'000}) Write({1, stripe}, offset);
    }
    Stop();
  }

  void Damage(FuzzedDataProvider& input) {
    auto key_beginning = [](FuzzedDataProvider& input) {
      static constexpr char kTables[] = {'S', 'O', 'E', 'U', 'F', 'W', 'A', 'L'};
      std::string key(1, input.PickValueInArray(kTables));
      PutObjectId(&key, {1, 0});
      return key;
    };
    DamageStore(input, store_, key_beginning, 16);
  }

  void Serve() {
    if (!Start()) return;
    for (uint32_t stripe : {0, 1}) {
      Read({1, stripe});
      Write({1, stripe}, 50'000);
      proto::ObjectRequest truncate;
      *truncate.mutable_truncate()->mutable_object() = ToProto(ObjectId{1, stripe});
      truncate.mutable_truncate()->set_size(1000);
      Ask(std::move(truncate), CallMemory::kNone);
    }
    world.RunFor(3s);
    Stop();
  }

  void Check() {
    if (!CheckOnce(false)) return;
    CheckOnce(true);
    CheckOnce(true);
  }

 private:
  bool Start() {
    process_ = world.Start(0, "oss");
    transport_ = sim::NewTransport(network, process_);
    process_->Own(transport_);
    ObjectEnvironment environment{process_->executor(), world.clock(), process_->random(), *transport_,
                                  nullptr};
    ObjectOptions options;
    options.listen = kAddress;
    options.pool_bytes = 4 << 20;
    std::vector<OstDevices> devices{{0, &store_, &disk_, "memory"}};
    auto started = Await(process_, ObjectServer::Start(environment, std::move(devices), options));
    if (!started.has_value()) std::abort();
    if (!started->ok()) return Stop(), false;
    process_->Own(std::shared_ptr<ObjectServer>(**std::move(started)));
    peer_ = *transport_->Connect(kAddress);
    region_ = *transport_->Register(memory_.data(), memory_.size());
    return true;
  }

  void Stop() {
    peer_ = nullptr;
    region_ = nullptr;
    transport_ = nullptr;
    world.Kill(process_);
    store_.CrashProcess();
  }

  void Ask(proto::ObjectRequest request, CallMemory kind) {
    CallRequest call;
    request.set_session(request.has_truncate() ? 0 : 1);  // only the MDS truncates
    if (IsMutation(request)) request.set_sequence(++sequence_);
    call.body = request.SerializeAsString();
    call.kind = kind;
    if (kind != CallMemory::kNone) call.memory.push_back({region_, 0, kMemory});
    auto reply = Await(process_, peer_->Call(std::move(call), 30s));
    proto::ObjectReply parsed;
    if (!reply.has_value() || (reply->ok() && !parsed.ParseFromString(**reply))) std::abort();
  }

  void Write(ObjectId object, uint64_t offset) {
    proto::ObjectRequest request;
    proto::WriteRange* write = request.mutable_write()->add_ranges();
    *write->mutable_range()->mutable_object() = ToProto(object);
    write->mutable_range()->set_offset(offset);
    write->mutable_range()->set_length(kMemory);
    *write->mutable_parent() = ToProto(Fid{7, 1, 0});
    std::vector<uint32_t> crc(CrcCount(offset, kMemory));
    Crc32cBlocks(offset, memory_, crc.data());
    write->mutable_crc()->Add(crc.begin(), crc.end());
    Ask(std::move(request), CallMemory::kGetSource);
  }

  void Read(ObjectId object) {
    proto::ObjectRequest request;
    proto::ObjectRange* range = request.mutable_read()->add_ranges();
    *range->mutable_object() = ToProto(object);
    range->set_length(kMemory);
    Ask(std::move(request), CallMemory::kPutTarget);
  }

  bool CheckOnce(bool repair) {
    sim::Process* doctor = world.Start(1, "doctor");
    ost::CheckOptions options;
    options.verify_data = true;
    options.repair = repair;
    OstDevices devices{0, &store_, &disk_, "memory"};
    auto report = Await(doctor, ost::CheckOst(devices, std::move(options)));
    if (!report.has_value()) std::abort();
    world.Kill(doctor);
    return report->ok();
  }

  MemKv store_;
  MemBlockStore disk_{256};
  std::vector<std::byte> memory_{kMemory};
  sim::Process* process_ = nullptr;
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<Peer> peer_;
  std::shared_ptr<MemoryRegion> region_;
  uint64_t sequence_ = 0;
};

}  // namespace
}  // namespace nacre::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  nacre::fuzz::FuzzedOst ost;
  for (int i = 0; i < nacre::fuzz::kMaxChanges && input.remaining_bytes() > 0; ++i) ost.Damage(input);
  ost.Serve();
  ost.Check();
  return 0;
}
