#include "server/metadata/check.h"

#include <absl/container/flat_hash_set.h>
#include <absl/strings/escaping.h>
#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>

#include "server/kv/kv_pages.h"
#include "server/metadata/id_allocator.h"
#include "server/metadata/keys.h"
#include "server/metadata/name_hash.h"

namespace nacre::mds {

void CheckReport::Add(std::string problem) {
  ++problem_count;
  if (problems.size() < kMaxListed) problems.push_back(std::move(problem));
}

namespace {

Fid KeyFid(const KvEntry& entry) {
  ByteReader key(std::string_view(entry.key).substr(1));
  return key.ReadFid();
}

class MdtChecker {
 public:
  MdtChecker(KvStore& store, bool repair) : store_(store), repair_(repair) {}

  Task<StatusOr<CheckReport>> Run() {
    static constexpr Step kFirst[] = {&MdtChecker::ReadInodes, &MdtChecker::ReadOrphans,
                                      &MdtChecker::ReadEntries, &MdtChecker::CheckReverseLinks,
                                      &MdtChecker::CheckTree};
    static constexpr Step kLast[] = {&MdtChecker::CheckXattrs,       &MdtChecker::CheckBodies,
                                     &MdtChecker::CheckTails,        &MdtChecker::CheckTruncations,
                                     &MdtChecker::CheckDestroyQueue, &MdtChecker::CheckCounters};
    CO_RETURN_IF_ERROR(ReadSuperblock());
    for (Step step : kFirst) {
      CO_RETURN_IF_ERROR((this->*step)());
      CO_RETURN_IF_ERROR(co_await Repair());
    }
    CO_RETURN_IF_ERROR(co_await CheckInodes());
    for (Step step : kLast) {
      CO_RETURN_IF_ERROR((this->*step)());
      CO_RETURN_IF_ERROR(co_await Repair());
    }
    co_return std::move(report_);
  }

 private:
  using Step = Status (MdtChecker::*)();

  // Commits what a step wants put right, for the next one to see.
  Task<Status> Repair() {
    for (KvBatch& fix : fixes_) CO_RETURN_IF_ERROR(co_await store_.Commit(std::move(fix)));
    fixes_.clear();
    co_return OkStatus();
  }

  struct Seen {
    uint32_t mode = 0;
    uint32_t links = 0;  // entries that name it
    uint32_t subdirectories = 0;
    uint32_t xattrs = 0;
    uint64_t entries = 0;
    Fid parent;
    uint64_t parent_cookie = 0;
    bool primary = false;  // the primary link was found among the entries
    bool orphan = false;
  };

  // Counts a problem; the batch puts it right, once the step is over.
  Status Found(std::string problem, KvBatch fix) {
    report_.Add(std::move(problem));
    if (!repair_ || fix.empty()) return OkStatus();
    ++report_.repaired;
    fixes_.push_back(std::move(fix));
    return OkStatus();
  }
  Status FoundUseless(std::string problem, std::string key) {
    KvBatch fix;
    fix.Erase(std::move(key));
    return Found(std::move(problem), std::move(fix));
  }
  Status FoundWrongInode(std::string problem, const Inode& right) {
    KvBatch fix;
    fix.Put(FidKey(Table::kInode, right.fid), EncodeInode(right));
    return Found(std::move(problem), std::move(fix));
  }

  Status ReadSuperblock() {
    auto data = store_.Get(TableKey(Table::kSuperblock));
    if (absl::IsNotFound(data.status())) return absl::DataLossError("no superblock: this is no MDT");
    RETURN_IF_ERROR(data.status());
    ASSIGN_OR_RETURN(superblock_, ParseSuperblock(*data));
    return OkStatus();
  }

