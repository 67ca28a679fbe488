#include "server/cluster/ost_choice.h"

#include <algorithm>

namespace nacre::cluster {

bool SpaceIsAlike(const std::vector<OstSpace>& osts) {
  if (osts.empty()) return true;
  auto [least, most] = std::minmax_element(
      osts.begin(), osts.end(), [](auto& a, auto& b) { return a.available_bytes < b.available_bytes; });
  double difference = static_cast<double>(most->available_bytes - least->available_bytes);
  return difference <= 0.17 * static_cast<double>(most->available_bytes);
}

std::vector<OstIndex> OstChooser::Choose(std::vector<OstSpace> osts, size_t count) {
  std::lock_guard lock(mutex_);
  std::sort(osts.begin(), osts.end(), [](auto& a, auto& b) { return a.index < b.index; });
  count = std::min(count, osts.size());
  if (SpaceIsAlike(osts)) return RoundRobin(osts, count);
  return Weighted(std::move(osts), count);
}

std::vector<OstIndex> OstChooser::RoundRobin(const std::vector<OstSpace>& osts, size_t count) {
  std::vector<OstIndex> chosen;
  uint64_t first = next_;
  for (size_t i = 0; i < count; ++i) chosen.push_back(osts[(first + i) % osts.size()].index);
  next_ += count;
  return chosen;
}

std::vector<OstIndex> OstChooser::Weighted(std::vector<OstSpace> osts, size_t count) {
  std::vector<OstIndex> chosen;
  while (chosen.size() < count) {
    // In units of a MiB; when nobody has one left, in the order of their numbers.
    uint64_t sum = 0;
    for (const OstSpace& ost : osts) sum += ost.available_bytes >> 20;
    uint64_t at = sum == 0 ? 0 : random_.Below(sum);
    size_t taken = 0;
    while (sum != 0 && at >= osts[taken].available_bytes >> 20) at -= osts[taken++].available_bytes >> 20;
    chosen.push_back(osts[taken].index);
    osts.erase(osts.begin() + static_cast<ptrdiff_t>(taken));
  }
  return chosen;
}

}  // namespace nacre::cluster
