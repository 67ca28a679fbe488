// Whether a server on the same node should push into a client's GPU memory (opened through CUDA IPC) or the
// client should pull out of the server's pool, as it does. Two processes on one GPU; no Nacre between them:
// what their copies alone give. Needs a GPU and its driver.
//   ipc_push_bench [--seconds 1]
// "pull": the client's context copies from a memfd of the server's that it has mapped and pinned (for
// reading, as the library does); "push": the server's copies from its own pool to the client's memory. "while
// busy": the client's context runs kernels meanwhile (memsets), as one that verifies does.
#include <absl/strings/str_format.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "gpu/cuda_library.h"

namespace nacre::bench {
namespace {

using gpu::CudaAddress;
using Clock = std::chrono::steady_clock;

constexpr size_t kPool = size_t{1} << 30;
constexpr int kRounds = 3;

struct IpcHandle {
  char bytes[64];
};
using GetHandle = int(IpcHandle*, CudaAddress);
using OpenHandle = int(CudaAddress*, IpcHandle, unsigned);

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "ipc_push_bench: %s\n", what.c_str());
  std::exit(1);
}

void Must(bool good, const char* what) {
  if (!good) Die(absl::StrFormat("%s: %s", what, std::strerror(errno)));
}

// One process's side of the GPU.
class Gpu {
 public:
  Gpu() {
    auto loaded = gpu::CudaLibrary::Load("");
    if (!loaded.ok()) Die(std::string(loaded.status().message()));
    cuda_ = *loaded;
    gpu::CudaContext context = nullptr;
    Check(cuda()->DevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    Check(cuda()->CtxPushCurrent(context), "cuCtxPushCurrent");
    for (gpu::CudaStream* stream : {&copies_[0], &copies_[1], &work_})
      Check(cuda()->StreamCreate(stream, gpu::kCudaStreamNonBlocking), "cuStreamCreate");
  }
  const gpu::CudaLibrary& cuda() const { return *cuda_; }
  void Check(gpu::CudaResult result, const char* what) const {
    if (const Status status = cuda_->Check(result, what); !status.ok()) Die(std::string(status.message()));
  }
  template <typename Function>
  Function* Find(const char* name) const {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
    void* function = library == nullptr ? nullptr : ::dlsym(library, name);
    if (function == nullptr) Die(absl::StrFormat("the driver has no %s", name));
    return reinterpret_cast<Function*>(function);
  }
  // As good as what the client does with a server's pool: pinned for reading where that works.
  void Pin(void* memory, bool read_only) const {
    const unsigned flags = read_only ? gpu::kCudaHostRegisterReadOnly : 0;
    if (cuda()->MemHostRegister(memory, kPool, flags) == gpu::kCudaSuccess) return;
    Check(cuda()->MemHostRegister(memory, kPool, 0), "cuMemHostRegister");
  }

  // Bytes a second, `depth` copies enqueued at once on two streams; `busy`: kernels run beside them.
  double Rate(CudaAddress to, const std::byte* from, size_t size, size_t depth, double seconds) const {
    std::vector<double> rates;
    for (int round = 0; round < kRounds; ++round) {
      const auto begin = Clock::now();
      uint64_t bytes = 0;
      double took = 0;
      while (took < seconds) {
        for (size_t i = 0; i < depth; ++i, bytes += size) {
          const size_t at = bytes % (kPool / size * size);
          Check(cuda()->MemcpyHtoDAsync(to + at, from + at, size, copies_[i % 2]), "copying");
        }
        for (gpu::CudaStream stream : copies_)
          Check(cuda()->StreamSynchronize(stream), "cuStreamSynchronize");
        took = std::chrono::duration<double>(Clock::now() - begin).count();
      }
      rates.push_back(static_cast<double>(bytes) / took);
    }
    std::sort(rates.begin(), rates.end());
    return rates[kRounds / 2];
  }

  // Fills the memory of the device while the other process asks for figures.
  void Work(CudaAddress memory) const {
    for (int i = 0; i < 16; ++i)
      Check(cuda()->MemsetD8Async(memory, 1, size_t{64} << 20, work_), "cuMemsetD8Async");
    Check(cuda()->StreamSynchronize(work_), "cuStreamSynchronize");
  }

 private:
  std::shared_ptr<const gpu::CudaLibrary> cuda_;
  gpu::CudaStream copies_[2] = {}, work_ = nullptr;
};

struct Order {
  size_t size = 0, depth = 0;  // 0: end
  double seconds = 0;
};

// The server: pushes what it is told to.
void Serve(int channel, int pool) {
  const Gpu gpu;
  auto* memory = static_cast<std::byte*>(::mmap(nullptr, kPool, PROT_READ | PROT_WRITE, MAP_SHARED, pool, 0));
  Must(memory != MAP_FAILED, "mmap");
  gpu.Pin(memory, false);
  IpcHandle handle;
  Must(::read(channel, &handle, sizeof handle) == sizeof handle, "reading the handle");
  CudaAddress target = 0;
  gpu.Check(gpu.Find<OpenHandle>("cuIpcOpenMemHandle_v2")(&target, handle, 1), "cuIpcOpenMemHandle");
  for (Order order; ::read(channel, &order, sizeof order) == sizeof order && order.size > 0;) {
    const double rate = gpu.Rate(target, memory, order.size, order.depth, order.seconds);
    Must(::write(channel, &rate, sizeof rate) == sizeof rate, "answering");
  }
}

class Client {
 public:
  Client(int channel, int pool, double seconds) : channel_(channel), seconds_(seconds) {
    pool_ = static_cast<const std::byte*>(::mmap(nullptr, kPool, PROT_READ, MAP_SHARED, pool, 0));
    Must(pool_ != MAP_FAILED, "mmap");
    gpu_.Pin(const_cast<std::byte*>(pool_), true);
    gpu_.Check(gpu_.cuda()->MemAlloc(&memory_, kPool), "cuMemAlloc");
    gpu_.Check(gpu_.cuda()->MemAlloc(&scratch_, size_t{64} << 20), "cuMemAlloc");
    IpcHandle handle;
    gpu_.Check(gpu_.Find<GetHandle>("cuIpcGetMemHandle")(&handle, memory_), "cuIpcGetMemHandle");
    Must(::write(channel_, &handle, sizeof handle) == sizeof handle, "sending the handle");
  }
  ~Client() {
    const Order end;
    (void)!::write(channel_, &end, sizeof end);
  }

