// Buffers for memory that was not registered: found by its address. GPU memory is registered by whole
// allocations and kept, because that costs calls of the driver, or of a NIC; who frees an allocation and gets
// another one at its place gets another buffer, since the driver gives it another number. Host memory is
// looked at each time: nothing tells when it goes. Belongs to one client. Thread-safe.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

#include "common/status.h"

namespace nacre::api {

class Buffer;
class Client;

class LooseMemory {
 public:
  // A buffer that has all of it. EFAULT: nobody's; ENOTSUP: a device's that cannot be used, and why.
  StatusOr<std::shared_ptr<Buffer>> Find(const std::shared_ptr<Client>& client, void* address, size_t size);
  // Those that are kept know their client: without this neither would ever go.
  void Clear();

 private:
  static constexpr size_t kMost = 256;

  std::mutex mutex_;
  std::list<std::shared_ptr<Buffer>> kept_;  // the one that was used last is first
};

}  // namespace nacre::api
