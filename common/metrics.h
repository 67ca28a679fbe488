// Counters that a process shows in `nacre status` and logs. Thread-safe; a counter lives as long as the
// process.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

namespace nacre {

class Counter {
 public:
  void Add(int64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  int64_t Get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

// The counter of this name, e.g. "oss.read.bytes"; made at its first use. Keep the reference on hot paths.
Counter& GetCounter(const std::string& name);

// All counters by name.
std::map<std::string, int64_t> CounterValues();

// Resident memory of this process in bytes.
uint64_t ResidentBytes();

}  // namespace nacre
