#include "common/burst.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <memory>
#include <utility>

namespace nacre {
namespace {

constexpr size_t kMostThreads = 4;  // that share the chains of one burst

constinit thread_local Burst* current_burst = nullptr;

struct Shared {
  explicit Shared(std::vector<Suspended> chains) : chains(std::move(chains)) {}

  void Resume() {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < chains.size();)
      std::move(chains[i]).Resume();
  }

  std::vector<Suspended> chains;
  std::atomic<size_t> next = 0;
};

}  // namespace

Burst::Burst(const Executor& executor) : executor_(executor), outer_(std::exchange(current_burst, this)) {}

Burst::~Burst() {
  current_burst = nullptr;
  if (chains_.size() == 1) {
    std::move(chains_.front()).Post();
  } else if (!chains_.empty()) {
    const size_t threads = std::min(chains_.size(), kMostThreads);
    const auto shared = std::make_shared<Shared>(std::move(chains_));
    for (size_t i = 0; i < threads; ++i) asio::post(executor_, [shared] { shared->Resume(); });
  }
  current_burst = outer_;
}

bool Burst::TakesChain(const Executor& executor, Suspended* chain) {
  Burst* const burst = current_burst;
  if (burst == nullptr || &executor.context() != &burst->executor_.context()) return false;
  burst->chains_.push_back(std::move(*chain));
  return true;
}

}  // namespace nacre
