// Reading a file into GPU memory with libnacre, beside what one would do without it. Run by bench/gpu.
//   gpu_read_bench MDS PATH [--size 8G] [--seconds 1] [--mounted FILE] [--transport auto|shm|tcp] [--threads
//   N]
//     [--quick] [--only-verification | --only-small]
// Writes PATH anew, brings it into the servers' caches, and prints a table. `--mounted FILE` names the same
// file on a mount, for the naive ways; without it they read through libnacre into host memory.
//
// Columns: GB/s (10^9 bytes), the ratio to the ceiling (pinned host memory -> GPU by one thread, measured
// just before), CPU-seconds of this process for each GB, median and 99th percentile of one request's time.
// Each line is the median of three rounds.
#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <nacre/nacre.hpp>
#include <random>
#include <vector>

#include "bench/loopback_rate.h"
#include "common/units.h"
#include "gpu/cuda_library.h"

namespace nacre::bench {
namespace {

using Clock = std::chrono::steady_clock;
using gpu::CudaLibrary;

constexpr int kRounds = 3;
constexpr size_t kStep = 16 << 20;  // of writing and checking

struct Settings {
  std::string mds, path, mounted, transport;
  uint64_t size = uint64_t{8} << 30;
  double seconds = 1;
  uint64_t threads = 0;  // of the library; 0: its default
  bool quick = false, only_verification = false, only_small = false;
};

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "gpu_read_bench: %s\n", what.c_str());
  std::exit(1);
}

template <typename T>
T Require(nacre::Expected<T> value, const std::string& what) {
  if (!value) Die(what + ": " + value.error().message());
  return *std::move(value);
}