  Status ReadInodes() {
    RETURN_IF_ERROR(ForEachEntry(store_, TableKey(Table::kInode), [&](const KvEntry& entry) -> Status {
      const Fid fid = KeyFid(entry);
      auto inode = ParseInode(fid, entry.value);
      if (!inode.ok()) return FoundUseless(std::string(inode.status().message()), entry.key);
      Seen& seen = seen_[fid];
      seen.mode = inode->mode;
      seen.parent = inode->parent;
      seen.parent_cookie = inode->parent_cookie;
      if (S_ISREG(inode->mode) && !inode->inline_data) used_sequences_.insert(inode->layout.object_sequence);
      const SessionId session = SessionOfSequence(fid.sequence);
      if (session == 0) max_fid_sequence_ = std::max(max_fid_sequence_, fid.sequence);
      max_session_ = std::max(max_session_, session);
      max_object_sequence_ = std::max(max_object_sequence_, inode->layout.object_sequence);
      return OkStatus();
    }));
    report_.inodes = seen_.size();
    if (seen_.contains(kRootFid)) return OkStatus();
    return absl::DataLossError("the root directory's inode is missing: restore the MDT from a copy");
  }

  Status ReadOrphans() {
    return ForEachEntry(store_, TableKey(Table::kOrphan), [&](const KvEntry& entry) -> Status {
      const Fid fid = KeyFid(entry);
      auto it = seen_.find(fid);
      if (it == seen_.end())
        return FoundUseless(absl::StrCat("orphan ", fid.ToString(), " has no inode"), entry.key);
      it->second.orphan = true;
      return OkStatus();
    });
  }

  // Empty: nothing is wrong with it.
  std::string JudgeEntry(const Fid& parent, uint64_t hash, const BucketEntry& entry) {
    std::string place =
        absl::StrFormat("entry \"%s\" of directory %s", absl::CHexEscape(entry.name), parent.ToString());
    auto directory = seen_.find(parent);
    if (directory == seen_.end()) return absl::StrCat(place, ": there is no such directory");
    if (!S_ISDIR(directory->second.mode)) return absl::StrCat(place, ": that is no directory");
    if (NameHash(superblock_.hash_key, entry.name) != hash)
      return absl::StrCat(place, ": it lies under a wrong hash");
    auto child = seen_.find(entry.fid);
    if (child == seen_.end()) return absl::StrFormat("%s: inode %s is missing", place, entry.fid.ToString());
    bool second_name = S_ISDIR(child->second.mode) && child->second.links > 0;
    if (second_name)
      return absl::StrFormat("%s: directory %s has another name already", place, entry.fid.ToString());
    return {};
  }

  void Count(const Fid& parent, uint64_t cookie, const BucketEntry& entry) {
    ++report_.entries;
    Seen& directory = seen_[parent];
    Seen& child = seen_[entry.fid];
    ++directory.entries;
    ++child.links;
    if (S_ISDIR(child.mode)) ++directory.subdirectories;
    if (child.parent == parent && child.parent_cookie == cookie)
      child.primary = true;
    else
      secondary_[entry.fid].push_back({parent, cookie});
  }

  Status ReadEntries() {
    return ForEachEntry(store_, TableKey(Table::kEntry), [&](const KvEntry& kv) -> Status {
      ByteReader key(std::string_view(kv.key).substr(1));
      const Fid parent = key.ReadFid();
      const uint64_t hash = key.Big<uint64_t>();
      auto bucket = ParseBucket(kv.value);
      if (!bucket.ok()) return FoundUseless(std::string(bucket.status().message()), kv.key);
      Bucket good;
      std::string wrong;
      for (const BucketEntry& entry : *bucket) {
        std::string problem = JudgeEntry(parent, hash, entry);
        if (problem.empty()) {
          Count(parent, hash | entry.index, entry);
          good.push_back(entry);
        } else {
          wrong += (wrong.empty() ? "" : "; ") + problem;
        }
      }
      if (wrong.empty()) return OkStatus();
      KvBatch fix;
      if (good.empty())
        fix.Erase(kv.key);
      else
        fix.Put(kv.key, EncodeBucket(good));
      return Found(std::move(wrong), std::move(fix));
    });
  }

