// The filesystem as it must be: a plain tree in memory that every operation is compared with.
//
// Operations that run at once hold locks here on what they touch, so that the model knows the answer of each
// one exactly. An operation whose client dies stays pending: it may or may not have happened, until Settle
// has looked.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/status.h"
#include "proto/types.pb.h"
#include "tests/sim/file_model.h"

namespace nacre::sim {

using InodeId = uint64_t;  // the model's own
inline constexpr InodeId kRootInode = 1;

// When something was last changed, as exactly as an observer can know: between the start and the end of the
// operation.
struct TimeBounds {
  WallTime low, high;
  bool known = true;
};

struct ModelInode {
  InodeId id = 0;
  Fid fid;
  uint32_t mode = 0;  // with the type
  uint32_t uid = 0, gid = 0;
  uint32_t nlink = 1;
  TimeBounds mtime;
  // The client that may hold its times back: neither an fdatasync nor the age of its writes says that they
  // are told.
  std::optional<int> times_held_by;
  std::string target;  // of a symlink
  std::map<std::string, std::string> xattrs;
  std::map<std::string, InodeId> children;
  InodeId parent = 0;   // of a directory
  bool synced = false;  // an fsync was answered: no loss of power takes it away
  // How many answers there had been (Workload::done) when a rename began by which the file took another one's
  // place, and whose rename it was: bytes that this client had written before belong to the name.
  std::optional<uint64_t> replaced_behind;
  int replaced_by = 0;
  int open = 0;  // handles: an unlinked inode lives until the last one goes

  bool directory() const;
  bool regular() const;
};

// A part of the namespace or of a file that an operation holds while it runs.
struct Claim {
  std::string resource;
  bool exclusive = true;
  uint64_t begin = 0, end = ~uint64_t{0};  // of a file's bytes
};

Claim NameClaim(InodeId directory, const std::string& name);
Claim DirectoryClaim(InodeId directory, bool exclusive);  // its attributes and which names it has
Claim AttributeClaim(InodeId inode, bool exclusive);
Claim BytesClaim(InodeId inode, bool exclusive);

// An inode as a walk over the mounted filesystem has found it.
struct ObservedInode {
  proto::Attr attr;
  std::string target;
  std::map<std::string, std::string> xattrs;
  std::map<std::string, Fid> children;
  Bytes bytes;
};
using ObservedTree = std::map<Fid, ObservedInode>;

// A change of the tree whose answer has not come (tests/sim/unanswered.h). `happened` tells from what was
// found afterwards whether it did; `apply` does it in the model.
struct Unanswered {
  std::function<bool(const ObservedTree&)> happened;
  std::function<void(const ObservedTree&)> apply;
};

class Model {
 public:
  Model();

  ModelInode& inode(InodeId id) { return inodes_.at(id); }
  FileModel& file(InodeId id) { return files_[id]; }
  bool Exists(InodeId id) const { return inodes_.contains(id); }
  const std::map<InodeId, ModelInode>& inodes() const { return inodes_; }
  std::optional<InodeId> Child(InodeId directory, const std::string& name) const;
  // Whether `below` is `above` or lies beneath it.
  bool IsWithin(InodeId below, InodeId above) const;

  // Changes of the tree, inside of what Change is given. std::out_of_range: what they need is not there, or
  // the name that they make is.
  InodeId NewId() { return next_++; }
  void Add(InodeId id, InodeId parent, const std::string& name, uint32_t mode, Fid fid);
  // It was made by an operation that was answered, however much of that a crash takes back: no other has made
  // it.
  void NoteMade(Fid fid) { made_.insert(fid); }
  bool WasMade(Fid fid) const { return made_.contains(fid); }
  void Remove(InodeId parent, const std::string& name);
  void Link(InodeId inode, InodeId parent, const std::string& name);
  // `behind`: how many answers there had been when the client asked for the rename (Workload::done).
  void Rename(InodeId parent, const std::string& name, InodeId new_parent, const std::string& new_name,
              bool exchange, int client, uint64_t behind);

  // A change of the tree has been acknowledged. `position`: the client has answered it before the MDS had
  // done it, as this one of its changes (client::Seen::early_answered); 0: the MDS has done it. `operation`:
  // whose claims say what it touches.
  void Change(uint64_t operation, int client, uint64_t position, std::function<void()> change);
  // The MDS has done this client's early changes up to that one: its crash takes none of them any more.
  void EarlyDone(int client, uint64_t position);

  void Opened(InodeId id) { ++inode(id).open; }
  void Closed(InodeId id);

