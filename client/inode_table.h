// All inodes this client knows, bounded: those that nobody uses go in LRU order, directories' entries with
// them.
//
// Thread-safe. Under the filesystem lease what is in here is true; without it nothing but what handles need
// is kept (Forget).
#pragma once

#include <absl/container/flat_hash_map.h>

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/inode.h"

namespace nacre::client {

class InodeTable {
 public:
  InodeTable(std::shared_ptr<DataCache> cache, size_t limit) : cache_(std::move(cache)), limit_(limit) {}

  InodePtr Get(Fid fid);   // made if need be
  InodePtr Find(Fid fid);  // null: not known

  std::vector<InodePtr> All();
  size_t count();

  // Drops every inode that is not in use, and all that the rest knows of attributes and entries.
  void Forget();

  // Counts directory entries towards the limit.
  void CountEntries(int64_t change);

 private:
  struct Slot {
    InodePtr inode;
    std::list<Fid>::iterator place;
  };
  void Trim(std::vector<InodePtr>* out);

  const std::shared_ptr<DataCache> cache_;
  const size_t limit_;
  std::mutex mutex_;
  absl::flat_hash_map<Fid, Slot> slots_;
  std::list<Fid> order_;  // longest unused first
  std::atomic<int64_t> entries_{0};
};

// What a directory's entries say about a name.
struct NameKnown {
  enum class Answer { kUnknown, kAbsent, kPresent } answer = Answer::kUnknown;
  Fid fid;
};
NameKnown FindName(Inode& directory, const std::string& name);
NameKnown FindNameLocked(const Inode& directory, const std::string& name);  // directory.mutex held

// A remote answer about names may be kept if nothing was changed here since the request was sent.
struct FillToken {
  uint64_t version = 0;
  bool quiet = false;
};
FillToken BeginFill(Inode& directory);
// Null fid: the name does not exist. Returns whether it was kept.
bool FillName(InodeTable& table, Inode& directory, FillToken token, const std::string& name, Fid fid);

// Held around a change of a name that this client asks for: others of the same name wait, and answers of the
// MDS that were on their way are not kept. Then says what the name means now.
class NameLock {
 public:
  NameLock() = default;
  NameLock(NameLock&& other) noexcept;
  NameLock& operator=(NameLock&& other) noexcept;
  ~NameLock();

  static Task<NameLock> Take(InodePtr directory, std::string name);
  static std::optional<NameLock> TryTake(const InodePtr& directory, const std::string& name);

  void Set(InodeTable& table, Fid fid);  // no fid: the name is gone
  void SetUnknown(InodeTable& table);    // the outcome is not known

 private:
  InodePtr directory_;
  std::string name_;
};

}  // namespace nacre::client
