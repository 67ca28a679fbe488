#include "transport/verbs/windows.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

namespace nacre::verbs {
namespace {

uint64_t End(const RegisteredPiece& piece) { return piece.address + piece.length; }

}  // namespace

WindowPlan PlanWindows(const std::vector<RegisteredPiece>& pieces, size_t most, uint64_t longest) {
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(pieces[a].region, pieces[a].address) < std::pair(pieces[b].region, pieces[b].address);
  });
  // Where one stretch could end and the next begin, with what lies between: the widest gaps are the ones.
  std::vector<std::pair<uint64_t, size_t>> gaps;
  std::vector<bool> begins(pieces.size(), false);
  size_t stretches = 0;
  uint64_t end = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const RegisteredPiece& piece = pieces[order[i]];
    if (i == 0 || piece.region != pieces[order[i - 1]].region) {
      begins[i] = true;
      ++stretches;
      end = 0;
    } else if (piece.address > end) {
      gaps.emplace_back(piece.address - end, i);
    }
    end = std::max(end, End(piece));
  }
  std::sort(gaps.rbegin(), gaps.rend());
  for (size_t i = 0; i < gaps.size() && stretches < most; ++i, ++stretches) begins[gaps[i].second] = true;

  WindowPlan plan;
  plan.stretch_of.resize(pieces.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const RegisteredPiece& piece = pieces[order[i]];
    const bool fits = !plan.stretches.empty() && End(piece) - plan.stretches.back().address <= longest;
    if (begins[i] || !fits) plan.stretches.push_back(piece);
    RegisteredPiece& stretch = plan.stretches.back();
    stretch.length = std::max(End(stretch), End(piece)) - stretch.address;
    plan.stretch_of[order[i]] = plan.stretches.size() - 1;
  }
  return plan;
}

StatusOr<std::unique_ptr<WindowPool>> WindowPool::Make(std::shared_ptr<Domain> domain, size_t count) {
  std::unique_ptr<WindowPool> pool(new WindowPool(std::move(domain)));
  const auto use = pool->domain_->Use();
  for (size_t i = 0; use && i < count; ++i) {
    ibv_mw* window = ibv_alloc_mw(pool->domain_->pd(), IBV_MW_TYPE_2);
    if (window == nullptr) {
      return absl::UnavailableError(absl::StrFormat("RDMA device %s has no memory window left: %s",
                                                    pool->domain_->device(), std::strerror(errno)));
    }
    pool->all_.push_back(window);
  }
  if (!use) return absl::UnavailableError("the RDMA device has failed");
  pool->free_ = pool->all_;
  return pool;
}

Status WindowPool::Free() {
  const auto use = domain_->Use();
  Status status;
  for (ibv_mw* window : std::exchange(all_, {})) {
    const int error = use ? ibv_dealloc_mw(window) : 0;
    if (error != 0) {
      status = absl::UnavailableError(
          absl::StrFormat("a memory window cannot be taken back: %s", std::strerror(error)));
    }
  }
  return status;
}

ibv_mw* WindowPool::Take() {
  ibv_mw* window = free_.back();
  free_.pop_back();
  return window;
}

WindowBinding BindTo(ibv_mw* window, const RegisteredPiece& stretch, unsigned access) {
  return {window, ibv_inc_rkey(window->rkey), stretch.region, stretch.address, stretch.length, access};
}

}  // namespace nacre::verbs