  void Run() {
    std::printf("%-10s %6s %11s %11s %11s %14s\n", "size", "depth", "pull GB/s", "push GB/s", "push/pull",
                "push, busy");
    for (size_t size : {size_t{4} << 10, size_t{64} << 10, size_t{1} << 20, size_t{16} << 20}) {
      for (size_t depth : {size_t{1}, size_t{16}}) {
        const double pull = gpu_.Rate(memory_, pool_, size, depth, seconds_);
        const double push = Push(size, depth, false), busy = Push(size, depth, true);
        std::printf("%-10zu %6zu %11.2f %11.2f %11.3f %14.2f\n", size, depth, pull / 1e9, push / 1e9,
                    push / pull, busy / 1e9);
      }
    }
  }

 private:
  double Push(size_t size, size_t depth, bool busy) {
    const Order order{size, depth, seconds_};
    Must(::write(channel_, &order, sizeof order) == sizeof order, "asking");
    double rate = 0;
    while (busy && ::recv(channel_, &rate, sizeof rate, MSG_PEEK | MSG_DONTWAIT) <= 0) gpu_.Work(scratch_);
    Must(::read(channel_, &rate, sizeof rate) == sizeof rate, "the server's answer");
    return rate;
  }

  const int channel_;
  const double seconds_;
  const Gpu gpu_;
  const std::byte* pool_ = nullptr;
  CudaAddress memory_ = 0, scratch_ = 0;
};

void Main(double seconds) {
  int ends[2] = {};
  Must(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
  const int pool = ::memfd_create("pool", MFD_CLOEXEC);
  Must(pool >= 0 && ::ftruncate(pool, kPool) == 0, "memfd_create");
  const pid_t server = ::fork();
  Must(server >= 0, "fork");
  if (server == 0) {
    ::close(ends[0]);
    Serve(ends[1], pool);
    ::_exit(0);
  }
  ::close(ends[1]);
  Client(ends[0], pool, seconds).Run();
  ::waitpid(server, nullptr, 0);
}

}  // namespace
}  // namespace nacre::bench

int main(int argc, char** argv) {
  const bool given = argc == 3 && std::strcmp(argv[1], "--seconds") == 0;
  if (argc != 1 && !given) nacre::bench::Die("usage: ipc_push_bench [--seconds S]");
  nacre::bench::Main(given ? std::atof(argv[2]) : 0.5);
}
