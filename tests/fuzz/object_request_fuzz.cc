// Hostile requests to an OSS: each is answered, with an error or not, and nothing breaks.
#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <optional>

#include "common/log.h"
#include "proto/object.pb.h"
#include "server/kv/mem_kv.h"
#include "server/object/mem_block_store.h"
#include "server/object/object_server.h"
#include "transport/inproc/inproc_transport.h"

namespace nacre {
namespace {

constexpr size_t kMemory = 64 << 10;

class FuzzedServer {
 public:
  FuzzedServer() {
    SetLogLevel(LogLevel::kError);
    ObjectOptions options;
    options.listen = "inproc:oss";
    options.pool_bytes = 4 << 20;
    ObjectEnvironment environment{context_.get_executor(), RealClock(), random_, *transport_, nullptr};
    std::vector<OstDevices> osts{{0, &kv_, &disk_, "memory"}};
    auto started = Run(ObjectServer::Start(environment, osts, options));
    if (!started.ok()) std::abort();
    server_ = *std::move(started);
    peer_ = *transport_->Connect("inproc:oss");
    region_ = *transport_->Register(memory_.data(), memory_.size());
  }

  void Send(std::string body, CallMemory kind) {
    CallRequest call;
    call.body = std::move(body);
    call.kind = kind;
    if (kind != CallMemory::kNone) call.memory.push_back({region_, 0, kMemory});
    StatusOr<std::string> reply = Run(peer_->Call(std::move(call), 60s));
    proto::ObjectReply parsed;
    if (!reply.ok() || !parsed.ParseFromString(*reply)) std::abort();
  }

 private:
  template <typename T>
  T Run(Task<T> task) {
    std::optional<T> result;
    Spawn(context_.get_executor(), [](Task<T> task, std::optional<T>* result) -> Task<void> {
      result->emplace(co_await std::move(task));
    }(std::move(task), &result));
    context_.restart();
    while (!result && context_.run_one() > 0) {
    }
    if (!result) std::abort();
    return *std::move(result);
  }

  asio::io_context context_;
  SeededRandom random_{1};
  std::unique_ptr<Transport> transport_ =
      MakeInprocTransport(MakeInprocNetwork(), context_.get_executor(), RealClock());
  MemKv kv_;
  MemBlockStore disk_{4096};
  std::vector<std::byte> memory_{kMemory};
  std::unique_ptr<ObjectServer> server_;
  std::shared_ptr<Peer> peer_;
  std::shared_ptr<MemoryRegion> region_;
};

}  // namespace
}  // namespace nacre

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using nacre::CallMemory;
  static auto* server = new nacre::FuzzedServer;
  if (size == 0) return 0;
  constexpr CallMemory kKinds[] = {CallMemory::kNone, CallMemory::kPutTarget, CallMemory::kGetSource};
  server->Send(std::string(reinterpret_cast<const char*>(data) + 1, size - 1), kKinds[data[0] % 3]);
  return 0;
}
