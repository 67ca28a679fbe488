#include "transport/shm/shm_counters.h"

namespace nacre::shm {

StreamCounters& Counters() {
  static StreamCounters counters("transport.shm");
  return counters;
}

}  // namespace nacre::shm
