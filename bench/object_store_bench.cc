// The cost of an OST, without network and client: operations per second, latency, CPU time and disk bytes per
// user byte of an ObjectStore on a real directory.
//
//   object_store_bench DIRECTORY [MEBIBYTES [SECONDS]]
//
// Lays out an object of so many MiB (default 1024), then runs each workload for so long (default 5). The
// directory must be on a disk: /proc/self/io counts what this process has caused it to write and read,
// RocksDB's log and compactions included.
#include <stdlib.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "common/clock.h"
#include "common/crc32c.h"
#include "common/log.h"
#include "common/random.h"
#include "server/kv/rocks_kv.h"
#include "server/object/object_store.h"
#include "server/object/uring_block_store.h"

namespace nacre::ost {
namespace {

constexpr ObjectId kObject{1, 0};

class BufferSource : public DataSource {
 public:
  explicit BufferSource(const std::string* data) : data_(data) {}
  Task<Status> Fetch(uint64_t offset, std::span<const std::span<std::byte>> buffers) override {
    for (auto buffer : buffers) {
      std::memcpy(buffer.data(), data_->data() + offset, buffer.size());
      offset += buffer.size();
    }
    co_return OkStatus();
  }

 private:
  const std::string* data_;
};

class BufferSink : public DataSink {
 public:
  explicit BufferSink(std::string* data) : data_(data) {}
  Task<Status> Deliver(uint64_t offset, std::span<const std::span<const std::byte>> buffers,
                       std::shared_ptr<void>) override {
    for (auto buffer : buffers) {
      std::memcpy(data_->data() + offset, buffer.data(), buffer.size());
      offset += buffer.size();
    }
    co_return OkStatus();
  }

 private:
  std::string* data_;
};

// A session that waits for each answer before it asks again: one slot.
class OneAfterTheOther : public Originator {
 public:
  explicit OneAfterTheOther(uint32_t slot) { answering_.answer.slot = {1, slot}; }
  void Next() {
    AnswerRecord& record = answering_.answer.record;
    record = {record.sequence + 1, record.sequence + 1, 0};
  }
  SessionId session() const override { return 1; }
  Status BeginCommit() override { return OkStatus(); }
  void EndCommit() override {}
  Answering* answering() override { return &answering_; }

 private:
  Answering answering_;
};

struct Usage {
  uint64_t read_bytes = 0;
  uint64_t write_bytes = 0;
  double cpu_seconds = 0;
};

Usage CurrentUsage() {
  Usage usage;
  std::ifstream io("/proc/self/io");
  for (std::string key; io >> key;) {
    uint64_t value;
    io >> value;
    if (key == "read_bytes:") usage.read_bytes = value;
    if (key == "write_bytes:") usage.write_bytes = value;
  }
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  usage.cpu_seconds = seconds(used.ru_utime) + seconds(used.ru_stime);
  return usage;
}

struct Workload {
  const char* name;
  bool write;
  bool sequential;
  uint64_t size;
  int depth;
};

class Bench {
 public:
  Bench(const std::string& directory, uint64_t object_bytes, Duration time)
      : directory_(directory),
        object_bytes_(object_bytes),
        time_(time),
        work_(asio::make_work_guard(context_)) {
    for (int i = 0; i < 2; ++i) threads_.emplace_back([this] { context_.run(); });
  }
  ~Bench() {
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
  }

  Status Run() {
    ASSIGN_OR_RETURN(kv_, OpenRocksKv(directory_ + "/db", {}));
    UringBlockStoreOptions options;
    options.size_bytes = 3 * object_bytes_;
    ASSIGN_OR_RETURN(blocks_, OpenUringBlockStore(directory_, options));
    ASSIGN_OR_RETURN(pool_, BufferPool::Create(64 << 20, nullptr));
    OstDevices devices{0, kv_.get(), blocks_.get(), directory_};
    ASSIGN_OR_RETURN(store_, Wait(ObjectStore::Open(devices, pool_, 0, &SystemRandom(), {})));
    Spawn(context_.get_executor(), SyncEverySecond(this));
    std::printf("%-28s %10s %9s %9s %9s %9s %10s %10s\n", "workload", "ops/s", "MiB/s", "mean us", "p99 us",
                "cpu us/op", "disk wr/B", "disk rd/B");
    constexpr Workload kWorkloads[] = {{"write 1 MiB sequential x4", true, true, 1 << 20, 4},
                                       {"read 1 MiB x1", false, false, 1 << 20, 1},
                                       {"read 1 MiB x4", false, false, 1 << 20, 4},
                                       {"read 4 KiB x1", false, false, 4096, 1},
                                       {"read 4 KiB x16", false, false, 4096, 16},
                                       {"overwrite 4 KiB x1", true, false, 4096, 1},
                                       {"overwrite 4 KiB x16", true, false, 4096, 16},
                                       {"overwrite 1 MiB x4", true, false, 1 << 20, 4},
                                       {"read 1 MiB fragmented x4", false, false, 1 << 20, 4}};
    for (const Workload& workload : kWorkloads) RETURN_IF_ERROR(Measure(workload));
    stopping_ = true;
    return Wait(Settle(this));
  }

