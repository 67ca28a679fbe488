// Measures the cost of the library for GPU memory over bare CUDA, on a machine with a GPU: run it as
// build/bin/gpu_bench [--json] [--seconds S]. Needs nothing but the driver.
//
// "bare" is what one thread reaches with the driver's own calls and pinned memory: the ceiling. All others go
// through gpu::Device as transports and clients do, `depth` tasks at once. Compare within one run. CPU is
// what the whole process spent, in seconds for each GB (10^9 bytes); latencies are of one operation.
#include <absl/strings/str_format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>

#include "common/runtime.h"
#include "gpu/cuda_library.h"
#include "gpu/device_state.h"
#include "gpu/gpus.h"
#include "transport/shared_memory.h"

namespace nacre::gpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPool = 1 << 30;  // more than any cache holds
constexpr int kRounds = 3;         // the median counts

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](timeval time) { return time.tv_sec + time.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "gpu_bench: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}
template <typename T>
T Require(StatusOr<T> value) {
  Require(value.status());
  return *std::move(value);
}

struct Result {
  std::string name;
  size_t size = 0;  // of one operation
  size_t depth = 1;
  double seconds = 0;
  double cpu = 0;
  std::vector<double> latencies;

  double gigabytes() const { return 1e-9 * size * latencies.size(); }
  double rate() const { return gigabytes() / seconds; }
  double Latency(double share) const {
    return latencies.empty() ? 0 : latencies[static_cast<size_t>(share * (latencies.size() - 1))];
  }
};

class Bench {
 public:
  Bench(std::shared_ptr<Gpus> gpus, double seconds, bool json)
      : device_(gpus->devices().front()), seconds_(seconds), json_(json) {
    state_ = Require(device_->State());
    context_ = state_->context();
    memory_ = Require(SharedMemory::Create("gpu-bench", kPool));
    std::memset(memory_->data(), 0x5a, kPool);
    view_ = Require(SharedView::Map(memory_->fd(), kPool));
    UseContext use(*context_);
    CudaAddress address = 0;
    Require(Check(cuda()->MemAlloc(&address, kPool), "cuMemAlloc"));
    buffer_ = reinterpret_cast<std::byte*>(address);
    Require(Check(cuda()->MemHostAlloc(reinterpret_cast<void**>(&pinned_), kPool, 0), "cuMemHostAlloc"));
    std::memset(pinned_, 0x5a, kPool);
  }

  void RunAll();

 private:
  // One operation: the number of it tells which memory it is for.
  using Operation = std::function<Task<Status>(size_t number)>;

  const CudaLibrary& cuda() { return context_->cuda(); }
  Status Check(CudaResult result, const char* what) { return cuda().Check(result, what); }

  size_t Place(size_t number, size_t size) const { return number * size % (kPool / size * size); }
  iovec OnDevice(size_t number, size_t size) const { return {buffer_ + Place(number, size), size}; }
  iovec In(const std::byte* host, size_t number, size_t size) const {
    return {const_cast<std::byte*>(host) + Place(number, size), size};
  }

  void Bare(size_t size);
  void Naive(size_t size);
  void Measure(std::string name, size_t size, size_t depth, const Operation& operation);
  Result Once(size_t size, size_t depth, const Operation& operation);
  void Report(std::vector<Result> rounds);
  void CopyIn(const char* name, const std::byte* host, size_t size, size_t depth);
  void CopyScattered(const char* name, const std::byte* host, size_t piece, size_t count);
  void Staged(size_t size, size_t depth, bool verify);
  void Sums(size_t size, size_t depth);
  void CopyThenSums(const std::byte* host, size_t size, size_t depth);
  void Zeros(size_t piece, size_t count);
  void Idle();

  const std::shared_ptr<Device> device_;
  const double seconds_;
  const bool json_;
  std::shared_ptr<DeviceState> state_;
  std::shared_ptr<Context> context_;
  std::shared_ptr<SharedMemory> memory_;
  std::shared_ptr<const SharedView> view_;
  std::byte* buffer_ = nullptr;
  std::byte* pinned_ = nullptr;
  Runtime runtime_{2};
};

Task<std::vector<double>> Worker(const std::function<Task<Status>(size_t)>* operation,
                                 std::atomic<size_t>* next, Clock::time_point until) {
  std::vector<double> latencies;
  for (Clock::time_point begin = Clock::now(); begin < until;) {
    Require(co_await (*operation)(next->fetch_add(1)));
    Clock::time_point end = Clock::now();
    latencies.push_back(Seconds(end - begin));
    begin = end;
  }
  co_return latencies;
}

Result Bench::Once(size_t size, size_t depth, const Operation& operation) {
  Result result{.size = size, .depth = depth};
  std::atomic<size_t> next{0};
  Clock::time_point begin = Clock::now();
  double cpu = CpuSeconds();
  auto until = begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds_));
  std::vector<Task<std::vector<double>>> workers;
  for (size_t i = 0; i < depth; ++i) workers.push_back(Worker(&operation, &next, until));
  for (const auto& latencies : runtime_.Run(WhenAll(std::move(workers))))
    result.latencies.insert(result.latencies.end(), latencies.begin(), latencies.end());
  result.seconds = Seconds(Clock::now() - begin);
  result.cpu = CpuSeconds() - cpu;
  return result;
}

