// Asks for capabilities in the kernel's first exchange (INIT) that this libfuse has no names for, by adding
// them to libfuse's answer on its way out. Internal to fuse/. Works between fuse_session_mount and the first
// request.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/status.h"

struct fuse_session;

namespace nacre::fuse {

class InitReply {
 public:
  // Routes the session's reads and writes through this object, which must outlive it. The session's userdata
  // is a Session.
  Status Attach(fuse_session* session);

  // Called with every request and answer; quick after the first.
  void SawRequest(const void* request, size_t size);
  void SeesAnswer(struct iovec* pieces, int count);

  // Whether files that are open past the page cache can be mapped shared (Linux 6.6). Known from the first
  // request on.
  bool direct_files_map() const { return direct_files_map_.load(std::memory_order_acquire); }
  // As on a kernel that does not offer it. Before the first request.
  void DeclineDirectMaps() { decline_direct_maps_ = true; }

 private:
  std::atomic<bool> direct_files_map_{false};
  bool decline_direct_maps_ = false;
  std::atomic<bool> done_{false};
  uint64_t unique_ = 0;  // of the INIT request
  uint64_t offered_ = 0;
};

}  // namespace nacre::fuse
