#include "common/metrics.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <mutex>

namespace nacre {
namespace {

std::mutex g_metrics_mutex;

std::map<std::string, std::unique_ptr<Counter>>& Registry() {
  static auto* registry = new std::map<std::string, std::unique_ptr<Counter>>;
  return *registry;
}

}  // namespace

Counter& GetCounter(const std::string& name) {
  std::lock_guard lock(g_metrics_mutex);
  std::unique_ptr<Counter>& counter = Registry()[name];
  if (!counter) counter = std::make_unique<Counter>();
  return *counter;
}

std::map<std::string, int64_t> CounterValues() {
  std::lock_guard lock(g_metrics_mutex);
  std::map<std::string, int64_t> values;
  for (const auto& [name, counter] : Registry()) values[name] = counter->Get();
  return values;
}

uint64_t ResidentBytes() {
  unsigned long total = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  if (std::fscanf(file, "%lu %lu", &total, &resident) != 2) resident = 0;
  std::fclose(file);
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace nacre
