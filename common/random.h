// Randomness as a seam: one seed replays everything that was drawn from it. Not for secrets. Not thread-safe
// except SystemRandom().
#pragma once

#include <cstdint>

namespace nacre {

class Random {
 public:
  virtual ~Random() = default;
  virtual uint64_t Next() = 0;

  // Uniform in [0, bound); bound > 0.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
};

// SplitMix64 (Steele, Lea, Flood 2014).
class SeededRandom : public Random {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() override {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

// From the kernel; thread-safe.
Random& SystemRandom();

}  // namespace nacre
