// The text of a hello (proto/FORMAT.md): who speaks, and from a server the other paths on which it can be
// reached. Pure functions; what arrives is checked here. Thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace nacre {

inline constexpr size_t kMaxOffers = 8;
inline constexpr size_t kMaxOfferSize = 400;
inline constexpr size_t kMaxIdentitySize = 512;

struct PathOffer {
  std::string path;   // "shm", "rdma": see PathInfo
  std::string where;  // for whoever knows that path

  bool operator==(const PathOffer&) const = default;
};

struct Hello {
  std::string identity;  // for the log
  std::vector<PathOffer> offers;

  bool operator==(const Hello&) const = default;
};

// Leaves out what ParseHello would not take; unprintable characters of the identity become '?'.
std::string EncodeHello(const Hello& hello);

// EPROTO with what is wrong.
StatusOr<Hello> ParseHello(std::string_view text);

}  // namespace nacre
