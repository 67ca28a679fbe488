// Counts what a peer's calls do over each path and rail, for PathInfo. The meters of a peer outlive the
// connections that count in them, and the peers of single paths among which it chooses. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/latency_histogram.h"
#include "common/metrics.h"
#include "common/status.h"
#include "transport/transport.h"

namespace nacre {

class PathMeter {
 public:
  PathMeter(std::string path, std::string rail) : path_(std::move(path)), rail_(std::move(rail)) {}

  // A call is over that named so many bytes of memory. Without a time it is counted only.
  void Ended(CallMemory kind, uint64_t bytes, std::optional<Duration> took, const Status& status);
  // A call cannot be sent at once.
  void Waits() { credit_waits_.Add(); }

  // A call goes to another rail instead, unsent.
  void Moved() { moved_.Add(); }

  // Of a rail: how many connections it has now, and what is known of its device.
  void AddConnection(int change) { connections_.fetch_add(change, std::memory_order_relaxed); }
  void SetDevice(int numa_node, std::shared_ptr<const Counter> registrations);

  const std::string& path() const { return path_; }
  const std::string& rail() const { return rail_; }
  PathStats Read() const;

 private:
  struct Direction {
    Counter calls, bytes;
  };

  const std::string path_, rail_;
  Direction reads_, writes_;
  Counter other_calls_, credit_waits_, moved_, lost_;
  LatencyHistogram took_;
  std::atomic<int> connections_ = 0;
  mutable std::mutex mutex_;
  int numa_node_ = -1;
  std::shared_ptr<const Counter> registrations_;
};

// The time that a call takes: of all with much memory, and of one in eight of the others, to which reading
// the clock may be dear.
class CallTimer {
 public:
  CallTimer(Clock& clock, uint64_t bytes);  // it begins
  std::optional<Duration> Took() const;

 private:
  Clock& clock_;
  std::optional<Duration> begin_;
};

class PathMeters {
 public:
  // The one of this path and rail; made when first asked for.
  std::shared_ptr<PathMeter> Of(const std::string& path, const std::string& rail = {});

  // Of all that have carried a call, and of the rails that are there.
  std::vector<PathStats> Read() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<PathMeter>> meters_;
};

}  // namespace nacre
