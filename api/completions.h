// The completed requests of a queue: a ring, into which the library's threads put what is done and from which
// the program takes it.
//
// A place in the ring is set aside before a request begins, so one that is done always finds room. A caller
// that waits for many is woken once, when they are there; the descriptor is written to once for all that come
// before the ring is empty again. Thread-safe.
#pragma once

#include <nacre/nacre.h>

#include <condition_variable>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace nacre::api {

struct Completed {
  nacre_completion raw{};
  Status status = OkStatus();  // with the words for which `raw` has no room
};

class Completions {
 public:
  explicit Completions(size_t depth) : ring_(depth) {}
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // Sets places aside, for `count` requests at most; returns how many. EBADF: it was closed.
  StatusOr<size_t> Admit(size_t count);
  // Of requests that were admitted.
  void Add(std::vector<Completed> done);

  // Takes `most` at most, those first that were done first, when there are `least` of them, or all that are
  // under way. `error`: that of the first one taken that has one. EAGAIN: fewer within the time (negative: no
  // limit), which are taken all the same. EBADF: it was closed.
  Status Reap(size_t least, Duration timeout, std::span<nacre_completion> out, size_t* taken, Status* error);

  // A descriptor of the caller's own that can be read as long as there is something to take, or it was
  // closed.
  StatusOr<int> Descriptor();

  // Nothing is admitted any more, and nobody waits.
  void Close();
  // Until nothing is under way.
  void AwaitIdle();

 private:
  size_t Take(std::span<nacre_completion> out, Status* error);
  void Signal() const;
  void Silence() const;

  std::mutex mutex_;
  std::condition_variable some_, idle_;
  std::vector<Completed> ring_;
  size_t first_ = 0, filled_ = 0;  // places of the ring
  size_t under_way_ = 0;
  std::multiset<size_t> wanted_;  // by each who waits
  int event_fd_ = -1;             // until somebody asks for one
  bool closed_ = false;
};

}  // namespace nacre::api