 private:
  template <typename T>
  T Wait(Task<T> task) {
    std::promise<T> promise;
    Spawn(context_.get_executor(), std::move(task),
          [&promise](T result) { promise.set_value(std::move(result)); });
    return promise.get_future().get();
  }

  static Task<void> SyncEverySecond(Bench* bench) {
    while (!bench->stopping_) {
      co_await RealClock().Sleep(1s);
      if (!bench->stopping_) (co_await bench->store_->Maintain()).IgnoreError();
    }
  }

  static Task<Status> Settle(Bench* bench) {
    Status status = co_await bench->store_->Maintain();
    status.Update(co_await bench->store_->Maintain());
    co_return status;
  }

  struct Result {
    Status status;
    std::vector<float> micros;
  };

  static Task<Result> Worker(Bench* bench, Workload workload, uint64_t seed) {
    Result result;
    SeededRandom random(seed);
    std::string data(workload.size, '\0');
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(random.Next());
    std::vector<uint32_t> crc(CrcCount(0, data.size()));
    Crc32cBlocks(0, {reinterpret_cast<const std::byte*>(data.data()), data.size()}, crc.data());
    BufferSource source(&data);
    BufferSink sink(&data);
    OneAfterTheOther session(static_cast<uint32_t>(seed));
    uint64_t places = bench->object_bytes_ / workload.size;
    while (result.status.ok()) {
      Duration begin = RealClock().Now();
      uint64_t place = workload.sequential ? bench->next_++ : random.Below(places);
      if (workload.sequential ? place >= places : begin >= bench->deadline_) break;
      Allotment memory =
          co_await bench->store_->Admit(1, ObjectStore::CountBlocks(place * workload.size, workload.size));
      if (workload.write) {
        WriteArgs args{kObject, {{place * workload.size, workload.size}}, Fid{1, 1, 0}, crc, nullptr};
        session.Next();
        args.by = &session;
        args.ends_request = true;
        result.status = (co_await bench->store_->Write(std::move(args), &source, &memory)).status();
      } else {
        result.status =
            (co_await bench->store_->Read(kObject, place * workload.size, workload.size, &sink, &memory))
                .status;
      }
      Duration end = RealClock().Now();
      result.micros.push_back(static_cast<float>((end - begin).count()) / 1e3F);
    }
    co_return result;
  }

  Status Measure(const Workload& workload) {
    RETURN_IF_ERROR(Wait(Settle(this)));
    Usage before = CurrentUsage();
    Duration begin = RealClock().Now();
    deadline_ = begin + time_;
    next_ = 0;
    std::vector<Task<Result>> workers;
    for (int i = 0; i < workload.depth; ++i)
      workers.push_back(Worker(this, workload, static_cast<uint64_t>(i) + 1));
    std::vector<float> micros;
    for (Result& result : Wait(WhenAll(std::move(workers)))) {
      RETURN_IF_ERROR(result.status);
      micros.insert(micros.end(), result.micros.begin(), result.micros.end());
    }
    double seconds = static_cast<double>((RealClock().Now() - begin).count()) / 1e9;
    if (workload.write) RETURN_IF_ERROR(Wait(Settle(this)));
    Usage after = CurrentUsage();
    std::sort(micros.begin(), micros.end());
    double sum = 0;
    for (float one : micros) sum += one;
    auto count = static_cast<double>(micros.size());
    double bytes = count * static_cast<double>(workload.size);
    std::printf("%-28s %10.0f %9.1f %9.1f %9.1f %9.1f %10.3f %10.3f\n", workload.name, count / seconds,
                bytes / seconds / (1 << 20), sum / count,
                static_cast<double>(micros[micros.size() * 99 / 100]),
                (after.cpu_seconds - before.cpu_seconds) * 1e6 / count,
                static_cast<double>(after.write_bytes - before.write_bytes) / bytes,
                static_cast<double>(after.read_bytes - before.read_bytes) / bytes);
    return OkStatus();
  }

  const std::string directory_;
  const uint64_t object_bytes_;
  const Duration time_;
  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::vector<std::thread> threads_;
  std::unique_ptr<KvStore> kv_;
  std::unique_ptr<BlockStore> blocks_;
  std::shared_ptr<BufferPool> pool_;
  std::unique_ptr<ObjectStore> store_;
  std::atomic<uint64_t> next_{0};
  std::atomic<bool> stopping_{false};
  Duration deadline_{0};
};

int Main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: object_store_bench DIRECTORY [MEBIBYTES [SECONDS]]\n");
    return 2;
  }
  uint64_t mebibytes = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1024;
  uint64_t seconds = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 5;
  std::string name = std::string(argv[1]) + "/object_store_bench.XXXXXX";
  if (mebibytes < 64 || seconds == 0 || mkdtemp(name.data()) == nullptr) {
    std::fprintf(stderr,
                 "object_store_bench: needs a writable directory, at least 64 MiB and one second: %s\n",
                 name.c_str());
    return 2;
  }
  SetLogLevel(LogLevel::kWarning);
  Status status;
  {
    Bench bench(name, mebibytes << 20, std::chrono::seconds(seconds));
    status = bench.Run();
  }
  std::filesystem::remove_all(name);
  if (status.ok()) return 0;
  std::fprintf(stderr, "object_store_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace nacre::ost

int main(int argc, char** argv) { return nacre::ost::Main(argc, argv); }
