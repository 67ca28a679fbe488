// All inodes this client knows, within a budget of memory: when it is exceeded, the bytes of small files, the
// inodes that nobody uses and the names in directories go, those first that have not been used for longest.
//
// Thread-safe. Everything that a good lease of a directory covers is true (Inode::covered, Inode::scope).
#pragma once

#include <absl/container/flat_hash_set.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/inode.h"

namespace nacre::client {

class InodeTable {
 public:
  InodeTable(std::shared_ptr<DataCache> cache, uint64_t limit_bytes)
      : cache_(std::move(cache)),
        budget_(std::make_shared<MemoryBudget>(limit_bytes)),
        dropped_(kDroppedPlaces) {}

  // A number for something that happens now, higher than all before: in this order answers are learned
  // (scope.h).
  uint64_t NextEvent() { return ++events_; }

  InodePtr Get(Fid fid);   // made if need be
  InodePtr Find(Fid fid);  // null: not known
  // For one of many that a listing brings. Null: it is not known, and there would be room only in place of
  // what has been used since the listing began (Now). Else who goes through a directory that does not fit
  // would lose each inode before he comes to it.
  InodePtr GetListed(Fid fid, uint64_t began);
  uint64_t Now();

  // Nobody will ask for it any more: it goes before all others.
  void Retire(Inode& inode);

  std::vector<InodePtr> All();
  size_t count();

  // The leases of directories that went since the last call: to be given back.
  std::vector<ScopePtr> TakeDroppedScopes();
  // Of those the one of this directory; null: none is.
  ScopePtr DroppedScope(const Fid& directory);
  // The lease is held by another inode of the directory now. Null: it was not dropped.
  ScopePtr KeepScope(uint64_t lease);

  // Drops every inode that is not in use, and all that the rest knows of attributes and entries.
  void Forget();

  const MemoryBudget& budget() const { return *budget_; }

 private:
  struct ByFid {
    using is_transparent = void;
    size_t operator()(const Fid& fid) const { return absl::Hash<Fid>()(fid); }
    size_t operator()(const InodePtr& inode) const { return (*this)(inode->fid); }
    static const Fid& Of(const Fid& fid) { return fid; }
    static const Fid& Of(const InodePtr& inode) { return inode->fid; }
    bool operator()(const auto& a, const auto& b) const { return Of(a) == Of(b); }
  };

  // FIDs that share a place share the time: an answer too many is not believed then.
  static constexpr size_t kDroppedPlaces = 1 << 14;

  // All with the mutex held.
  void Append(Inode* inode);
  void Remove(Inode* inode);
  void Touch(Inode* inode);  // it is used just now
  InodePtr FindLocked(Fid fid);
  InodePtr Make(Fid fid);
  uint64_t& DroppedAt(const Fid& fid) { return dropped_[absl::Hash<Fid>()(fid) % kDroppedPlaces]; }
  // Lets go what has not been used since `began`, as long as the budget is exceeded.
  void Trim(uint64_t began, std::vector<InodePtr>* out);
  bool DropContents();
  InodePtr DropOldest();
  InodePtr Drop(Inode* inode);

  const std::shared_ptr<DataCache> cache_;
  const std::shared_ptr<MemoryBudget> budget_;
  std::mutex mutex_;
  absl::flat_hash_set<InodePtr, ByFid, ByFid> inodes_;
  uint64_t uses_ = 0;
  Inode* oldest_ = nullptr;  // longest unused
  Inode* newest_ = nullptr;
  std::vector<ScopePtr> dropped_scopes_;
  std::atomic<uint64_t> events_{0};
  // When inodes were last let go, by their FIDs. An answer that was under way by then may be older than what
  // this client knew of the inode, its own changes among it: so the next inode of the FID begins with this as
  // its Inode::changed.
  std::vector<uint64_t> dropped_;
  Inode* contents_ = nullptr;  // where DropContents goes on; null: at the oldest
};

NameKnown FindName(Inode& directory, const std::string& name);
// With the mutex of a directory held whose attributes and names are true, and of the same moment. Where as
// many names are known as it has entries there are no others.
NameKnown FindAmongAll(const Inode& directory, const std::string& name);

// A remote answer about names may be kept if nothing was changed here since the request was sent, and the
// names that are kept are of the same lease.
struct FillToken {
  uint64_t version = 0;
  bool quiet = false;
  uint64_t drops = 0;  // DirectoryNames::drops then
  ScopePtr scope;      // the lease under which the answer is learned, if there is one
};
FillToken BeginFill(Inode& directory);
// Null fid: the name does not exist.
void FillName(Inode& directory, FillToken token, const std::string& name, Fid fid);
// The same of one name among those that a listing brings. Returns whether it was kept: names that there is no
// room for do not drive others out.
bool FillListed(Inode& directory, FillToken token, const std::string& name, Fid fid);

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

  void Set(Fid fid);  // no fid: the name is gone
  void SetUnknown();  // the outcome is not known

 private:
  InodePtr directory_;
  std::string name_;
};

}  // namespace nacre::client
