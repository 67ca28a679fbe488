// Hands out numbers that are never used twice: FIDs, object sequences, session ids, runs of the MDS. They are
// taken from the store in ranges which are on stable storage before their first use, so that handing one out
// costs no write and not even a loss of power brings one back. Thread-safe. Errors are the store's.
#pragma once

#include <mutex>

#include "server/metadata/tables.h"

namespace nacre::mds {

// A session gives FIDs of this sequence to what it makes (proto/metadata.proto, ConnectReply). Far from those
// that the MDS gives out: it numbers its own below the first range, and after a restore between the two. 0: a
// session with such a number has none.
inline constexpr uint64_t kFirstSessionSequence = uint64_t{1} << 30;      // of the sessions below 2^30
inline constexpr uint64_t kFirstLateSessionSequence = uint64_t{1} << 62;  // of the others, below 2^62
inline uint64_t SessionSequence(SessionId session) {
  if (session < kFirstSessionSequence) return kFirstSessionSequence + session;
  return session < kFirstLateSessionSequence ? kFirstLateSessionSequence + session : 0;
}
// The session whose sequence it is; 0: it is the MDS's own.
inline SessionId SessionOfSequence(uint64_t sequence) {
  if (sequence >= kFirstLateSessionSequence) return sequence - kFirstLateSessionSequence;
  const bool early = sequence >= kFirstSessionSequence && sequence < 2 * kFirstSessionSequence;
  return early ? sequence - kFirstSessionSequence : 0;
}

// Where the counter of an MDT goes on that is restored from a backup at `now`: beyond every number that can
// have been handed out since the backup was made, of which nobody has kept a list; OSTs have objects, fences
// and answers under some of them.
//
// The clock gives the rule. No MDT hands out numbers faster than kPerSecond (a start takes up to 2^20 of
// them), nor is it started more often than every kSecondsPerRun on the average: FirstObjectRequest has room
// for no more. So an MDT whose counters began at 1, or where this rule put them at an earlier restore, has
// not come as far as it puts them now. That holds for the second restore of one backup too, where something
// taken from the backup alone would give the same numbers again.
//
// FAILED_PRECONDITION: the backup has come farther already. So the clock is behind that of an earlier
// restore, and says nothing about what was handed out since.
inline constexpr uint64_t kPerSecond = uint64_t{1} << 28;
inline constexpr uint64_t kSecondsPerRun = 16;
inline constexpr int64_t kCountedFrom = 1'735'689'600;  // the beginning of 2025; until 2093 there is room
StatusOr<uint64_t> FirstAfterRestore(CounterId counter, uint64_t stored, const WallTime& now);

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