void Bench::Report(std::vector<Result> rounds) {
  std::ranges::sort(rounds, {}, [](const Result& result) { return result.rate(); });
  Result& median = rounds[rounds.size() / 2];
  std::ranges::sort(median.latencies);
  auto rate = [&] { return median.latencies.size() / median.seconds; };
  const char* format = json_ ? "{\"name\":\"%s\",\"bytes\":%d,\"depth\":%d,\"gb_per_s\":%.3f,\"cpu_s_per_"
                               "gb\":%.5f,\"ops_per_s\":%.0f,"
                               "\"p50_us\":%.1f,\"p99_us\":%.1f}"
                             : "%-34s %10d %5d %9.2f %11.5f %11.0f %9.1f %9.1f";
  auto parsed = absl::ParsedFormat<'s', 'd', 'd', 'f', 'f', 'f', 'f', 'f'>::New(format);
  std::string line = absl::StrFormat(*parsed, median.name, median.size, median.depth, median.rate(),
                                     median.cpu / median.gigabytes(), rate(), median.Latency(0.5) * 1e6,
                                     median.Latency(0.99) * 1e6);
  std::puts(line.c_str());
  std::fflush(stdout);
}

void Bench::Measure(std::string name, size_t size, size_t depth, const Operation& operation) {
  std::vector<Result> rounds;
  for (int i = 0; i < kRounds; ++i) {
    rounds.push_back(Once(size, depth, operation));
    rounds.back().name = name;
  }
  Report(std::move(rounds));
}

// The ceiling: 32 copies are queued at any time.
void Bench::Bare(size_t size) {
  UseContext use(*context_);
  CudaStream stream = nullptr;
  Require(Check(cuda()->StreamCreate(&stream, kCudaStreamNonBlocking), "cuStreamCreate"));
  std::vector<Result> rounds;
  for (int i = 0; i < kRounds; ++i) {
    Result result{.name = "bare pinned copy", .size = size, .depth = 32};
    Clock::time_point begin = Clock::now();
    double cpu = CpuSeconds();
    for (size_t number = 0; Seconds(Clock::now() - begin) < seconds_;) {
      for (size_t burst = 0; burst < result.depth; ++burst, ++number) {
        Require(Check(cuda()->MemcpyHtoDAsync(reinterpret_cast<CudaAddress>(OnDevice(number, size).iov_base),
                                              In(pinned_, number, size).iov_base, size, stream),
                      "cuMemcpyHtoDAsync"));
        result.latencies.push_back(0);
      }
      Require(Check(cuda()->StreamSynchronize(stream), "cuStreamSynchronize"));
    }
    result.seconds = Seconds(Clock::now() - begin);
    result.cpu = CpuSeconds() - cpu;
    rounds.push_back(std::move(result));
  }
  Report(std::move(rounds));
  cuda()->StreamDestroy(stream);
}

