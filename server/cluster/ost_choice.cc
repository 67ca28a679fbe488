#include "server/cluster/ost_choice.h"

#include <algorithm>
#include <set>

namespace nacre::cluster {

bool SpaceIsAlike(const std::vector<OstSpace>& osts) {
  if (osts.empty()) return true;
  auto [least, most] = std::minmax_element(
      osts.begin(), osts.end(), [](auto& a, auto& b) { return a.available_bytes < b.available_bytes; });
  double difference = static_cast<double>(most->available_bytes - least->available_bytes);
  return difference <= 0.17 * static_cast<double>(most->available_bytes);
}

UsableOsts::UsableOsts(std::vector<OstSpace> osts, std::vector<OstSpace> all)
    : osts_(std::move(osts)), alike_(SpaceIsAlike(osts_)) {
  std::sort(osts_.begin(), osts_.end(), [](auto& a, auto& b) { return a.index < b.index; });
  ends_.reserve(osts_.size());
  for (const OstSpace& ost : osts_)
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + (ost.available_bytes >> 20));
  SortByCopies(all);
}

void UsableOsts::SortByCopies(const std::vector<OstSpace>& all) {
  std::map<uint32_t, std::vector<OstSpace>> sorted;
  for (const OstSpace& ost : osts_) sorted[ost.copies].push_back(ost);
  if (sorted.empty()) return;
  least_copies_ = sorted.begin()->first;
  std::map<uint32_t, std::vector<OstSpace>> down;
  for (const OstSpace& ost : all) {
    if (!sorted.contains(ost.copies)) down[ost.copies].push_back(ost);
  }
  if (sorted.size() == 1) {
    by_copies_[least_copies_] = nullptr;
    sorted.clear();
  }
  sorted.merge(down);
  for (auto& [copies, osts] : sorted) by_copies_[copies] = std::make_unique<UsableOsts>(std::move(osts));
}

const UsableOsts* UsableOsts::WithCopies(uint32_t copies) const {
  auto it = by_copies_.find(copies == 0 ? least_copies_ : copies);
  if (it == by_copies_.end()) return nullptr;
  return it->second == nullptr ? this : it->second.get();
}

std::vector<uint32_t> UsableOsts::Copies() const {
  std::vector<uint32_t> numbers;
  for (const auto& [copies, osts] : by_copies_) numbers.push_back(copies);
  return numbers;
}

bool UsableOsts::Includes(OstIndex index) const {
  if (std::ranges::any_of(osts_, [index](const OstSpace& ost) { return ost.index == index; })) return true;
  return std::ranges::any_of(by_copies_, [index](const auto& entry) {
    return entry.second != nullptr && entry.second->Includes(index);
  });
}

size_t UsableOsts::At(uint64_t mebibyte) const {
  return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), mebibyte) - ends_.begin());
}

std::vector<OstIndex> OstChooser::Choose(const UsableOsts& osts, size_t count) {
  std::lock_guard lock(mutex_);
  count = std::min(count, osts.size());
  return osts.alike() ? RoundRobin(osts, count) : Weighted(osts, count);
}

std::vector<OstIndex> OstChooser::RoundRobin(const UsableOsts& osts, size_t count) {
  std::vector<OstIndex> chosen;
  uint64_t first = next_;
  for (size_t i = 0; i < count; ++i) chosen.push_back(osts[(first + i) % osts.size()].index);
  next_ += count;
  return chosen;
}

std::vector<OstIndex> OstChooser::Weighted(const UsableOsts& osts, size_t count) {
  std::vector<OstIndex> chosen;
  std::set<size_t> taken;
  auto take = [&](size_t i) {
    taken.insert(i);
    chosen.push_back(osts[i].index);
  };
  // In units of a MiB, past those of the OSTs that are taken.
  for (uint64_t left = osts.total(); left > 0 && chosen.size() < count;) {
    uint64_t at = random_.Below(left);
    for (size_t i : taken) {
      if (at >= osts.BeginOf(i)) at += osts.EndOf(i) - osts.BeginOf(i);
    }
    const size_t i = osts.At(at);
    left -= osts.EndOf(i) - osts.BeginOf(i);
    take(i);
  }
  // Nobody has a MiB left: in the order of their numbers.
  for (size_t i = 0; chosen.size() < count; ++i) {
    if (!taken.contains(i)) take(i);
  }
  return chosen;
}

}  // namespace nacre::cluster
