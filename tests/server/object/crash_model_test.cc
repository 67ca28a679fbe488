// Random operations on an OST beside a plain model, with crashes of the process and losses of power at any
// moment.
//
// Each worker changes an object of its own, and its own blocks of an object that all share. A crash must
// leave, for each worker, a state that it has been in: with everything acknowledged after a crash of the
// process, with everything acknowledged before the last sync began after a loss of power; and if something
// has survived, then so has all that was acknowledged before it was asked for.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "common/log.h"
#include "server/object/check.h"
#include "tests/server/object/store_fixture.h"
#include "tests/sim/world.h"

namespace nacre::ost {
namespace {

constexpr int kWorkers = 3;
constexpr uint64_t kBlocks = 2000;
constexpr uint64_t kMaxSize = 200'000;
constexpr uint64_t kRegionBlocks = 24;  // of the shared object; regions share chunks
constexpr ObjectId kShared{1, 0};

// The contents of a worker's own object and of its region.
struct State {
  std::string own;
  std::string region = std::string(kRegionBlocks * kBlockSize, '\0');
  bool operator==(const State&) const = default;
};

// One change: the state behind it, and when it was asked for and acknowledged.
struct Step {
  State state;
  uint64_t issued = 0;
  uint64_t acknowledged = ~uint64_t{0};
};

struct Worker {
  int number;
  std::vector<Step> steps;  // [0]: where this life began
  ObjectId own() const { return {100, static_cast<uint32_t>(number)}; }
  uint64_t region_offset() const { return (10 + static_cast<uint64_t>(number) * kRegionBlocks) * kBlockSize; }
};

class Model {
 public:
  Model(uint64_t seed, StoreOptions options)
      : world_(seed), random_(seed * 77 + 1), options_(options), disk_(kBlocks, DiskOptions()) {
    kv_.SetSyncHook([this] { return Delay(&world_.clock(), random_.Below(3'000'000)); });
    for (int i = 0; i < kWorkers; ++i) workers_.push_back({i, {Step{}}});
  }

  // The first thing that went wrong; empty if nothing did.
  std::string Run(int lives) {
    for (int life = 0; life < lives && failure_.empty(); ++life) {
      Live();
      if (failure_.empty()) Crash(random_.OneIn(2));
    }
    return failure_;
  }

 private:
  MemBlockStoreOptions DiskOptions() {
    MemBlockStoreOptions options;
    options.clock = &world_.clock();
    options.random = &random_;
    return options;
  }

  static Task<Status> Delay(Clock* clock, uint64_t nanoseconds) {
    co_await clock->Sleep(Duration(nanoseconds));
    co_return OkStatus();
  }

  void Fail(std::string what) {
    if (failure_.empty()) failure_ = std::move(what);
  }

  void Open() {
    pool_ = *BufferPool::Create(4 << 20, nullptr);
    process_ = world_.Start(0, "oss");
    store_ = nullptr;
    auto open = [](Model* model, OstDevices devices) -> Task<void> {
      auto store = co_await ObjectStore::Open(devices, model->pool_, 0, &model->random_, model->options_);
      if (!store.ok()) {
        model->Fail(absl::StrCat("open: ", store.status().message()));
        co_return;
      }
      std::shared_ptr<ObjectStore> shared = *std::move(store);
      model->store_ = shared.get();
      model->process_->Own(std::move(shared));
    };
    OstDevices devices{0, &kv_, &disk_, "memory"};
    Spawn(process_->executor(), open(this, devices));
    world_.RunUntil([this] { return store_ != nullptr || !failure_.empty(); }, 100s);
    if (store_ == nullptr) Fail("open never finished");
  }

  // Work until the moment of the crash.
  void Live() {
    Open();
    if (!failure_.empty()) return;
    running_ = kWorkers;
    synced_ = 0;
    for (Worker& worker : workers_) Spawn(process_->executor(), Work(this, &worker));
    Spawn(process_->executor(), SyncNowAndThen(this));
    uint64_t moment = random_.Below(40'000'000);
    world_.RunUntil([this] { return running_ == 0 || !failure_.empty(); }, Duration(moment));
  }

