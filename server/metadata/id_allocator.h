// Hands out numbers that are never used twice: FIDs, object sequences, session ids, runs of the MDS. They are
// taken from the store in ranges which are on stable storage before their first use, so that handing one out
// costs no write and not even a loss of power brings one back. Thread-safe. Errors are the store's.
#pragma once

#include <mutex>

#include "server/metadata/tables.h"

namespace nacre::mds {

// A session gives FIDs of this sequence to what it makes (proto/metadata.proto, ConnectReply). Far from those
// that the MDS gives out; 0: a session with such a number has none.
inline constexpr uint64_t kFirstSessionSequence = uint64_t{1} << 30;
inline uint64_t SessionSequence(SessionId session) {
  return session < kFirstSessionSequence ? kFirstSessionSequence + session : 0;
}

class IdAllocator {
 public:
  explicit IdAllocator(Tables& tables) : tables_(tables) {}

  // Takes the first ranges. Before anything else.
  Task<Status> Start();

  // Where this run of the MDS begins to number its changes of objects: above every earlier run, whatever the
  // clocks say, and above the wall clock's microseconds, by which runs of older versions went.
  uint64_t FirstObjectRequest() const { return (uint64_t{1} << 63) | runs_.next << 36; }

  Task<StatusOr<Fid>> NextFid();
  Task<StatusOr<uint64_t>> NextObjectSequence();
  Task<StatusOr<SessionId>> NextSession();

 private:
  struct Counter {
    CounterId id;
    uint64_t step;  // numbers in a range
    uint64_t next = 0;
    uint64_t end = 0;  // first that is not ours
  };

  bool TryNext(Counter* counter, uint64_t* number);
  bool TryFid(Fid* fid);
  Task<StatusOr<uint64_t>> Next(Counter* counter);
  // Puts a new range behind each of the counters. Call with extending_ held.
  Task<Status> Extend(std::vector<Counter*> counters);

  Tables& tables_;
  AsyncMutex extending_;
  std::mutex mutex_;
  Fid last_fid_{0, ~uint32_t{0}, 0};
  Counter fid_sequences_{CounterId::kFidSequence, 1};
  Counter objects_{CounterId::kObjectSequence, 1 << 20};
  Counter sessions_{CounterId::kSession, 1 << 12};
  Counter runs_{CounterId::kRun, 1};
};

}  // namespace nacre::mds
