// Identifiers: plain values, comparable, hashable, printable.
#pragma once

#include <absl/strings/str_format.h>

#include <compare>
#include <cstdint>
#include <string>

namespace nacre {

inline constexpr uint64_t kBlockSize = 4096;  // unit of checksums and of allocation (DESIGN §6)

// 128-bit file identifier, never reused.
struct Fid {
  uint64_t sequence = 0;
  uint32_t object = 0;
  uint32_t version = 0;

  auto operator<=>(const Fid&) const = default;
  explicit operator bool() const { return sequence != 0 || object != 0 || version != 0; }
  std::string ToString() const { return absl::StrFormat("[0x%x:0x%x:0x%x]", sequence, object, version); }

  template <typename H>
  friend H AbslHashValue(H h, const Fid& fid) {
    return H::combine(std::move(h), fid.sequence, fid.object, fid.version);
  }
};

inline constexpr Fid kRootFid{0, 1, 0};

// One object of a file: the file's object sequence and the stripe's number through all components.
struct ObjectId {
  uint64_t sequence = 0;
  uint32_t stripe = 0;

  auto operator<=>(const ObjectId&) const = default;
  std::string ToString() const { return absl::StrFormat("%x.%d", sequence, stripe); }

  template <typename H>
  friend H AbslHashValue(H h, const ObjectId& id) {
    return H::combine(std::move(h), id.sequence, id.stripe);
  }
};

using SessionId = uint64_t;  // 0: none (or the MDS itself, towards an OSS)
using OstIndex = uint32_t;

}  // namespace nacre
