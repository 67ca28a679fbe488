// The names that are known in one directory: each means an inode, or does not exist.
//
// Counted in a budget, which has to live longer. One directory keeps no more than MemoryBudget::most_names
// allows: then it begins anew with nothing (Set), or takes no more (TryAdd). Guarded by its owner.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <string>

#include "client/memory_budget.h"
#include "common/ids.h"

namespace nacre::client {

// The meaning of a name, as a directory's entries say.
struct NameKnown {
  enum class Answer { kUnknown, kAbsent, kPresent } answer = Answer::kUnknown;
  Fid fid;
};

class DirectoryNames {
 public:
  explicit DirectoryNames(MemoryBudget& budget) : budget_(budget) {}
  ~DirectoryNames() { Forget(); }
  DirectoryNames(const DirectoryNames&) = delete;
  DirectoryNames& operator=(const DirectoryNames&) = delete;

  NameKnown Find(const std::string& name) const;

  // No fid: the name does not exist.
  void Set(const std::string& name, Fid fid);
  // False: it is not kept, there are too many already.
  bool TryAdd(const std::string& name, Fid fid);
  // Forgets what the name means, and that all other names are known.
  void Distrust(const std::string& name);
  void Forget();

  // Whether a name that is not among these does not exist.
  bool complete() const { return complete_; }
  void SetComplete() { complete_ = true; }
  uint64_t drops() const { return drops_; }  // rises when names are forgotten

  size_t size() const { return names_.size(); }
  size_t present() const { return present_; }  // how many of these names mean an inode
  auto begin() const { return names_.begin(); }
  auto end() const { return names_.end(); }

 private:
  void Put(const std::string& name, Fid fid);
  void Erase(const std::string& name);
  bool full() const { return bytes_ >= budget_.most_names(); }

  MemoryBudget& budget_;
  absl::flat_hash_map<std::string, Fid> names_;
  uint64_t bytes_ = 0;
  size_t present_ = 0;
  bool complete_ = false;
  uint64_t drops_ = 0;
};

}  // namespace nacre::client
