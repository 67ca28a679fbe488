#include "server/replication/position.h"

#include <absl/strings/str_format.h>

#include <algorithm>

#include "server/replication/stored.h"

namespace nacre::replication {

std::string Position::ToString() const {
  return blank() ? std::string("nothing") : absl::StrFormat("%d of epoch %d", sequence, epoch);
}

proto::StorePosition Position::Message() const {
  proto::StorePosition out;
  out.set_epoch(epoch);
  out.set_sequence(sequence);
  return out;
}

void History::Begin(Position first) {
  begins_.push_back(first);
  if (begins_.size() > kMaxEpochs) begins_.erase(begins_.begin());
}

bool History::Contains(Position position, Position last) const {
  for (size_t i = 0; i < begins_.size(); ++i) {
    if (begins_[i].epoch != position.epoch) continue;
    const uint64_t end = i + 1 < begins_.size() ? begins_[i + 1].sequence - 1 : last.sequence;
    return position.sequence >= begins_[i].sequence && position.sequence <= end;
  }
  return false;
}

std::string History::Encode() const {
  proto::StoreHistory out;
  out.set_version(kStoredVersion);
  for (Position first : begins_) *out.add_begins() = first.Message();
  return out.SerializeAsString();
}

StatusOr<History> History::Parse(std::string_view data) {
  ASSIGN_OR_RETURN(auto stored, ParseStored<proto::StoreHistory>(data, "history of the MDT's copies"));
  History history;
  for (const proto::StorePosition& first : stored.begins()) history.begins_.push_back(Position::Of(first));
  return history;
}

}  // namespace nacre::replication