  Status CheckReverseLinks() {
    absl::flat_hash_set<std::string> wanted;
    for (const auto& [fid, links] : secondary_) {
      for (const auto& [parent, cookie] : links) wanted.insert(ReverseLinkKey(fid, parent, cookie));
    }
    RETURN_IF_ERROR(ForEachEntry(store_, TableKey(Table::kReverseLink), [&](const KvEntry& entry) -> Status {
      if (wanted.erase(entry.key) > 0) return OkStatus();
      return FoundUseless(absl::StrCat("a reverse link of ", KeyFid(entry).ToString(), " names no entry"),
                          entry.key);
    }));
    for (const std::string& key : wanted) {
      ByteReader in(std::string_view(key).substr(1));
      const Fid fid = in.ReadFid();
      if (!seen_[fid].primary) continue;  // CheckInodes makes one of them the primary one
      KvBatch fix;
      fix.Put(key, {});
      RETURN_IF_ERROR(
          Found(absl::StrCat("a link of ", fid.ToString(), " has no reverse link"), std::move(fix)));
    }
    return OkStatus();
  }

  // Directories that cannot be reached from the root although they have a name: loops.
  Status CheckTree() {
    absl::flat_hash_set<Fid> reached = {kRootFid};
    for (const auto& [fid, seen] : seen_) {
      if (!S_ISDIR(seen.mode) || seen.links == 0) continue;
      std::vector<Fid> path;
      absl::flat_hash_set<Fid> on_path;
      Fid at = fid;
      while (!reached.contains(at) && on_path.insert(at).second) {
        path.push_back(at);
        auto it = seen_.find(at);
        if (it == seen_.end() || it->second.links == 0) break;
        at = it->second.parent;
      }
      bool loop = !reached.contains(at) && on_path.contains(at) && seen_[at].links > 0;
      if (loop) RETURN_IF_ERROR(Found(absl::StrCat("directory ", at.ToString(), " is its own ancestor"), {}));
      reached.insert(path.begin(), path.end());
    }
    return OkStatus();
  }

  // A name in the root for an inode that has none.
  Status Adopt(const Inode& lost, Seen* seen) {
    const std::string name = absl::StrCat("lost+found.", lost.fid.ToString());
    const uint64_t hash = NameHash(superblock_.hash_key, name);
    Bucket bucket;
    auto data = store_.Get(EntryKey(kRootFid, hash));
    if (data.ok()) {
      ASSIGN_OR_RETURN(bucket, ParseBucket(*data));
    }
    const uint8_t index = static_cast<uint8_t>(bucket.size());
    bucket.push_back({index, static_cast<uint8_t>(IFTODT(lost.mode)), lost.fid, name});
    seen->links = 1;
    seen->primary = true;
    ++seen_[kRootFid].entries;
    if (S_ISDIR(lost.mode)) ++seen_[kRootFid].subdirectories;
    Inode inode = lost;
    inode.parent = kRootFid;
    inode.parent_cookie = hash | index;
    inode.nlink = S_ISDIR(lost.mode) ? 2 + seen->subdirectories : 1;
    if (S_ISDIR(lost.mode)) inode.size = seen->entries;
    KvBatch fix;
    fix.Put(EntryKey(kRootFid, hash), EncodeBucket(bucket));
    fix.Put(FidKey(Table::kInode, lost.fid), EncodeInode(inode));
    return Found(
        absl::StrFormat("inode %s has no name%s", lost.fid.ToString(), repair_ ? ": it is now /" + name : ""),
        std::move(fix));
  }

  Status CheckLinks(Inode inode, const Seen& seen) {
    uint32_t links = S_ISDIR(inode.mode) ? 2 + seen.subdirectories : seen.links;
    if (seen.orphan) links = 0;
    if (inode.nlink != links) {
      std::string problem =
          absl::StrFormat("inode %s counts %d links, it has %d", inode.fid.ToString(), inode.nlink, links);
      inode.nlink = links;
      RETURN_IF_ERROR(FoundWrongInode(std::move(problem), inode));
    }
    if (!seen.orphan && !seen.primary && inode.fid != kRootFid) {
      auto [parent, cookie] = secondary_[inode.fid].front();
      inode.parent = parent;
      inode.parent_cookie = cookie;
      KvBatch fix;
      fix.Put(FidKey(Table::kInode, inode.fid), EncodeInode(inode));
      fix.Erase(ReverseLinkKey(inode.fid, parent, cookie));
      RETURN_IF_ERROR(
          Found(absl::StrCat("inode ", inode.fid.ToString(), " names a parent that has no entry for it"),
                std::move(fix)));
    }
    if (!S_ISDIR(inode.mode) || inode.size == seen.entries) return OkStatus();
    std::string problem = absl::StrFormat("directory %s counts %d entries, it has %d", inode.fid.ToString(),
                                          inode.size, seen.entries);
    inode.size = seen.entries;
    return FoundWrongInode(std::move(problem), inode);
  }