// Does what a program does by itself for small pieces: a copy, a wait.
void Bench::Naive(size_t size) {
  UseContext use(*context_);
  CudaStream stream = nullptr;
  Require(Check(cuda()->StreamCreate(&stream, kCudaStreamNonBlocking), "cuStreamCreate"));
  std::vector<Result> rounds;
  for (int i = 0; i < kRounds; ++i) {
    Result result{.name = "bare copy and wait, one by one", .size = size};
    Clock::time_point begin = Clock::now();
    double cpu = CpuSeconds();
    for (Clock::time_point last = begin; Seconds(last - begin) < seconds_;) {
      size_t number = result.latencies.size();
      Require(Check(cuda()->MemcpyHtoDAsync(reinterpret_cast<CudaAddress>(OnDevice(number, size).iov_base),
                                            In(pinned_, number, size).iov_base, size, stream),
                    "cuMemcpyHtoDAsync"));
      Require(Check(cuda()->StreamSynchronize(stream), "cuStreamSynchronize"));
      Clock::time_point now = Clock::now();
      result.latencies.push_back(Seconds(now - last));
      last = now;
    }
    result.seconds = Seconds(Clock::now() - begin);
    result.cpu = CpuSeconds() - cpu;
    rounds.push_back(std::move(result));
  }
  Report(std::move(rounds));
  cuda()->StreamDestroy(stream);
}

void Bench::CopyIn(const char* name, const std::byte* host, size_t size, size_t depth) {
  Measure(name, size, depth, [=, this](size_t number) -> Task<Status> {
    std::vector<iovec> to{OnDevice(number, size)}, from{In(host, number, size)};
    return device_->CopyIn(std::move(to), std::move(from));
  });
}

// Many pieces in one call, from places apart to places apart.
void Bench::CopyScattered(const char* name, const std::byte* host, size_t piece, size_t count) {
  Measure(name, piece * count, 2, [=, this](size_t number) -> Task<Status> {
    std::vector<iovec> to, from;
    for (size_t i = 0; i < count; ++i) {
      to.push_back(OnDevice((number * count + i) * 7919, 2 * piece));
      from.push_back(In(host, (number * count + i) * 104729, 2 * piece));
      to.back().iov_len = from.back().iov_len = piece;
    }
    return device_->CopyIn(std::move(to), std::move(from));
  });
}

std::vector<iovec> Blocks(std::byte* begin, size_t size) {
  std::vector<iovec> blocks;
  for (size_t at = 0; at < size; at += 4096)
    blocks.push_back({begin + at, std::min<size_t>(4096, size - at)});
  return blocks;
}

Task<Status> StageAndCopy(Device* device, std::byte* to, size_t size, bool verify) {
  for (std::byte* end = to + size; to != end;) {
    CO_ASSIGN_OR_RETURN(StagingBuffer staged, co_await device->Stage(end - to));
    std::vector<iovec> target(1, iovec{to, staged.bytes.size()});
    std::vector<iovec> source(1, iovec{staged.bytes.data(), staged.bytes.size()});
    CO_RETURN_IF_ERROR(co_await device->CopyIn(target, std::move(source)));
    if (verify) {
      std::vector<iovec> blocks = Blocks(to, staged.bytes.size());
      CO_ASSIGN_OR_RETURN(auto sums, co_await device->Crc32c(std::move(blocks)));
      if (sums.empty()) co_return ErrnoError(EIO, "no checksums");
    }
    to += staged.bytes.size();
  }
  co_return OkStatus();
}

void Bench::Staged(size_t size, size_t depth, bool verify) {
  Measure(verify ? "staging slots, sums of blocks" : "staging slots", size, depth,
          [=, this](size_t number) -> Task<Status> {
            auto* to = static_cast<std::byte*>(OnDevice(number, size).iov_base);
            return StageAndCopy(device_.get(), to, size, verify);
          });
}

Task<Status> SumBlocks(Device* device, iovec range) {
  std::vector<iovec> blocks = Blocks(static_cast<std::byte*>(range.iov_base), range.iov_len);
  StatusOr<std::vector<uint32_t>> sums = co_await device->Crc32c(std::move(blocks));
  co_return sums.status();
}

void Bench::Sums(size_t size, size_t depth) {
  Measure("checksums of 4 KiB blocks", size, depth,
          [=, this](size_t number) { return SumBlocks(device_.get(), OnDevice(number, size)); });
}

