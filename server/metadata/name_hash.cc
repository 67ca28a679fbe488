#include "server/metadata/name_hash.h"

#include <bit>
#include <cstring>

namespace nacre::mds {
namespace {

struct SipState {
  uint64_t v0, v1, v2, v3;

  void Round() {
    v0 += v1;
    v1 = std::rotl(v1, 13) ^ v0;
    v0 = std::rotl(v0, 32);
    v2 += v3;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1;
    v1 = std::rotl(v1, 17) ^ v2;
    v2 = std::rotl(v2, 32);
  }

  void Absorb(uint64_t word) {
    v3 ^= word;
    Round();
    Round();
    v0 ^= word;
  }
};

}  // namespace

uint64_t SipHash24(const uint64_t key[2], std::string_view data) {
  SipState s{key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
             key[1] ^ 0x7465646279746573u};
  size_t whole = data.size() / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) {
    uint64_t word;
    std::memcpy(&word, data.data() + i, 8);
    s.Absorb(word);
  }
  uint64_t last = static_cast<uint64_t>(data.size()) << 56;
  std::memcpy(&last, data.data() + whole, data.size() - whole);
  s.Absorb(last);
  s.v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) s.Round();
  return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

uint64_t NameHash(const uint64_t key[2], std::string_view name) {
  uint64_t hash = (SipHash24(key, name) >> 1) & ~uint64_t{0xff};
  return hash == 0 ? 0x100 : hash;
}

}  // namespace nacre::mds
