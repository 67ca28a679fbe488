// Keeps what moved files take of OSTs, as long as the OSTs' own figures do not say so: what was copied to an
// OST shows with its next heartbeat, and what was left at one goes some seconds later, when nobody reads
// there any more (left_objects.h). A mover that goes by the OSTs' figures alone would move far too much.
//
// It is in memory, and bounded by its user, who waits while it IsFull. Belongs to one coroutine.
#pragma once

#include <deque>

#include "server/metadata/balance.h"
#include "server/metadata/mds.h"

namespace nacre::mds {

class MovedSpace {
 public:
  // Notes that a file's stripes, of so many bytes each, lie at `to` now; at `from` they were objects of this
  // sequence.
  void Add(Duration now, uint64_t sequence, std::vector<OstIndex> from, std::vector<OstIndex> to,
           std::vector<uint64_t> bytes);

  // Drops what the OSTs' figures have by now.
  void Settle(Mds& mds);
  bool empty() const { return moves_.empty(); }
  bool IsFull() const;

  // Returns the OSTs that are up and take new files, filled as they are going to be when all that was moved
  // has gone.
  std::vector<Balance::Ost> Expected(const Mds& mds) const;

 private:
  struct Moved {
    uint64_t sequence = 0;
    std::vector<OstIndex> from, to;
    std::vector<uint64_t> bytes;
    Duration copied{0};
    std::optional<Duration> freed;  // since when the old objects are known to be gone
  };

  std::deque<Moved> moves_;
  Duration now_{0};
};

// Returns the same by the OSTs' own figures alone.
std::vector<Balance::Ost> PresentSpace(const Mds& mds);

}  // namespace nacre::mds
