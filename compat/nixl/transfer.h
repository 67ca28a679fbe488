// One transfer of NIXL's: a list of reads, or of writes, which may be posted again and again. It has a queue
// of its own, and gets on when it is asked how far it is. Not thread-safe: a transfer is one thread's at a
// time.
#pragma once

#include <backend/backend_engine.h>

#include <nacre/nacre.hpp>
#include <set>
#include <string>
#include <vector>

#include "compat/nixl/segments.h"

namespace nacre::nixl {

class Transfer : public nixlBackendReqH {
 public:
  explicit Transfer(nixl_xfer_op_t operation) : operation_(operation) {}
  // Ends what is under way, and returns when nobody touches the memory any more.
  ~Transfer() override;

  // Before it is opened.
  void Add(const FileSegment& file, uint64_t offset, Span memory);
  Error Open(const Client& client);

  // NIXL_IN_PROG; NIXL_ERR_REPOST_ACTIVE: it has not ended yet.
  nixl_status_t Post();
  // NIXL_IN_PROG, or how the last one ended. Does not wait, unless files are to be synced at the end.
  nixl_status_t Check();

 private:
  nixl_status_t Submit();
  nixl_status_t Reap();
  void Note(const Completion& one, const char* words);
  void SyncFiles();

  const nixl_xfer_op_t operation_;
  std::vector<Request> requests_;
  std::vector<uint64_t> lengths_;  // of each
  std::set<const File*> to_sync_;
  Queue queue_;
  size_t submitted_ = 0, done_ = 0;
  bool given_up_ = false;  // after an error of the submission itself
  bool active_ = false;
  nixl_status_t outcome_ = NIXL_SUCCESS;
};

}  // namespace nacre::nixl
