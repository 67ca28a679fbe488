#include "common/host.h"

#include <cerrno>
#include <fstream>

namespace nacre {

StatusOr<std::string> BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  if (!id.empty()) return id;
  return ErrnoError(ENOENT, "/proc/sys/kernel/random/boot_id cannot be read");
}

}  // namespace nacre
