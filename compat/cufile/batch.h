// cuFile's batches: entries that are submitted together and reaped as they end. An eventfd tells of those
// that libnacre has under way; those of other files are done when they are submitted. Thread-safe.
#pragma once

#include <nacre/nacre.h>

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "compat/cufile/abi.h"
#include "compat/cufile/state.h"

namespace nacre::cufile {

class Batch {
 public:
  static constexpr unsigned kMost = 128;  // entries

  static CUfileError_t Make(unsigned capacity, CUfileBatchHandle_t* handle);
  static std::shared_ptr<Batch> Find(CUfileBatchHandle_t handle);  // null: there is none
  static void Destroy(CUfileBatchHandle_t handle);

  ~Batch();  // as Cancel

  // All entries or none.
  CUfileError_t Submit(const CUfileIOParams_t* entries, unsigned count);
  // At least `least` unless the time is over; null: waits for ever. `*count`: room, then how many there are.
  CUfileError_t Reap(unsigned least, unsigned* count, CUfileIOEvents_t* events, const timespec* timeout);
  // As NVIDIA's: nothing is told of what was submitted, and there is room for as much again. Returns when
  // nobody reads or writes its memory any more.
  void Cancel();

 private:
  // Entries that are one call of libnacre.
  struct Group {
    nacre_future future{};
    bool writes = false;
    std::vector<void*> cookies;
    std::vector<FilePtr> files;  // theirs
  };

  Batch(unsigned capacity, int event) : capacity_(capacity), event_(event) {}
  void Begin(bool writes, std::vector<nacre_extent> extents, Group group);
  void TakeDone();
  void End(const Group& group);
  static void SyncWritten(const std::vector<FilePtr>& files, std::vector<nacre_result>& results);
  void Finish(void* cookie, int error, uint64_t bytes);

  const unsigned capacity_;
  const int event_;
  std::mutex mutex_;
  unsigned taken_ = 0;  // submitted and not reaped
  std::deque<Group> under_way_;
  std::deque<CUfileIOEvents_t> done_;
};

}  // namespace nacre::cufile