  static Task<void> SyncNowAndThen(Model* model) {
    while (true) {
      co_await model->world_.clock().Sleep(Duration(model->random_.Below(8'000'000)));
      uint64_t begun = ++model->time_;
      Status status = co_await model->store_->Sync();
      if (!status.ok()) model->Fail(absl::StrCat("sync: ", status.message()));
      model->synced_ = begun;
    }
  }

  static Task<void> Work(Model* model, Worker* worker) {
    for (int i = 0; i < 40 && model->failure_.empty(); ++i) co_await model->OneOperation(worker);
    --model->running_;
  }

  Task<void> OneOperation(Worker* worker) {
    uint64_t what = random_.Below(10);
    if (what < 2) co_return co_await CheckOwn(worker);
    Step step{worker->steps.back().state, ++time_};
    std::string& own = step.state.own;
    uint64_t offset = random_.Below(kMaxSize);
    uint64_t length = 1 + random_.Below(random_.OneIn(3) ? kMaxSize : 9000);
    if (random_.OneIn(3)) {
      offset = offset / kBlockSize * kBlockSize;
      length = (length / kBlockSize + 1) * kBlockSize;
    }
    StatusOr<int64_t> result = 0;
    if (what == 5) {
      std::vector<ByteRange> ranges = ScatteredRanges(offset / kBlockSize);
      std::string data;
      for (const ByteRange& range : ranges) {
        std::string piece = RandomBytes(&random_, range.length);
        if (own.size() < range.end()) own.resize(range.end());
        own.replace(range.offset, range.length, piece);
        data += piece;
      }
      worker->steps.push_back(step);
      result = co_await Write(worker->own(), std::move(ranges), std::move(data));
    } else if (what < 6) {
      std::string data = RandomBytes(&random_, length);
      if (own.size() < offset + length) own.resize(offset + length);
      own.replace(offset, length, data);
      worker->steps.push_back(step);
      std::vector<ByteRange> ranges(1, ByteRange{offset, length});
      result = co_await Write(worker->own(), std::move(ranges), std::move(data));
    } else if (what == 6) {
      own.resize(std::min<uint64_t>(own.size(), offset));
      worker->steps.push_back(step);
      result = co_await store_->Truncate(worker->own(), offset);
    } else if (what == 7) {
      for (uint64_t at = offset; at < std::min<uint64_t>(own.size(), offset + length); ++at) own[at] = '\0';
      worker->steps.push_back(step);
      result = co_await store_->Punch(worker->own(), offset, length);
    } else if (what == 8 && random_.OneIn(2)) {
      if (random_.OneIn(3)) {
        own.clear();
        worker->steps.push_back(step);
        result = co_await store_->Destroy(worker->own());
      } else {
        worker->steps.push_back(step);
        result = co_await store_->Preallocate(worker->own(), Fid{1, 2, 3}, offset, length);
      }
    } else {
      uint64_t at = random_.Below(kRegionBlocks * kBlockSize);
      length = std::min(length, kRegionBlocks * kBlockSize - at);
      std::string data = RandomBytes(&random_, length);
      step.state.region.replace(at, length, data);
      worker->steps.push_back(step);
      std::vector<ByteRange> ranges(1, ByteRange{worker->region_offset() + at, length});
      result = co_await Write(kShared, std::move(ranges), std::move(data));
    }
    if (!result.ok()) Fail(absl::StrCat("operation ", what, ": ", result.status().message()));
    worker->steps.back().acknowledged = ++time_;
  }