void Require(const nacre::Result& result, uint64_t bytes) {
  if (!result.ok()) Die("reading: " + result.error().message());
  if (result.bytes() != bytes) Die(absl::StrFormat("%d bytes of %d", result.bytes(), bytes));
}

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](timeval time) { return static_cast<double>(time.tv_sec) + time.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The GPU with one context, one stream and what was allocated; freed with the process.
class Gpu {
 public:
  Gpu() {
    auto loaded = CudaLibrary::Load("");
    if (!loaded.ok()) Die(std::string(loaded.status().message()));
    cuda_ = *loaded;
    gpu::CudaContext context = nullptr;
    char name[256] = "";
    Check(cuda()->DevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    Check(cuda()->CtxPushCurrent(context), "cuCtxPushCurrent");
    Check(cuda()->StreamCreate(&stream_, gpu::kCudaStreamNonBlocking), "cuStreamCreate");
    Check(cuda()->DeviceGetName(name, sizeof name, 0), "cuDeviceGetName");
    std::printf("%s, driver for CUDA %s\n", name, gpu::VersionText(cuda().driver_version()).c_str());
  }

  void* Allocate(size_t size) {
    gpu::CudaAddress address = 0;
    Check(cuda()->MemAlloc(&address, size), "cuMemAlloc");
    return reinterpret_cast<void*>(address);
  }
  void* AllocatePinned(size_t size) {
    void* memory = nullptr;
    Check(cuda()->MemHostAlloc(&memory, size, gpu::kCudaHostAllocPortable), "cuMemHostAlloc");
    return memory;
  }
  void BeginCopyIn(void* to, const void* from, size_t size) {
    Check(cuda()->MemcpyHtoDAsync(reinterpret_cast<gpu::CudaAddress>(to), from, size, stream_), "copying");
  }
  void CopyOut(void* to, const void* from, size_t size) {
    Check(cuda()->MemcpyDtoHAsync(to, reinterpret_cast<gpu::CudaAddress>(from), size, stream_), "copying");
    Finish();
  }
  void Finish() { Check(cuda()->StreamSynchronize(stream_), "cuStreamSynchronize"); }

 private:
  const CudaLibrary& cuda() const { return *cuda_; }
  void Check(gpu::CudaResult result, const char* what) {
    if (const Status status = cuda_->Check(result, what); !status.ok()) Die(std::string(status.message()));
  }

  std::shared_ptr<const CudaLibrary> cuda_;
  gpu::CudaStream stream_ = nullptr;
};

struct Figures {
  double rate = 0;  // bytes a second
  double operations = 0;
  double cpu = 0;  // seconds a byte
  double median = 0, slow = 0;
};

// Does requests of `bytes` (one(i) returns when it is done, or begins it and returns what waits for it) for a
// while, `depth` at once, and takes the median of the rounds.
class Meter {
 public:
  explicit Meter(double seconds) : seconds_(seconds) {}

  Figures Measure(size_t bytes, size_t depth,
                  const std::function<std::function<void()>(size_t)>& begin) const {
    std::vector<Figures> rounds;
    for (int round = 0; round < kRounds; ++round) rounds.push_back(Round(bytes, depth, begin));
    std::sort(rounds.begin(), rounds.end(), [](auto& a, auto& b) { return a.rate < b.rate; });
    return rounds[kRounds / 2];
  }

 private:
  struct Running {
    Clock::time_point since;
    std::function<void()> wait;
  };

  Figures Round(size_t bytes, size_t depth, const std::function<std::function<void()>(size_t)>& begin) const {
    std::deque<Running> running;
    std::vector<double> times;
    const auto start = Clock::now();
    const double cpu = CpuSeconds();
    auto finish = [&] {
      running.front().wait();
      times.push_back(Seconds(Clock::now() - running.front().since));
      running.pop_front();
    };
    for (size_t i = 0; i < 2 * depth || Seconds(Clock::now() - start) < seconds_; ++i) {
      if (running.size() == depth) finish();
      const auto since = Clock::now();
      running.push_back({since, begin(i)});
    }
    while (!running.empty()) finish();
    const double took = Seconds(Clock::now() - start);
    std::sort(times.begin(), times.end());
    const double total = static_cast<double>(bytes) * static_cast<double>(times.size());
    return {total / took, static_cast<double>(times.size()) / took, (CpuSeconds() - cpu) / total,
            times[times.size() / 2], times[times.size() * 99 / 100]};
  }

  const double seconds_;
};

class Bench {
 public:
  // `loopback`: made before there was a CUDA context.
  Bench(Settings settings, const LoopbackRate& loopback)
      : settings_(std::move(settings)),
        loopback_(loopback),
        meter_(settings_.seconds),
        memory_size_(settings_.quick ? size_t{256} << 20 : size_t{1} << 30),
        memory_(gpu_.Allocate(memory_size_)),
        pinned_(gpu_.AllocatePinned(size_t{256} << 20)) {}

  void Run() {
    Open(true);
    Write();
    OpenFile();
    CheckAndWarm();
    Ceiling();
    if (settings_.only_small) {
      for (size_t size : {64 << 10, 1 << 20})
        Print("libnacre to GPU", size, 64, meter_.Measure(size, 64, Reads(size, false)));
      Small();
    } else if (!settings_.only_verification) {
      Loopback();
      Naive();
      Large();
      Small();
    }
    if (!settings_.only_small) Unverified();
    const nacre::Capabilities capabilities = Require(client_.capabilities(), "capabilities");
    std::printf("%s\n%s\n", capabilities.device.c_str(), capabilities.paths.c_str());
  }

 private:
  void Open(bool verify) {
    nacre::ClientOptions options;
    options.transport = settings_.transport;
    options.threads = settings_.threads;
    options.verify = verify;
    client_ = Require(nacre::Client::open(settings_.mds, options), "opening " + settings_.mds);
  }

  void OpenFile() {
    file_ = Require(client_.open_file(settings_.path), "opening " + settings_.path);
    buffer_ = Require(client_.register_buffer(memory_, memory_size_), "registering GPU memory");
  }

  static void Fill(std::vector<uint64_t>* words, uint64_t offset) {
    uint64_t state = offset + 1;
    for (uint64_t& word : *words) word = state = state * 6364136223846793005u + 1442695040888963407u;
  }

  void Write() {
    auto file = Require(client_.open_file(settings_.path, O_CREAT | O_TRUNC | O_WRONLY, 0644),
                        "creating " + settings_.path);
    std::vector<uint64_t> words(kStep / sizeof(uint64_t));
    auto source = Require(client_.register_buffer(words.data(), kStep), "registering memory");
    for (uint64_t at = 0; at < settings_.size; at += kStep) {
      Fill(&words, at);
      const nacre::Result written = file.write(at, source.span());
      if (!written.ok()) Die("writing: " + written.error().message());
    }
    if (const nacre::Error error = file.sync()) Die("writing: " + error.message());
  }

  // Every byte once through the GPU's memory and back.
  void CheckAndWarm() {
    std::vector<uint64_t> expected(kStep / sizeof(uint64_t)), got(expected.size());
    for (uint64_t at = 0; at < settings_.size; at += kStep) {
      const nacre::Result read = file_.read(at, buffer_.span(0, kStep));
      Require(read, kStep);
      gpu_.CopyOut(got.data(), memory_, kStep);
      Fill(&expected, at);
      if (got != expected) Die(absl::StrFormat("wrong bytes at %d", at));
      if (at == 0) {
        std::printf("path %s, verified by %s\n", std::string(read.path()).c_str(),
                    read.verification() == nacre::Verification::device ? "the GPU" : "the CPU");
      }
    }
    std::printf("%s read once, every byte as written\n\n", HumanSize(settings_.size).c_str());
    std::printf("%-34s %8s %6s %8s %7s %9s %10s %10s\n", "what", "size", "depth", "GB/s", "ratio", "CPU-s/GB",
                "p50 us", "p99 us");
  }

  void Print(const std::string& what, size_t size, size_t depth, const Figures& figures) {
    std::printf("%-34s %8s %6d %8.2f %7.3f %9.4f %10.1f %10.1f\n", what.c_str(), HumanSize(size).c_str(),
                static_cast<int>(depth), figures.rate / 1e9, figures.rate / ceiling_, figures.cpu * 1e9,
                figures.median * 1e6, figures.slow * 1e6);
    std::fflush(stdout);
  }

  void Ceiling() {
    constexpr size_t kSize = 16 << 20;
    const Figures figures = meter_.Measure(kSize, 1, [this](size_t i) {
      const size_t at = i % 16 * kSize;
      gpu_.BeginCopyIn(static_cast<std::byte*>(memory_) + at, static_cast<std::byte*>(pinned_) + at, kSize);
      return [this] { gpu_.Finish(); };
    });
    ceiling_ = figures.rate;
    Print("ceiling: pinned copy", kSize, 1, figures);
  }

  // Beside reads over TCP: bare sockets, as many as the data plane uses for large reads at most, and as many
  // as it has threads.
  void Loopback() {
    constexpr size_t kPinned = size_t{64} << 20;  // as the staging ring
    for (size_t connections : {4, 6}) {
      std::vector<Figures> rounds;
      for (int round = 0; round < kRounds; ++round) {
        const double cpu = CpuSeconds();
        const LoopbackRate::Received received =
            loopback_.Receive(connections, settings_.seconds, {static_cast<std::byte*>(pinned_), kPinned});
        const auto bytes = static_cast<double>(received.bytes);
        rounds.push_back({bytes / received.seconds, 0, (CpuSeconds() - cpu) / bytes, 0, 0});
      }
      std::sort(rounds.begin(), rounds.end(), [](auto& a, auto& b) { return a.rate < b.rate; });
      Print("bare loopback TCP into pinned", 1 << 20, connections, rounds[kRounds / 2]);
    }
  }

  uint64_t Offset(size_t i, size_t size) const { return i * size % (settings_.size / size * size); }
  uint64_t RandomOffset(size_t size) { return random_() % (settings_.size / size) * size; }

  // Into host memory, then to the GPU, one after the other: with read(2) where there is a mount.
  Figures NaiveInto(void* host, size_t size, bool random) {
    const int fd = settings_.mounted.empty() ? -1 : ::open(settings_.mounted.c_str(), O_RDONLY | O_CLOEXEC);
    if (!settings_.mounted.empty() && fd < 0) Die(settings_.mounted + ": " + std::strerror(errno));
    if (fd >= 0) ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);  // what the kernel kept of the line before
    auto target = Require(client_.register_buffer(host, size), "registering memory");
    const Figures figures = meter_.Measure(size, 1, [&](size_t i) {
      const uint64_t at = random ? RandomOffset(size) : Offset(i, size);
      if (fd >= 0) {
        if (::pread(fd, host, size, static_cast<off_t>(at)) != static_cast<ssize_t>(size)) Die("short read");
      } else {
        Require(file_.read(at, target.span()), size);
      }
      gpu_.BeginCopyIn(memory_, host, size);
      gpu_.Finish();
      return [] {};
    });
    if (fd >= 0) ::close(fd);
    return figures;
  }

  void Naive() {
    const std::string by = settings_.mounted.empty() ? "libnacre" : "read(2)";
    for (size_t size : Sizes({1 << 20, 16 << 20})) {
      std::vector<std::byte> host(size);
      Print("naive: " + by + " to malloc, copy", size, 1, NaiveInto(host.data(), size, false));
      Print("naive: " + by + " to pinned, copy", size, 1, NaiveInto(pinned_, size, false));
    }
  }

  std::function<std::function<void()>(size_t)> Reads(size_t size, bool random) {
    const size_t slots = memory_size_ / size;
    return [this, size, slots, random](size_t i) -> std::function<void()> {
      const uint64_t at = random ? RandomOffset(size) : Offset(i, size);
      auto future =
          std::make_shared<nacre::Future>(file_.read_async(at, buffer_.span(i % slots * size, size)));
      return [future, size] { Require(future->get(), size); };
    };
  }

  void Large() {
    for (size_t size : Sizes({64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20})) {
      for (size_t depth : {1, 4, 16, 64}) {
        if (size * depth > memory_size_) continue;
        Print("libnacre to GPU", size, depth, meter_.Measure(size, depth, Reads(size, false)));
      }
    }
  }

  // As a loader does: new reads for those that are done, a quarter of the depth at a time.
  void ReadByQueue(const nacre::Queue& queue, size_t size, size_t depth, size_t count) {
    std::vector<nacre::Request> next;
    std::vector<nacre::Completion> done(depth);
    const size_t slots = memory_size_ / size;
    size_t begun = 0, ended = 0;
    while (ended < count) {
      next.clear();
      for (; begun < count && begun - ended < depth; ++begun)
        next.push_back(file_.read_request(RandomOffset(size), buffer_.span(begun % slots * size, size), 0));
      Require(queue.submit(next), "submitting");
      const size_t reaped = Require(queue.reap(std::max<size_t>(depth / 4, 1), done), "reaping");
      for (size_t i = 0; i < reaped; ++i) {
        if (done[i].bytes() != size) Die("a read of a queue: errno " + std::to_string(done[i].error()));
      }
      ended += reaped;
    }
  }

  Figures Queued(size_t size, size_t depth) {
    constexpr size_t kReads = 10'000;
    const nacre::Queue queue = Require(client_.open_queue(depth), "opening a queue");
    return meter_.Measure(size * kReads, 1, [&](size_t) {
      ReadByQueue(queue, size, depth, kReads);
      return [] {};
    });
  }

  void Small() {
    constexpr size_t kExtents = 1000;
    for (size_t size : {4 << 10, 16 << 10, 64 << 10}) {
      Print("random: naive, pinned, copy", size, 1, NaiveInto(pinned_, size, true));
      Print("random: libnacre to GPU", size, 64, meter_.Measure(size, 64, Reads(size, true)));
      for (size_t depth : {64, 256}) Print("random: queue, 10,000 reads", size, depth, Queued(size, depth));
      Print("random: loop of reads", size, 1, meter_.Measure(size, 1, Reads(size, true)));
      const Figures batch = meter_.Measure(size * kExtents, 1, [&](size_t) {
        std::vector<nacre::Extent> extents;
        for (size_t i = 0; i < kExtents; ++i) {
          extents.push_back(file_.extent(RandomOffset(size), buffer_.span(i * size, size)));
        }
        for (const nacre::Result& result : nacre::readv(extents)) Require(result, size);
        return [] {};
      });
      Print("random: readv of 1,000", size, kExtents, batch);
    }
  }

  // Measures the cost of checking: the same reads with and without it, in turns.
  void Unverified() {
    constexpr int kTurns = 3;
    for (const auto& [size, depth] : {std::pair(1 << 20, 64), std::pair(16 << 20, 16)}) {
      if (Sizes({static_cast<size_t>(size)}).empty()) continue;
      std::array<std::vector<double>, 2> rates;  // without, with
      for (int turn = 0; turn < 2 * kTurns; ++turn) {
        const bool verify = turn % 2 == 1;
        buffer_ = {};
        file_ = {};
        Open(verify);
        OpenFile();
        const Figures figures = meter_.Measure(size, depth, Reads(size, false));
        Print(verify ? "libnacre to GPU, verified" : "libnacre to GPU, not verified", size, depth, figures);
        rates[verify].push_back(figures.rate);
      }
      for (auto& each : rates) std::sort(each.begin(), each.end());
      std::printf("verification costs %.1f %% at %s, %d at once (medians of %d turns)\n",
                  100 - 100 * rates[1][kTurns / 2] / rates[0][kTurns / 2], HumanSize(size).c_str(), depth,
                  kTurns);
    }
  }

  std::vector<size_t> Sizes(std::vector<size_t> all) const {
    if (settings_.quick) std::erase_if(all, [](size_t size) { return size > 1 << 20; });
    return all;
  }

  const Settings settings_;
  const LoopbackRate& loopback_;
  const Meter meter_;
  Gpu gpu_;
  const size_t memory_size_;
  void* const memory_;
  void* const pinned_;
  double ceiling_ = 1;
  std::mt19937_64 random_{1};
  nacre::Client client_;
  nacre::File file_;
  nacre::Buffer buffer_;
};

Settings Parse(int argc, char** argv) {
  Settings settings;
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    auto value = [&] { return ++i < argc ? std::string(argv[i]) : (Die(word + " wants a value"), ""); };
    if (word == "--size") {
      const std::string text = value();
      const StatusOr<uint64_t> size = ParseSize(text);
      if (!size.ok() || *size < 2 * kStep) Die("--size " + text + ": write 64M or more");
      settings.size = *size / kStep * kStep;
    } else if (word == "--seconds") {
      settings.seconds = std::atof(value().c_str());
    } else if (word == "--threads") {
      settings.threads = std::strtoull(value().c_str(), nullptr, 10);
    } else if (word == "--mounted") {
      settings.mounted = value();
    } else if (word == "--transport") {
      settings.transport = value();
    } else if (word == "--quick") {
      settings.quick = true;
    } else if (word == "--only-verification") {
      settings.only_verification = true;
    } else if (word == "--only-small") {
      settings.only_small = true;
    } else {
      names.push_back(word);
    }
  }
  if (names.size() != 2) Die("usage: gpu_read_bench MDS PATH [options]; see bench/gpu");
  settings.mds = names[0];
  settings.path = names[1];
  return settings;
}

}  // namespace
}  // namespace nacre::bench

int main(int argc, char** argv) {
  nacre::bench::Settings settings = nacre::bench::Parse(argc, argv);
  const nacre::bench::LoopbackRate loopback;
  nacre::bench::Bench(std::move(settings), loopback).Run();
}
