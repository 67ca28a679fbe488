#include "common/random.h"

#include <sys/random.h>

#include <cstdlib>

namespace nacre {
namespace {

class KernelRandom : public Random {
 public:
  uint64_t Next() override {
    uint64_t value;
    if (getrandom(&value, sizeof value, 0) != sizeof value) std::abort();
    return value;
  }
};

}  // namespace

Random& SystemRandom() {
  static KernelRandom random;
  return random;
}

}  // namespace nacre
