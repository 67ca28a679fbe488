// The messages of reads, used again. Where many small ranges are read together each of them has four parts in
// these messages, and to allocate those took a third of what a client does for such a read; a message that is
// cleared keeps all but one of them (it lets go of a range's object). Every thread keeps some messages of its
// own, of several ranges: what a single one has is not worth keeping, and may be much. Thread-safe.
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
  // An empty one, for so many ranges; the caller's.
  static Message* Take(int ranges) {
    std::vector<std::unique_ptr<Message>>& kept = Kept();
    if (!IsKept(ranges) || kept.empty()) return new Message;
    Message* message = kept.back().release();
    kept.pop_back();
    return message;
  }

  // Of a read that is over; may be null.
  static void Keep(Message* message) {
    std::unique_ptr<Message> owned(message);
    if (owned == nullptr || !IsKept(owned->ranges_size()) || Kept().size() >= kMostKept) return;
    owned->Clear();
    Kept().push_back(std::move(owned));
  }

 private:
  static constexpr int kMostRanges = 64;  // as many as clients ask for, some 10 KiB
  static constexpr size_t kMostKept = 16;

  static bool IsKept(int ranges) { return ranges > 1 && ranges <= kMostRanges; }

  static std::vector<std::unique_ptr<Message>>& Kept() {
    static thread_local std::vector<std::unique_ptr<Message>> kept;
    return kept;
  }
};

}  // namespace nacre