  // Whole blocks but at the outer ends.
  std::vector<ByteRange> ScatteredRanges(uint64_t block) {
    std::vector<ByteRange> ranges;
    for (uint64_t count = 2 + random_.Below(6); count > 0; --count) {
      uint64_t blocks = 1 + random_.Below(3);
      ranges.push_back({block * kBlockSize, blocks * kBlockSize});
      block += blocks + random_.Below(4);
    }
    uint64_t cut = random_.Below(kBlockSize);
    ranges.front().offset += cut;
    ranges.front().length -= cut;
    ranges.back().length -= random_.Below(kBlockSize);
    return ranges;
  }

  Task<StatusOr<int64_t>> Write(ObjectId id, std::vector<ByteRange> ranges, std::string data) {
    Allotment memory = co_await store_->Admit(1, data.size() / kBlockSize + ranges.size() + 1);
    WriteArgs args{
        id, {ranges.begin(), ranges.end()}, Fid{1, 2, 3}, ScatteredChecksums(ranges, data), nullptr};
    StringSource source(std::move(data));
    co_return co_await store_->Write(std::move(args), &source, &memory);
  }

  Task<void> CheckOwn(Worker* worker) {
    const std::string& own = worker->steps.back().state.own;
    uint64_t offset = random_.Below(kMaxSize), length = 1 + random_.Below(kMaxSize);
    StringSink sink(length);
    Allotment memory = co_await store_->Admit(1, ObjectStore::CountBlocks(offset, length));
    RangeRead read = co_await store_->Read(worker->own(), offset, length, &sink, &memory);
    std::string expected = offset < own.size() ? own.substr(offset, length) : "";
    if (!read.status.ok()) Fail(absl::StrCat("read: ", read.status.message()));
    if (sink.data.substr(0, read.length) != expected) Fail("a read differs from what was written");
  }

  void Crash(bool power) {
    store_->Close();
    world_.Kill(process_);
    if (power) {
      disk_.LosePower(random_);
      kv_.LosePower(random_);
    } else {
      disk_.CrashProcess(random_);
      kv_.CrashProcess();
    }
    Open();
    if (failure_.empty())
      Finish([](Model* model, bool power) { return model->CheckAfterCrash(power); }, power);
    store_->Close();
    world_.Kill(process_);
    disk_.CrashProcess(random_);
    kv_.CrashProcess();
  }

  template <typename F>
  void Finish(F start, bool power) {
    bool done = false;
    auto run = [](Model* model, F start, bool power, bool* done) -> Task<void> {
      co_await start(model, power);
      *done = true;
    };
    Spawn(process_->executor(), run(this, start, power, &done));
    if (!world_.RunUntil([&done] { return done; }, 1000s)) Fail("the check after the crash never finished");
  }

  Task<void> CheckAfterCrash(bool power) {
    std::vector<std::pair<size_t, size_t>> survived;  // the first and the last step that it may be
    for (Worker& worker : workers_) {
      State found;
      found.own = co_await ReadAll(worker.own(), 0, 2 * kMaxSize + kBlockSize);
      found.region = co_await ReadAll(kShared, worker.region_offset(), kRegionBlocks * kBlockSize);
      found.region.resize(kRegionBlocks * kBlockSize, '\0');
      size_t first = worker.steps.size(), last = 0;
      for (size_t i = 0; i < worker.steps.size(); ++i) {
        if (worker.steps[i].state != found) continue;
        first = std::min(first, i);
        last = i;
      }
      if (first == worker.steps.size()) co_return Fail(Describe(worker, found));
      for (size_t i = last + 1; i < worker.steps.size(); ++i) {
        const Step& step = worker.steps[i];
        if (power && step.acknowledged < synced_) co_return Fail("a synced change is gone");
        if (!power && step.acknowledged != ~uint64_t{0})
          co_return Fail("an acknowledged change is gone after a process crash");
      }
      survived.push_back({first, last});
    }
    CheckPrefix(survived);
    for (Worker& worker : workers_) {
      Step start;
      start.state = worker.steps[survived[static_cast<size_t>(worker.number)].second].state;
      worker.steps.assign(1, std::move(start));
    }
    co_await CheckStore();
  }

