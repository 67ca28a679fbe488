// Queues messages for a metadata stream, already in frames: those that come while a write is under way leave
// with the next one, up to a size that keeps one frame from holding up the rest. A frame costs many times as
// much as a message on its way through gRPC: so a sender that has nothing under way lets the tasks have their
// turn that run already, and writes when they have added theirs, or when there is Enough(). Not thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <utility>

namespace nacre {

template <typename Frame>
class FrameBatcher {
 public:
  static constexpr size_t kFrameBytes = 1 << 20;
  static constexpr size_t kEnough = 32;  // messages

  // The frame that takes a message of so many bytes.
  Frame& Room(size_t bytes) {
    if (queue_.empty() || queue_.back().bytes + bytes > kFrameBytes) queue_.emplace_back();
    queue_.back().bytes += bytes;
    bytes_ += bytes;
    ++messages_;
    return queue_.back().frame;
  }

  // The oldest frame; not empty().
  Frame Take() {
    Frame frame = std::move(queue_.front().frame);
    bytes_ -= queue_.front().bytes;
    queue_.pop_front();
    messages_ = 0;
    return frame;
  }

  void Clear() {
    queue_.clear();
    bytes_ = messages_ = 0;
  }

  bool empty() const { return queue_.empty(); }
  size_t bytes() const { return bytes_; }
  // So many that they are not worth waiting for more.
  bool Enough() const { return messages_ >= kEnough || queue_.size() > 1; }

 private:
  struct Entry {
    Frame frame;
    size_t bytes = 0;
  };
  std::deque<Entry> queue_;
  size_t bytes_ = 0;
  size_t messages_ = 0;  // since the last Take
};

}  // namespace nacre