Task<Status> CopyAndSum(Device* device, iovec to, iovec from) {
  std::vector<iovec> target(1, to), source(1, from);
  CO_RETURN_IF_ERROR(co_await device->CopyIn(std::move(target), std::move(source)));
  co_return co_await SumBlocks(device, to);
}

// As a verified read on the same node, but for everything that is not the GPU's.
void Bench::CopyThenSums(const std::byte* host, size_t size, size_t depth) {
  Measure("pinned mapping, then sums", size, depth, [=, this](size_t number) {
    return CopyAndSum(device_.get(), OnDevice(number, size), In(host, number, size));
  });
}

void Bench::Zeros(size_t piece, size_t count) {
  Measure("zeros, scattered", piece * count, 2, [=, this](size_t number) {
    std::vector<iovec> pieces;
    for (size_t i = 0; i < count; ++i) pieces.push_back(OnDevice((number * count + i) * 7919, 2 * piece));
    for (iovec& each : pieces) each.iov_len = piece;
    return device_->Zero(std::move(pieces));
  });
}

// Nothing to do must cost nothing.
void Bench::Idle() {
  double cpu = CpuSeconds();
  runtime_.Run([](double seconds) -> Task<int> {
    co_await RealClock().Sleep(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
    co_return 0;
  }(seconds_));
  if (!json_) std::printf("idle for %.1f s: %.6f s of CPU\n", seconds_, CpuSeconds() - cpu);
}

void Bench::RunAll() {
  const DeviceInfo& info = device_->info();
  if (!json_) {
    std::printf("%s, PCI %s, NUMA node %d, verification by %s\n", info.name.c_str(), info.pci_bus_id.c_str(),
                info.numa_node, device_->verification().c_str());
    std::printf("%-34s %10s %5s %9s %11s %11s %9s %9s\n", "", "bytes", "depth", "GB/s", "CPU-s/GB", "ops/s",
                "p50 us", "p99 us");
  }
  auto token = runtime_.Run(device_->Pin(view_->bytes()));
  if (!token.ok())
    std::printf("pin of a read-only mapping: %s\n", std::string(token.status().message()).c_str());
  for (size_t size : {size_t{64} << 10, size_t{1} << 20, size_t{64} << 20}) Bare(size);
  const std::byte* pool = view_->bytes().data();
  for (size_t depth : {1, 4, 16, 64}) {
    for (size_t size : {size_t{64} << 10, size_t{1} << 20, size_t{16} << 20})
      CopyIn("pinned mapping", pool, size, depth);
  }
  CopyThenSums(pool, 1 << 20, 64);
  for (size_t depth : {16, 64}) CopyThenSums(pool, 4 << 20, depth);
  for (size_t depth : {1, 4, 16}) Staged(4 << 20, depth, false);
  for (size_t depth : {4, 16}) Staged(4 << 20, depth, true);
  CopyIn("pageable memory", memory_->data(), 4 << 20, 4);
  for (size_t size : {size_t{1} << 20, size_t{16} << 20, size_t{64} << 20}) Sums(size, 4);
  Naive(4096);
  Naive(64 << 10);
  for (size_t size : {size_t{4} << 10, size_t{16} << 10, size_t{64} << 10}) {
    for (size_t depth : {1, 64}) CopyIn("pinned mapping, small", pool, size, depth);
    CopyScattered("pinned mapping, 1000 in a call", pool, size, 1000);
    CopyScattered("pageable, 1000 in a call", memory_->data(), size, 1000);
  }
  Zeros(4096, 1000);
  Idle();
}

int Main(int argc, char** argv) {
  double seconds = 0.3;
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    std::string_view argument = argv[i];
    json = json || argument == "--json";
    if (argument == "--seconds" && i + 1 < argc) seconds = std::atof(argv[i + 1]);
  }
  StatusOr<std::shared_ptr<Gpus>> gpus = Gpus::Open();
  Require(gpus.status());
  Bench(*std::move(gpus), seconds, json).RunAll();
  return 0;
}

}  // namespace
}  // namespace nacre::gpu

int main(int argc, char** argv) { return nacre::gpu::Main(argc, argv); }