  static std::string Describe(const Worker& worker, const State& found) {
    const State& last = worker.steps.back().state;
    auto differs = [](const std::string& a, const std::string& b) {
      return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
    };
    return absl::StrCat("worker ", worker.number, " was never in the state found: own ", found.own.size(),
                        " bytes (last ", last.own.size(), ", differs at ", differs(found.own, last.own),
                        "), region differs at ", differs(found.region, last.region), " after ",
                        worker.steps.size(), " steps");
  }

  void CheckPrefix(const std::vector<std::pair<size_t, size_t>>& survived) {
    for (const Worker& worker : workers_) {
      const Step& newest = worker.steps[survived[static_cast<size_t>(worker.number)].first];
      for (const Worker& other : workers_) {
        for (size_t i = survived[static_cast<size_t>(other.number)].second + 1; i < other.steps.size(); ++i) {
          if (other.steps[i].acknowledged < newest.issued)
            Fail("what survived is not a prefix of what happened");
        }
      }
    }
  }

  Task<std::string> ReadAll(ObjectId id, uint64_t offset, uint64_t length) {
    StringSink sink(length);
    Allotment memory = co_await store_->Admit(1, ObjectStore::CountBlocks(offset, length));
    RangeRead read = co_await store_->Read(id, offset, length, &sink, &memory);
    if (!read.status.ok()) Fail(absl::StrCat("read after the crash: ", read.status.message()));
    co_return sink.data.substr(0, read.length);
  }

  // Records, checksums, and no block lost.
  Task<void> CheckStore() {
    (co_await store_->Sync()).IgnoreError();
    (co_await store_->Sync()).IgnoreError();
    OstDevices devices{0, &kv_, &disk_, "memory"};
    CheckOptions options;
    options.verify_data = true;
    StatusOr<CheckReport> report = co_await CheckOst(devices, std::move(options));
    if (!report.ok()) co_return Fail(absl::StrCat("check: ", report.status().message()));
    if (!report->problems.empty()) Fail(absl::StrCat("check: ", report->problems[0].text));
    if (store_->space().allocator().free_blocks() != kBlocks - report->blocks) {
      Fail(absl::StrCat(store_->space().allocator().free_blocks(), " blocks free, ", report->blocks,
                        " in use of ", kBlocks));
    }
  }

  sim::World world_;
  SeededRandom random_;
  const StoreOptions options_;
  MemKv kv_;
  MemBlockStore disk_;
  std::shared_ptr<BufferPool> pool_;
  sim::Process* process_ = nullptr;
  ObjectStore* store_ = nullptr;
  std::vector<Worker> workers_;
  int running_ = 0;
  uint64_t time_ = 0;
  uint64_t synced_ = 0;  // when the last finished sync began
  std::string failure_;
};

uint64_t Seeds(uint64_t usual) {
  const char* wanted = std::getenv("NACRE_SEEDS");
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : usual;
}

TEST(CrashModel, WhatACrashLeavesIsAPrefix) {
  SetLogLevel(LogLevel::kError);
  for (uint64_t seed = 1; seed <= Seeds(150); ++seed) {
    ASSERT_EQ(Model(seed, {}).Run(3), "") << "seed " << seed;
  }
}

// Every planted bug must be found within a few seeds.
void ExpectFound(StoreOptions options) {
  SetLogLevel(LogLevel::kError);
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::string found = Model(seed, options).Run(3);
    if (found.empty()) continue;
    std::cout << "seed " << seed << ": " << found << "\n";
    return;
  }
  FAIL() << "200 seeds have not found the planted bug";
}

TEST(CrashModel, FindsACommitBeforeItsData) {
  StoreOptions options;
  options.plant_commit_before_data = true;
  ExpectFound(options);
}

TEST(CrashModel, FindsAnEarlySync) {
  StoreOptions options;
  options.plant_early_sync = true;
  ExpectFound(options);
}

}  // namespace
}  // namespace nacre::ost
