// Striping arithmetic: which ranges of which objects hold an extent of a file, and back.
//
// LayoutMap is an immutable, checked form of proto::Layout, shared by value; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/ids.h"
#include "common/status.h"
#include "proto/types.pb.h"

namespace nacre::client {

// A contiguous extent of the file that is contiguous in one object, too.
struct StripePiece {
  uint64_t file_offset = 0;
  uint64_t length = 0;
  uint32_t stripe = 0;  // through all components, as in ObjectId
  OstIndex ost = 0;
  uint64_t object_offset = 0;

  bool operator==(const StripePiece&) const = default;
};

class LayoutMap {
 public:
  // INVALID_ARGUMENT names what is wrong with the layout.
  static StatusOr<std::shared_ptr<const LayoutMap>> Make(const proto::Layout& layout);

  uint32_t generation() const { return generation_; }
  uint64_t object_sequence() const { return object_sequence_; }
  ObjectId Object(uint32_t stripe) const { return {object_sequence_, stripe}; }
  uint32_t stripe_count() const { return static_cast<uint32_t>(osts_.size()); }
  OstIndex Ost(uint32_t stripe) const { return osts_[stripe]; }

  // The pieces of [offset, offset + length) in file order. A component of one stripe is one piece.
  std::vector<StripePiece> Map(uint64_t offset, uint64_t length) const;

  // The piece at `offset`, no longer than `length` > 0.
  StripePiece At(uint64_t offset, uint64_t length) const;

  // Where the byte of an object lies in the file; UINT64_MAX if the file's layout does not reach there.
  uint64_t FileOffset(uint32_t stripe, uint64_t object_offset) const;

  // How many bytes of the object lie before `file_offset`: where the object ends if the file ends there.
  uint64_t ObjectEnd(uint32_t stripe, uint64_t file_offset) const;

 private:
  struct Component {
    uint64_t start = 0;
    uint64_t end = 0;
    uint64_t stripe_size = 0;
    uint32_t first_stripe = 0;
    uint32_t stripes = 0;
  };

  const Component& ComponentAt(uint64_t offset) const;
  const Component& ComponentOf(uint32_t stripe) const;

  uint32_t generation_ = 0;
  uint64_t object_sequence_ = 0;
  std::vector<Component> components_;
  std::vector<OstIndex> osts_;
};

using LayoutPtr = std::shared_ptr<const LayoutMap>;

}  // namespace nacre::client