  Status CheckInode(const Fid& fid, Seen* seen) {
    ASSIGN_OR_RETURN(std::string data, store_.Get(FidKey(Table::kInode, fid)));
    ASSIGN_OR_RETURN(Inode inode, ParseInode(fid, data));
    if (seen->links > 0 && seen->orphan) {
      seen->orphan = false;
      RETURN_IF_ERROR(
          FoundUseless(absl::StrCat("orphan ", fid.ToString(), " has a name"), FidKey(Table::kOrphan, fid)));
    }
    bool nameless = seen->links == 0 && !seen->orphan && fid != kRootFid;
    return nameless ? Adopt(inode, seen) : CheckLinks(std::move(inode), *seen);
  }

  // Each inode is a step of its own: the names that it gets in the root are there for the next one.
  Task<Status> CheckInodes() {
    std::vector<Fid> fids;
    for (const auto& [fid, seen] : seen_) fids.push_back(fid);
    std::sort(fids.begin(), fids.end());
    for (const Fid& fid : fids) {
      if (fid == kRootFid) continue;
      CO_RETURN_IF_ERROR(CheckInode(fid, &seen_[fid]));
      CO_RETURN_IF_ERROR(co_await Repair());
    }
    CO_RETURN_IF_ERROR(CheckInode(kRootFid, &seen_[kRootFid]));  // last: what was adopted counts
    co_return co_await Repair();
  }

  Status CheckXattrs() {
    RETURN_IF_ERROR(ForEachEntry(store_, TableKey(Table::kXattr), [&](const KvEntry& entry) -> Status {
      const Fid fid = KeyFid(entry);
      auto it = seen_.find(fid);
      if (it == seen_.end()) {
        return FoundUseless(
            absl::StrCat("an extended attribute of ", fid.ToString(), ", which does not exist"), entry.key);
      }
      ++it->second.xattrs;
      return OkStatus();
    }));
    return ForEachEntry(store_, TableKey(Table::kInode), [&](const KvEntry& entry) -> Status {
      auto inode = ParseInode(KeyFid(entry), entry.value);
      if (!inode.ok() || inode->xattrs == seen_[inode->fid].xattrs) return OkStatus();
      std::string problem = absl::StrFormat("inode %s counts %d extended attributes, it has %d",
                                            inode->fid.ToString(), inode->xattrs, seen_[inode->fid].xattrs);
      inode->xattrs = seen_[inode->fid].xattrs;
      return FoundWrongInode(std::move(problem), *inode);
    });
  }

  Status CheckBodies() { return CheckOwned(Table::kBody, "data"); }
  Status CheckTails() { return CheckOwned(Table::kTail, "appended bytes"); }
  Status CheckTruncations() { return CheckOwned(Table::kTruncate, "a pending truncation"); }
  Status CheckOwned(Table table, std::string_view what) {
    return ForEachEntry(store_, TableKey(table), [&](const KvEntry& entry) -> Status {
      const Fid fid = KeyFid(entry);
      if (seen_.contains(fid)) return OkStatus();
      return FoundUseless(absl::StrFormat("%s of %s, which does not exist", what, fid.ToString()), entry.key);
    });
  }

  // Records of objects that must be no file's: to be destroyed, being written for one, or left by one.
  Status CheckUnused(std::string key, uint64_t sequence, const Status& parsed) {
    if (!parsed.ok()) {
      return FoundUseless(absl::StrFormat("the record of objects %x: %s", sequence, parsed.message()),
                          std::move(key));
    }
    max_object_sequence_ = std::max(max_object_sequence_, sequence);
    if (!used_sequences_.contains(sequence)) return OkStatus();
    return FoundUseless(absl::StrFormat("objects %x are to be destroyed but belong to a file", sequence),
                        std::move(key));
  }

