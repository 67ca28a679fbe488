// Files and memory that an application has registered with the backend, as NIXL carries them about.
#pragma once

#include <backend/backend_engine.h>

#include <mutex>
#include <nacre/nacre.hpp>
#include <optional>

namespace nacre::nixl {

struct FileSegment : nixlBackendMD {
  FileSegment(File opened, bool durable, std::optional<uint64_t> number)
      : nixlBackendMD(true), file(std::move(opened)), sync(durable), own_number(number) {}

  const File file;
  const bool sync;  // what was written is durable before the transfer is done
  const std::optional<uint64_t>
      own_number;  // that nobody else may have, of a file that was named by its path
};

// Memory, which is registered with Nacre when it is first used, if no filesystem was known before.
// Thread-safe.
class MemorySegment : public nixlBackendMD {
 public:
  MemorySegment(const nixlBasicDesc& place, nixl_mem_t type)
      : nixlBackendMD(true), place_(place), type_(type) {}

  // The part of the buffer that lies there. EINVAL: it is not within the segment, or the segment is another
  // device's.
  Expected<Span> Find(const Client& client, const nixlBasicDesc& part);
  Error Register(const Client& client);

 private:
  const nixlBasicDesc place_;
  const nixl_mem_t type_;
  std::mutex mutex_;
  Buffer buffer_;
  bool registered_ = false;
};

}  // namespace nacre::nixl
