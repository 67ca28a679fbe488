// How much of the filesystem's history a store has. A position names the newest change by the epoch whose
// primary made it and its number; numbers go on from one epoch to the next. The history says with which
// number each epoch began, and so whether a store with a given position has a part of it or something else.
//
// Values; not thread-safe.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "proto/copies.pb.h"

namespace nacre::replication {

struct Position {
  uint64_t epoch = 0;  // 0: a store without anything
  uint64_t sequence = 0;
  auto operator<=>(const Position&) const = default;

  static Position Of(const proto::StorePosition& message) { return {message.epoch(), message.sequence()}; }
  proto::StorePosition Message() const;

  bool blank() const { return epoch == 0; }
  std::string ToString() const;
};

class History {
 public:
  // Of so many epochs; a store that has seen none of them gets everything anew.
  static constexpr size_t kMaxEpochs = 1000;

  // The first change of a new epoch, which is higher than all others, as its number is.
  void Begin(Position first);

  // Whether a store with this position has a beginning of the history that ends with `last`.
  bool Contains(Position position, Position last) const;

  std::string Encode() const;
  static StatusOr<History> Parse(std::string_view data);  // DATA_LOSS, FAILED_PRECONDITION: a later version

  bool operator==(const History&) const = default;

 private:
  std::vector<Position> begins_;  // ascending
};

}  // namespace nacre::replication
