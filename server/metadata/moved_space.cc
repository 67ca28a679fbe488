#include "server/metadata/moved_space.h"

#include <algorithm>
#include <map>

#include "server/metadata/left_objects.h"

namespace nacre::mds {
namespace {

constexpr size_t kMostMoves = 65536;  // some MiB
constexpr int kHeartbeatsToShow = 3;  // then the figures have what has changed before

bool AreGone(Mds& mds, uint64_t sequence, const std::vector<OstIndex>& osts) {
  if (IsLeft(mds, sequence)) return false;
  return std::ranges::all_of(osts, [&](OstIndex ost) {
    return absl::IsNotFound(mds.tables->Get(DestroyAtKeyOf(ost, sequence)).status());
  });
}

}  // namespace

void MovedSpace::Add(Duration now, uint64_t sequence, std::vector<OstIndex> from, std::vector<OstIndex> to,
                     std::vector<uint64_t> bytes) {
  moves_.push_back({sequence, std::move(from), std::move(to), std::move(bytes), now, std::nullopt});
  now_ = now;
}

bool MovedSpace::IsFull() const { return moves_.size() >= kMostMoves; }

void MovedSpace::Settle(Mds& mds) {
  now_ = mds.env.clock.Now();
  const Duration shows = kHeartbeatsToShow * mds.options.heartbeat;
  std::erase_if(moves_, [&](Moved& move) {
    const bool may_be_gone = now_ - move.copied >= mds.options.lease;
    if (!move.freed && may_be_gone && AreGone(mds, move.sequence, move.from)) move.freed = now_;
    return move.freed && now_ - *move.freed >= shows;
  });
}

std::vector<Balance::Ost> MovedSpace::Expected(const Mds& mds) const {
  const Duration shows = kHeartbeatsToShow * mds.options.heartbeat;
  std::map<OstIndex, uint64_t> more, less;
  for (const Moved& move : moves_) {
    for (size_t i = 0; i < move.bytes.size(); ++i) {
      if (now_ - move.copied < shows) more[move.to[i]] += move.bytes[i];
      less[move.from[i]] += move.bytes[i];
    }
  }
  std::vector<Balance::Ost> osts = PresentSpace(mds);
  for (Balance::Ost& ost : osts) {
    ost.used += more[ost.index];
    ost.used -= std::min(ost.used, less[ost.index]);
  }
  return osts;
}

std::vector<Balance::Ost> PresentSpace(const Mds& mds) {
  const std::shared_ptr<const cluster::UsableOsts> usable = mds.osts.Usable();
  std::vector<Balance::Ost> osts;
  for (const uint32_t copies : usable->Copies()) {
    const cluster::UsableOsts& some = *usable->WithCopies(copies);
    for (size_t i = 0; i < some.size(); ++i) {
      const cluster::OstSpace& space = some[i];
      if (space.total_bytes == 0 || !mds.osts.IsUp(space.index)) continue;
      osts.push_back({space.index, mds.osts.CopiesOf(space.index), space.total_bytes,
                      space.total_bytes - std::min(space.total_bytes, space.available_bytes)});
    }
  }
  return osts;
}

}  // namespace nacre::mds
