#include "common/turn.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace nacre {
namespace {

constinit thread_local Turn* current_turn = nullptr;

}  // namespace

Turn::Turn(const Executor& executor, int chains) : context_(&executor.context()), takes_(chains) {
  current_turn = this;
}

// Each may add some of both.
Turn::~Turn() {
  size_t chains = 0, acts = 0;
  while (chains < chains_.size() || acts < acts_.size()) {
    if (chains < chains_.size()) {
      Suspended chain = std::move(chains_[chains++]);
      std::move(chain).Resume();
    } else {
      absl::AnyInvocable<void()> act = std::move(acts_[acts++]);
      act();
    }
  }
  current_turn = nullptr;
}

void Turn::CallAtEnd(const Executor& executor, absl::AnyInvocable<void()> act) {
  if (Turn* const turn = Current(executor); turn != nullptr) {
    turn->acts_.push_back(std::move(act));
  } else {
    asio::post(executor, std::move(act));
  }
}

Turn* Turn::Current(const Executor& executor) {
  Turn* const turn = current_turn;
  return turn != nullptr && &executor.context() == turn->context_ ? turn : nullptr;
}

bool Turn::TakesChain(const Executor& executor, Suspended* chain) {
  Turn* const turn = Current(executor);
  if (turn == nullptr || turn->takes_ == 0) return false;
  --turn->takes_;
  turn->chains_.push_back(std::move(*chain));
  return true;
}

}  // namespace nacre
