// The requests of one stream that have arrived and not been answered yet, in the order of their arrival. One
// frame may bring a million of them, each with a large reply: they begin in bursts, between which their owner
// can look at what has to be sent already. Not thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

namespace nacre {

template <typename Request>
class RequestQueue {
 public:
  static constexpr size_t kBurst = 64;
  // Begun and not answered. Far more than a client has: requests that wait for something must not keep others
  // from beginning, for one of these may be what they wait for.
  static constexpr size_t kMaxBegun = 65536;
  static constexpr size_t kMaxWaitingBytes = 64 << 20;

  void Add(Request request, size_t bytes) {
    waiting_.push_back({std::move(request), bytes});
    waiting_bytes_ += bytes;
  }

  // The next ones, kBurst at most. Ended() is to be called for each when it has been answered.
  std::vector<Request> Begin() {
    std::vector<Request> begun;
    while (CanBegin() && begun.size() < kBurst) {
      waiting_bytes_ -= waiting_.front().bytes;
      begun.push_back(std::move(waiting_.front().request));
      waiting_.pop_front();
      ++begun_;
    }
    return begun;
  }
  void Ended() { --begun_; }

  bool CanBegin() const { return !waiting_.empty() && begun_ < kMaxBegun; }
  // Whether more may be read from the stream.
  bool HasRoom() const { return waiting_bytes_ <= kMaxWaitingBytes; }

  // The stream has ended: what has not begun never will.
  void Clear() {
    waiting_.clear();
    waiting_bytes_ = 0;
  }

 private:
  struct Waiting {
    Request request;
    size_t bytes;
  };
  std::deque<Waiting> waiting_;
  size_t waiting_bytes_ = 0, begun_ = 0;
};

}  // namespace nacre
