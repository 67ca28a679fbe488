#include "transport/path_meter.h"

#include <algorithm>
#include <utility>

namespace nacre {
namespace {

constexpr uint64_t kSmallMemory = 64 << 10;
constexpr uint32_t kTimedOneIn = 8;

}  // namespace

void PathMeter::Ended(CallMemory kind, uint64_t bytes, std::optional<Duration> took, const Status& status) {
  if (!status.ok()) return lost_.Add();
  if (took) took_.Add(*took);
  if (kind == CallMemory::kNone) return other_calls_.Add();
  Direction& direction = kind == CallMemory::kPutTarget ? reads_ : writes_;
  direction.calls.Add();
  direction.bytes.Add(static_cast<int64_t>(bytes));
}

CallTimer::CallTimer(Clock& clock, uint64_t bytes) : clock_(clock) {
  thread_local uint32_t calls = 0;
  if (bytes > kSmallMemory || calls++ % kTimedOneIn == 0) begin_ = clock.Now();
}

std::optional<Duration> CallTimer::Took() const {
  if (!begin_) return std::nullopt;
  return clock_.Now() - *begin_;
}

void PathMeter::SetDevice(int numa_node, std::shared_ptr<const Counter> registrations) {
  std::lock_guard lock(mutex_);
  numa_node_ = numa_node;
  registrations_ = std::move(registrations);
}

PathStats PathMeter::Read() const {
  auto value = [](const Counter& counter) { return static_cast<uint64_t>(counter.Get()); };
  PathStats stats;
  stats.path = path_;
  stats.rail = rail_;
  stats.down = !rail_.empty() && connections_.load(std::memory_order_relaxed) == 0;
  stats.reads = value(reads_.calls);
  stats.read_bytes = value(reads_.bytes);
  stats.writes = value(writes_.calls);
  stats.written_bytes = value(writes_.bytes);
  stats.other_calls = value(other_calls_);
  stats.p50_micros = took_.Micros(0.5);
  stats.p99_micros = took_.Micros(0.99);
  stats.credit_waits = value(credit_waits_);
  stats.lost = value(lost_);
  stats.moved = value(moved_);
  std::lock_guard lock(mutex_);
  stats.numa_node = numa_node_;
  if (registrations_ != nullptr) stats.registrations = value(*registrations_);
  return stats;
}

std::shared_ptr<PathMeter> PathMeters::Of(const std::string& path, const std::string& rail) {
  std::lock_guard lock(mutex_);
  auto found = std::find_if(meters_.begin(), meters_.end(), [&](const auto& meter) {
    return meter->path() == path && meter->rail() == rail;
  });
  if (found != meters_.end()) return *found;
  meters_.push_back(std::make_shared<PathMeter>(path, rail));
  return meters_.back();
}

std::vector<PathStats> PathMeters::Read() const {
  std::vector<PathStats> all;
  std::lock_guard lock(mutex_);
  for (const auto& meter : meters_) {
    PathStats stats = meter->Read();
    const bool used = stats.reads + stats.writes + stats.other_calls + stats.lost > 0;
    if (used || (!stats.rail.empty() && !stats.down)) all.push_back(std::move(stats));
  }
  return all;
}

}  // namespace nacre
