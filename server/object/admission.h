// Admits calls to an OSS by the pages of the buffer pool that they need. An admitted call has an allotment
// for as long as it, or anything that it has lent to its caller, lasts: all the pages that it needs, or, if
// they are more than one call may have, as many as let it do its work in parts.
//
// The allotments are never more than the pool, and each pinned page belongs to one. So a call that has been
// admitted never waits for pages which another call holds, only for those that it has lent itself, and its
// caller has a deadline to take these (IncomingCall). To be free of deadlocks a call is admitted before it
// takes a lock of an object; whoever holds a lock has been admitted.
//
// Order: calls of one client to one OST come first come first served; such pairs take turns. A client, and an
// OST, that has kLargestShare times what is left of the pool waits until it has less, so that neither one
// that does not take its bytes nor a disk that hangs keeps the others out. Thread-safe. Allotments keep the
// admission alive.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/task.h"

namespace nacre::ost {

class Admission;

// The pages that an admitted call may have pinned. Move-only; when it goes, what nobody has pinned goes back.
class Allotment {
 public:
  // One use of pages; they are back at its destruction. Keeps what is needed of the allotment.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept : state_(std::move(other.state_)), pages_(std::exchange(other.pages_, 0)) {}
    Share& operator=(Share&& other) noexcept;
    ~Share() { Return(); }

   private:
    friend class Allotment;
    Share(std::shared_ptr<struct AllotmentState> state, uint64_t pages)
        : state_(std::move(state)), pages_(pages) {}
    void Return();

    std::shared_ptr<struct AllotmentState> state_;
    uint64_t pages_ = 0;
  };

  Allotment() = default;
  Allotment(Allotment&&) = default;
  Allotment& operator=(Allotment&& other) noexcept;
  ~Allotment() { Close(); }

  // It is as large as the call's needs: nothing that the call takes makes it wait.
  bool whole() const;

  // Waits for pages of this allotment that are in use; first come first served. At most the pages that the
  // call asked for, all in all, and kLeastPart at once.
  Task<Share> Take(uint64_t pages);

 private:
  friend class Admission;
  explicit Allotment(std::shared_ptr<struct AllotmentState> state) : state_(std::move(state)) {}
  void Close();

  std::shared_ptr<struct AllotmentState> state_;
};

class Admission : public std::enable_shared_from_this<Admission> {
 public:
  static constexpr uint64_t kLeastPart = 256;
  static constexpr uint64_t kClientShare = 2;
  static constexpr uint64_t kOstShare = 7;

  // At least kLeastPart.
  explicit Admission(uint64_t pages);

  // `pages`: what the call needs all in all; 0 never waits. `client` and `ost` tell those who share the pool
  // apart.
  Task<Allotment> Admit(SessionId client, uint32_t ost, uint64_t pages);

  void PlantLeak() { leaks_ = 1; }  // ObjectOptions

  // Of one call.
  uint64_t largest_part() const { return largest_part_; }
  uint64_t free_pages() const;
  size_t waiting() const;

 private:
  friend struct AllotmentState;
  using Flow = std::pair<SessionId, uint32_t>;
  struct Waiter {
    uint64_t needs;
    OneShot<Allotment> admitted;
  };
  using Admitted = std::vector<std::pair<OneShot<Allotment>, Allotment>>;
  struct Queue {
    Flow flow;
    std::deque<Waiter> waiters;  // not empty
  };

  void Return(const Flow& flow, uint64_t pages);
  // These under mutex_.
  bool IsEligible(const Flow& flow) const;
  Allotment Grant(const Flow& flow, uint64_t needs, uint64_t pages);
  Admitted Serve();
  static void Tell(Admitted admitted);  // not under it

  const uint64_t largest_part_;
  uint64_t leaks_ = 0;  // pages of each return
  mutable std::mutex mutex_;
  uint64_t free_;
  absl::flat_hash_map<SessionId, uint64_t> held_by_client_;
  absl::flat_hash_map<uint32_t, uint64_t> held_for_ost_;
  std::list<Queue> queues_;  // whose turn is next in front
  absl::flat_hash_map<Flow, std::list<Queue>::iterator> queue_of_;
};

}  // namespace nacre::ost