  Status CheckDestroyQueue() {
    RETURN_IF_ERROR(
        ForEachEntry(store_, TableKey(Table::kDestroyByFile), [&](const KvEntry& entry) -> Status {
          ByteReader key(std::string_view(entry.key).substr(1));
          return CheckUnused(entry.key, key.Big<uint64_t>(), ParseDestroy(entry.value).status());
        }));
    RETURN_IF_ERROR(ForEachEntry(store_, TableKey(Table::kNewObjects), [&](const KvEntry& entry) -> Status {
      ByteReader key(std::string_view(entry.key).substr(1));
      return CheckUnused(entry.key, key.Big<uint64_t>(), ParseNewObjects(entry.value).status());
    }));
    RETURN_IF_ERROR(ForEachEntry(store_, TableKey(Table::kMoved), [&](const KvEntry& entry) -> Status {
      ByteReader key(std::string_view(entry.key).substr(1));
      return CheckUnused(entry.key, key.Big<uint64_t>(), ParseMoved(entry.value).status());
    }));
    return ForEachEntry(store_, TableKey(Table::kDestroyAt), [&](const KvEntry& entry) -> Status {
      const auto key = ParseDestroyAtKey(entry.key);
      if (!key.ok()) return FoundUseless(std::string(key.status().message()), entry.key);
      return CheckUnused(entry.key, key->sequence, ParseDestroyAt(entry.value).status());
    });
  }

  Status CheckNext(CounterId counter, uint64_t used) {
    uint64_t next = 1;
    auto stored = store_.Get(CounterKey(counter));
    if (stored.ok()) {
      ASSIGN_OR_RETURN(next, ParseNumber(*stored));
    }
    if (used < next) return OkStatus();
    KvBatch fix;
    fix.Put(CounterKey(counter), EncodeNumber(used + 1));
    return Found(absl::StrFormat("counter %d stands at %d although %d is in use", static_cast<int>(counter),
                                 next, used),
                 std::move(fix));
  }

  Status CheckCounters() {
    RETURN_IF_ERROR(CheckNext(CounterId::kFidSequence, max_fid_sequence_));
    RETURN_IF_ERROR(CheckNext(CounterId::kObjectSequence, max_object_sequence_));
    RETURN_IF_ERROR(CheckNext(CounterId::kSession, max_session_));
    int64_t sum = 0, first = 0;
    RETURN_IF_ERROR(ForEachEntry(store_, TableKey(Table::kInodeCount), [&](const KvEntry& entry) -> Status {
      ASSIGN_OR_RETURN(uint64_t value, ParseNumber(entry.value));
      sum += static_cast<int64_t>(value);
      if (entry.key == InodeCountKey(0)) first = static_cast<int64_t>(value);
      return OkStatus();
    }));
    int64_t real = static_cast<int64_t>(seen_.size());
    if (sum == real) return OkStatus();
    KvBatch fix;
    fix.Put(InodeCountKey(0), EncodeNumber(static_cast<uint64_t>(first + real - sum)));
    return Found(absl::StrFormat("%d inodes are counted, there are %d", sum, real), std::move(fix));
  }

  KvStore& store_;
  const bool repair_;
  CheckReport report_;
  std::vector<KvBatch> fixes_;  // of the step under way
  Superblock superblock_;
  absl::flat_hash_map<Fid, Seen> seen_;
  absl::flat_hash_map<Fid, std::vector<std::pair<Fid, uint64_t>>> secondary_;
  absl::flat_hash_set<uint64_t> used_sequences_;
  uint64_t max_fid_sequence_ = 0;
  uint64_t max_object_sequence_ = 0;
  uint64_t max_session_ = 0;
};

}  // namespace

Task<StatusOr<CheckReport>> CheckMdt(KvStore& store, bool repair) {
  MdtChecker checker(store, repair);
  co_return co_await checker.Run();
}

}  // namespace nacre::mds
