// How a fence names sessions (FenceSession in proto/object.proto, the OST's fence record in proto/FORMAT.md):
// by its number one, or all that are numbered below another one. Pure functions.
#pragma once

#include <cstdint>

#include "common/ids.h"

namespace nacre {

inline constexpr SessionId kAllBelow = SessionId{1} << 63;  // sessions are never numbered so high

// All sessions with numbers below `first`, whether they are known or not: after an MDT was restored from a
// backup, those that it has opened since then (server/metadata/restore.h).
inline SessionId AllBelow(SessionId first) { return kAllBelow | first; }
inline bool IsAllBelow(SessionId fenced) { return (fenced & kAllBelow) != 0; }
inline SessionId FirstServed(SessionId all_below) { return all_below & ~kAllBelow; }

}  // namespace nacre
