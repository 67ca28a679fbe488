// Hash of a name within a directory: SipHash-2-4 (Aumasson, Bernstein 2012) under the filesystem's own key,
// so that nobody can prepare names that collide. The result is the upper part of a directory cookie: its low
// byte is zero (place for the index within a bucket), its highest bit too (cookies are positive as off_t),
// and it is never 0. Thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

namespace nacre::mds {

uint64_t SipHash24(const uint64_t key[2], std::string_view data);
uint64_t NameHash(const uint64_t key[2], std::string_view name);

inline uint64_t CookieHash(uint64_t cookie) { return cookie & ~uint64_t{0xff}; }
inline uint8_t CookieIndex(uint64_t cookie) { return static_cast<uint8_t>(cookie & 0xff); }

}  // namespace nacre::mds
