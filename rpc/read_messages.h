// The messages of reads, used again. Where many small ranges are read together each of them has four parts in
// these messages, and to allocate those took a third of what a client does for such a read; a message that is
// cleared keeps them. Every thread keeps some of its own. Thread-safe.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "proto/object.pb.h"

namespace nacre {

// `Message`: proto::ReadObjects or proto::ReadObjectsReply.
template <typename Message>
class ReadMessages {
 public:
  // An empty one; the caller's.
  static Message* Take() {
    std::vector<std::unique_ptr<Message>>& kept = Kept();
    if (kept.empty()) return new Message;
    Message* message = kept.back().release();
    kept.pop_back();
    return message;
  }

  // Of a read that is over; may be null. What a single range has is not worth keeping, and may be much.
  static void Keep(Message* message) {
    std::unique_ptr<Message> owned(message);
    if (owned == nullptr || owned->ranges_size() < 2 || owned->ranges_size() > kMostRanges) return;
    if (Kept().size() >= kMostKept) return;
    owned->Clear();
    Kept().push_back(std::move(owned));
  }

 private:
  static constexpr int kMostRanges = 64;  // as many as clients ask for, some 10 KiB
  static constexpr size_t kMostKept = 16;

  static std::vector<std::unique_ptr<Message>>& Kept() {
    static thread_local std::vector<std::unique_ptr<Message>> kept;
    return kept;
  }
};

}  // namespace nacre