  // One client of several may be evicted. Changes that it has answered early, and the MDS has not done, may
  // be lost then, and the others go on without it: until Settle nobody begins anything that meets it, and
  // what has begun already is not compared (Doubtful).
  void Doubt(int client);
  bool Doubtful(uint64_t operation) const { return doubtful_.contains(operation); }
  // This client has answered a write to the file early.
  void WroteEarly(int client, InodeId file);

  // All or nothing, without waiting.
  bool Take(uint64_t operation, std::vector<Claim> claims);
  void Release(uint64_t operation) { claims_.erase(operation); }

  // A change of the tree that has begun, when the client had been answered early up to its change `after`:
  // the MDS does it behind those. Operations are numbered in the order in which they began.
  void Begin(uint64_t operation, int client, uint64_t after, Unanswered change) {
    pending_[operation] = {client, after, std::move(change)};
  }
  void End(uint64_t operation) { pending_.erase(operation); }

  // The client may lose its session and go on in another one: what it has begun may be done there although
  // what was answered early before is lost.
  void MayGoOnWithout(int client);

  // A change of the tree has been acknowledged (one operation at a time only): remembered, so that a loss of
  // power may go back to it.
  void Remember(Duration now);
  // From now on every state of the tree that the MDS was in is remembered, too, for Losses::names_after.
  void RememberSteps() { remembers_steps_ = true; }

  // Files are moved all the time (FileModel::MayHaveMoved).
  void LetFilesMove() { files_move_ = true; }

  struct Losses {
    std::function<bool(const FileChange&)> may_be_lost;
    // A truncation to nothing that the client holds back until there are new bytes (FileModel::Settle).
    std::function<bool(const FileChange&)> may_wait;
    // A file that has replaced another one by rename has what was written to it before, or the rename has not
    // happened: holds for the crash of a client, not for a loss of power.
    bool replaced_whole = false;
    bool early = false;  // changes answered early may be gone, the newest of each client first
    // Changes of the tree acknowledged later than this may be gone, the newest first: in the order in which
    // they were answered, or in that of the MDS, which does later what was answered early. Only if Remember
    // was told of all.
    std::optional<Duration> names_after;
    // The MDS alone has lost power, and its clients have repeated what it had not answered: what it had
    // answered later than `names_after` may be gone, the newest first, while what a client had answered early
    // and had no answer for is there if it is possible without
    // (docs/decisions/0022-metadata-write-behind.md).
    bool repeated = false;
  };
  // After a crash, with nothing running: decides each pending operation, then compares. The first difference,
  // or empty.
  std::string Settle(const ObservedTree& tree, const Losses& losses);

  std::string PathOf(InodeId id) const;

 private:
  using Inodes = std::map<InodeId, ModelInode>;

  struct EarlyChange {
    int client = 0;
    uint64_t position = 0;
    std::function<void()> change;
    std::vector<Claim> claims;  // what it touches
  };

  struct Pending {
    int client = 0;
    uint64_t after = 0;
    Unanswered change;
  };

  void SetEntry(InodeId parent, const std::string& name, InodeId child);
  void DropIfGone(InodeId id);
  bool Try(const std::function<void()>& change);
  bool OnSettled(const std::function<void()>& change);
  void Keep(std::vector<Claim> claims);
  bool SettleBehind(const std::function<void()>& change, std::optional<int> client);
  void LoseEarly(const std::map<uint64_t, Pending>& pending, const ObservedTree& tree, std::string* wrong);
  std::string CompareWith(const std::map<uint64_t, Pending>& pending,
                          const std::map<int, uint64_t>& lost_from, const ObservedTree& tree);
  void GoBackTo(Inodes inodes);
  bool GoesBack(const ObservedTree& tree, const Losses& losses);
  std::string CompareTree(const ObservedTree& tree) const;
  std::string CompareInode(const ModelInode& inode, const ObservedInode& found) const;

  Inodes inodes_;
  Inodes settled_;                      // without what is in early_
  std::deque<EarlyChange> early_;       // in the order of their answers; the MDS does each client's in order
  std::map<InodeId, FileModel> files_;  // of unlinked ones too: a loss of power may bring them back
  std::deque<std::pair<Duration, Inodes>> history_;  // the tree from then on, until the next
  bool remembers_steps_ = false;
  bool files_move_ = false;
  // settled_ from then on, until the next; no time: since the last Remember.
  std::deque<std::pair<std::optional<Duration>, Inodes>> steps_;
  std::map<uint64_t, std::vector<Claim>> claims_;
  std::set<int> doubted_;               // clients
  std::set<uint64_t> doubtful_;         // operations
  uint64_t last_doubt_ = ~uint64_t{0};  // claims of doubts are numbered downwards
  std::map<uint64_t, Pending> pending_;
  std::set<Fid> made_;
  InodeId next_ = kRootInode + 1;
};

}  // namespace nacre::sim
