// Which mutations of one session have been asked for, and what each was answered, so that each is carried out
// once: a repeat of one that is under way waits for its end, a repeat of one that is done gets its answer,
// and what the client has said it has the answer to is refused (its sender is a late copy).
//
// The client numbers its mutations (sequence, from 1 on) and says with each what it has been answered: all
// below its low water, and now and then more than that (Acknowledge). Answers are kept until then, and no
// more than the limits allow. The owner knows what an answer is, and whether a store has it too:
//
//   Kept   default-constructible and movable; `size_t bytes() const` says what it takes, once it is done
//
// Not thread-safe: its owner has a lock, and sets the waiters that End returns after it has let go of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/task.h"

namespace nacre {

struct ReplyLimits {
  size_t count = 65536;              // under way and answered
  size_t bytes = size_t{256} << 20;  // of answers
};

template <typename Kept>
class ReplyCache {
 public:
  // Hears of each answer that is given up because nobody can ask for it any more.
  using Forgotten = std::function<void(uint64_t sequence, const Kept& kept)>;

  ReplyCache(ReplyLimits limits, Forgotten forgotten) : limits_(limits), forgotten_(std::move(forgotten)) {}

  enum class Turn {
    kCarryOut,   // by the caller, who calls End
    kUnderWay,   // begin again when `over` is set
    kAnswered,   // `kept`
    kStale,      // the client has the answer
    kFull,       // the client must acknowledge some first
    kMalformed,  // no sequence, or a low water above it: believed, that would refuse all that follow
  };
  struct Begun {
    Turn turn;
    Kept* kept = nullptr;  // with kCarryOut and kAnswered; good until the next call
    std::optional<OneShot<Unit>> over = {};
  };

  static bool WellFormed(uint64_t sequence, uint64_t low_water) {
    return sequence != 0 && low_water <= sequence;
  }

  Begun Begin(uint64_t sequence, uint64_t low_water) {
    if (!WellFormed(sequence, low_water)) return {Turn::kMalformed};
    RaiseLowWater(low_water);
    auto it = entries_.find(sequence);
    if (it == entries_.end()) {
      if (IsAcknowledged(sequence)) return {Turn::kStale};
      if (entries_.size() >= limits_.count || bytes_ >= limits_.bytes) return {Turn::kFull};
      return {Turn::kCarryOut, &entries_[sequence].kept};
    }
    Entry& entry = it->second;
    if (entry.done) return {Turn::kAnswered, &entry.kept};
    return {Turn::kUnderWay, nullptr, entry.waiters.emplace_back()};
  }

  // Of one that is under way or answered; else null.
  Kept* Find(uint64_t sequence) {
    auto it = entries_.find(sequence);
    return it == entries_.end() ? nullptr : &it->second.kept;
  }

  // Whether it has been answered, as far as is known here.
  bool IsOver(uint64_t sequence) const {
    auto it = entries_.find(sequence);
    return it == entries_.end() ? IsAcknowledged(sequence) : it->second.done;
  }

  // It is over; the waiters are to be set. Not `done`: it is as if it had never been asked for, and a repeat
  // is carried out.
  [[nodiscard]] std::vector<OneShot<Unit>> End(uint64_t sequence, bool done) {
    auto it = entries_.find(sequence);
    if (it == entries_.end()) return {};
    std::vector<OneShot<Unit>> waiters = std::exchange(it->second.waiters, {});
    if (done) {
      Finish(&it->second);
    } else {
      Forget(it);
    }
    return waiters;
  }

  // At the start: an answer that the store has. False: there is one of this sequence already.
  bool Restore(uint64_t sequence, Kept kept) {
    auto [it, fresh] = entries_.try_emplace(sequence);
    if (!fresh) return false;
    it->second.kept = std::move(kept);
    Finish(&it->second);
    return true;
  }

  // All below is answered, as the client says.
  void RaiseLowWater(uint64_t low_water) {
    low_water_ = std::max(low_water_, low_water);
    ForgetAcknowledged(low_water_);
  }

  // All below `below` is answered but for these ranges (begin to end), as the client says. A message that
  // says less than is known has come late.
  void Acknowledge(uint64_t below, std::map<uint64_t, uint64_t> unanswered) {
    if (below <= answered_below_) return;
    answered_below_ = below;
    unanswered_ = std::move(unanswered);
    ForgetAcknowledged(answered_below_);
  }

  // Gives up all answers. `under_way` is called with what is kept of the others.
  void ForgetAnswers(const std::function<void(Kept*)>& under_way) {
    for (auto it = entries_.begin(); it != entries_.end();) {
      if (!it->second.done) under_way(&it->second.kept);
      it = it->second.done ? Forget(it) : std::next(it);
    }
  }

  // Gives up all answers, without a word. Nothing is under way.
  void Clear() {
    entries_.clear();
    bytes_ = 0;
  }

  uint64_t low_water() const { return low_water_; }
  uint64_t answered_below() const { return std::max(low_water_, answered_below_); }
  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    Kept kept;
    bool done = false;
    size_t bytes = 0;  // once it is done
    std::vector<OneShot<Unit>> waiters;
  };
  using Entries = std::map<uint64_t, Entry>;

  bool IsAcknowledged(uint64_t sequence) const {
    if (sequence < low_water_) return true;
    if (sequence >= answered_below_) return false;
    auto behind = unanswered_.upper_bound(sequence);
    return behind == unanswered_.begin() || std::prev(behind)->second <= sequence;
  }

  void Finish(Entry* entry) {
    bytes_ -= entry->bytes;
    entry->done = true;
    entry->bytes = entry->kept.bytes();
    bytes_ += entry->bytes;
  }

  typename Entries::iterator Forget(typename Entries::iterator it) {
    bytes_ -= it->second.bytes;
    forgotten_(it->first, it->second.kept);
    return entries_.erase(it);
  }

  void ForgetAcknowledged(uint64_t below) {
    for (auto it = entries_.begin(); it != entries_.end() && it->first < below;)
      it = it->second.done && IsAcknowledged(it->first) ? Forget(it) : std::next(it);
  }

  const ReplyLimits limits_;
  const Forgotten forgotten_;
  Entries entries_;
  size_t bytes_ = 0;
  uint64_t low_water_ = 0;
  uint64_t answered_below_ = 0;              // as Acknowledge was told last
  std::map<uint64_t, uint64_t> unanswered_;  // below that
};

}  // namespace nacre
