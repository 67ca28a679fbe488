#include "server/metadata/balance.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "server/metadata/layout.h"

namespace nacre::mds {
namespace {

// Of an OST's space, for those who write to files that lie there already: they have nowhere else to go.
constexpr double kLeftFree = 0.05;

}  // namespace

std::vector<uint64_t> StripeBytes(const Inode& inode) {
  const size_t count = StripeGroups(inode.layout).size();
  std::vector<uint64_t> bytes(count);
  double sizes = 0;
  for (uint32_t i = 0; i < count; ++i) {
    bytes[i] = ObjectSizeFor(inode.layout, i, inode.size);
    sizes += static_cast<double>(bytes[i]);
  }
  const double taken = static_cast<double>(inode.blocks) * 512;
  for (uint64_t& each : bytes) {
    // Of an empty file whose space is set aside nobody knows where that is.
    const double part = sizes > 0 ? static_cast<double>(each) / sizes : 1 / static_cast<double>(count);
    each = static_cast<uint64_t>(part * taken);
  }
  return bytes;
}

Balance::Balance(const std::vector<Ost>& osts, double margin) : margin_(margin) {
  std::map<uint32_t, Level> sums;
  for (const Ost& ost : osts) {
    const double total = static_cast<double>(ost.total), used = static_cast<double>(ost.used);
    levels_[ost.index] = {ost.copies, total, used};
    sums[ost.copies].total += total;
    sums[ost.copies].used += used;
  }
  for (const auto& [copies, sum] : sums) aims_[copies].mean = sum.usage();
  Settle();
}

void Balance::Settle() {
  for (auto& [copies, aim] : aims_) aim.settled = true;
  for (const auto& [index, level] : levels_) {
    Aim& aim = aims_.at(level.copies);
    if (std::abs(level.usage() - aim.mean) > margin_) aim.settled = false;
  }
}

std::vector<Balance::Class> Balance::Classes() const {
  std::map<uint32_t, Class> classes;
  std::map<uint32_t, double> excess;
  for (const auto& [index, level] : levels_) {
    Class& one = classes[level.copies];
    const double usage = level.usage();
    one.copies = level.copies;
    one.mean = aims_.at(level.copies).mean;
    one.fullest = one.osts == 0 ? usage : std::max(one.fullest, usage);
    one.emptiest = one.osts == 0 ? usage : std::min(one.emptiest, usage);
    ++one.osts;
    excess[level.copies] += std::max(0.0, level.used - one.mean * level.total);
  }
  std::vector<Class> all;
  for (auto& [copies, one] : classes) {
    one.excess_bytes = static_cast<uint64_t>(excess[copies]);
    all.push_back(one);
  }
  return all;
}

double Balance::Spread() const {
  double spread = 0;
  for (const Class& one : Classes()) spread = std::max(spread, one.spread());
  return spread;
}

bool Balance::IsOverfull(const Level& level) const {
  const Aim& aim = aims_.at(level.copies);
  return !aim.settled && level.usage() > aim.mean;
}

bool Balance::IsSettled() const {
  return std::ranges::all_of(aims_, [](const auto& entry) { return entry.second.settled; });
}

Balance::Level Balance::At(OstIndex ost, const Changes& changes) const {
  Level level = levels_.at(ost);
  auto change = changes.find(ost);
  if (change != changes.end()) level.used += change->second;
  return level;
}

bool Balance::TakesPart(const Layout& layout) const {
  return std::ranges::all_of(layout.components, [this](const LayoutComponent& component) {
    return std::ranges::all_of(component.groups, [this](OstIndex ost) { return levels_.contains(ost); });
  });
}

// Is asked for every file there is.
bool Balance::Touches(const Layout& layout) const {
  return std::ranges::any_of(layout.components, [this](const LayoutComponent& component) {
    return std::ranges::any_of(component.groups, [this](OstIndex ost) {
      auto level = levels_.find(ost);
      return level != levels_.end() && IsOverfull(level->second);
    });
  });
}

// Finds the one by which the sum of the squares of all distances from the mean falls most.
std::optional<OstIndex> Balance::Target(const Level& from, double bytes, bool may_cross,
                                        const Changes& changes, const std::vector<OstIndex>& taken) const {
  std::optional<OstIndex> best;
  double most = 0;
  const double mean = aims_.at(from.copies).mean;
  for (const auto& [ost, unchanged] : levels_) {
    if (unchanged.copies != from.copies || std::ranges::find(taken, ost) != taken.end()) continue;
    const Level to = At(ost, changes);
    if (to.usage() >= mean || to.used + bytes > to.total * (1 - kLeftFree)) continue;
    const double gap = from.usage() - to.usage();
    const double step = bytes / from.total + bytes / to.total;
    const bool stays_beside =
        (from.used - bytes) / from.total >= mean - margin_ && (to.used + bytes) / to.total <= mean + margin_;
    if (!stays_beside && (!may_cross || std::abs(gap - step) > gap / 2)) continue;
    const double gain = 2 * gap - step;
    const bool better = gain > most || (best && gain == most && ost < *best);
    if (!better) continue;
    best = ost;
    most = gain;
  }
  return best;
}

std::optional<Balance::Plan> Balance::Better(const Inode& inode, bool may_cross) const {
  const bool has_objects = S_ISREG(inode.mode) && !inode.inline_data && inode.blocks > 0;
  if (!has_objects || !Touches(inode.layout) || !TakesPart(inode.layout)) return std::nullopt;
  const std::vector<uint64_t> bytes = StripeBytes(inode);
  Changes changes;
  Plan plan;
  for (const LayoutComponent& component : inode.layout.components) {
    const size_t first = plan.osts.size();
    std::vector<OstIndex> osts = component.groups;
    std::vector<size_t> order(osts.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return bytes[first + i]; });
    for (const size_t i : order) {
      const Level from = At(osts[i], changes);
      const double size = static_cast<double>(bytes[first + i]);
      if (size == 0 || !IsOverfull(from)) continue;
      const std::optional<OstIndex> to = Target(from, size, may_cross, changes, osts);
      if (!to) continue;
      changes[osts[i]] -= size;
      changes[*to] += size;
      osts[i] = *to;
      plan.bytes += bytes[first + i];
    }
    plan.osts.insert(plan.osts.end(), osts.begin(), osts.end());
  }
  if (plan.bytes == 0) return std::nullopt;
  return plan;
}

void Balance::Move(const std::vector<OstIndex>& from, const std::vector<OstIndex>& to,
                   const std::vector<uint64_t>& bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const double size = static_cast<double>(bytes[i]);
    if (auto level = levels_.find(from[i]); level != levels_.end())
      level->second.used = std::max(0.0, level->second.used - size);
    if (auto level = levels_.find(to[i]); level != levels_.end()) level->second.used += size;
  }
  Settle();
}

}  // namespace nacre::mds
