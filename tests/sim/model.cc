#include "tests/sim/model.h"

#include <absl/strings/str_format.h>
#include <sys/stat.h>

#include <algorithm>
#include <stdexcept>

#include "rpc/convert.h"

namespace nacre::sim {

bool ModelInode::directory() const { return S_ISDIR(mode); }
bool ModelInode::regular() const { return S_ISREG(mode); }

Model::Model() {
  ModelInode& root = inodes_[kRootInode];
  root.id = root.parent = kRootInode;
  root.fid = kRootFid;
  root.mode = S_IFDIR | 0755;
  root.nlink = 2;
  root.mtime.known = false;
  settled_ = inodes_;
}

std::optional<InodeId> Model::Child(InodeId directory, const std::string& name) const {
  auto found = inodes_.find(directory);
  if (found == inodes_.end()) return std::nullopt;
  auto child = found->second.children.find(name);
  if (child == found->second.children.end()) return std::nullopt;
  return child->second;
}

bool Model::IsWithin(InodeId below, InodeId above) const {
  for (InodeId at = below;; at = inodes_.at(at).parent) {
    if (at == above) return true;
    if (at == kRootInode || !inodes_.contains(at)) return false;
  }
}

void Model::Change(uint64_t operation, int client, uint64_t position, std::function<void()> change) {
  const InodeId next = next_;
  change();
  if (position != 0) {
    std::vector<Claim> claims = claims_[operation];
    for (auto made = inodes_.rbegin(); made != inodes_.rend() && made->first + 1 >= next; ++made) {
      const InodeId id = made->first;
      for (const Claim& claim : {AttributeClaim(id, true), BytesClaim(id, true), DirectoryClaim(id, true)})
        claims.push_back(claim);
    }
    if (doubted_.contains(client)) Keep(claims);
    return early_.push_back({client, position, std::move(change), std::move(claims)});
  }
  if (OnSettled(change)) return;
  // The MDS has done it. If it builds on what was answered early, then the MDS has done that as well, and
  // only the news of it is still on its way. Else it is about an inode that has lost its last name.
  std::set<int> clients;
  for (const EarlyChange& early : early_) clients.insert(early.client);
  for (int of : clients) {
    if (SettleBehind(change, of)) return;
  }
  (void)SettleBehind(change, std::nullopt);
}

// Makes the change to what the MDS has done, behind as many of the early changes of one client, or of all, as
// it needs. False: that is not enough, and nothing is changed.
bool Model::SettleBehind(const std::function<void()>& change, std::optional<int> client) {
  const Inodes before = settled_;
  const size_t steps = steps_.size();
  std::deque<EarlyChange> left;
  for (auto early = early_.begin(); early != early_.end(); ++early) {
    if (client && early->client != *client) {
      left.push_back(*early);
      continue;
    }
    (void)OnSettled(early->change);
    if (!OnSettled(change)) continue;
    left.insert(left.end(), std::next(early), early_.end());
    early_ = std::move(left);
    return true;
  }
  settled_ = before;
  steps_.resize(steps);
  return false;
}

// One that builds on what another client had answered early before says that this is done, too.
void Model::EarlyDone(int client, uint64_t position) {
  for (;;) {
    auto done = std::find_if(early_.begin(), early_.end(), [&](const EarlyChange& early) {
      return early.client == client && early.position <= position;
    });
    if (done == early_.end()) return;
    const std::function<void()> change = std::move(done->change);
    std::deque<EarlyChange> later(std::next(done), early_.end());
    early_.erase(done, early_.end());
    if (!OnSettled(change)) (void)SettleBehind(change, std::nullopt);
    early_.insert(early_.end(), later.begin(), later.end());
  }
}

// False: it cannot be made to the tree as it is (not yet, or not any more). Then nothing is changed.
bool Model::Try(const std::function<void()>& change) {
  Inodes before = inodes_;
  try {
    change();
    return true;
  } catch (const std::out_of_range&) {
    inodes_ = std::move(before);
    return false;
  }
}

bool Model::OnSettled(const std::function<void()>& change) {
  std::swap(inodes_, settled_);
  const bool possible = Try(change);
  std::swap(inodes_, settled_);
  if (possible && remembers_steps_) steps_.emplace_back(std::nullopt, settled_);
  return possible;
}

// The name must be free.
void Model::SetEntry(InodeId parent, const std::string& name, InodeId child) {
  if (!inode(parent).children.emplace(name, child).second) throw std::out_of_range("there is such an entry");
}

void Model::Add(InodeId id, InodeId parent, const std::string& name, uint32_t mode, Fid fid) {
  ModelInode& made = inodes_[id];
  made.id = id;
  made.fid = fid;
  made.mode = mode;
  made.parent = parent;
  made.mtime.known = false;
  made.nlink = S_ISDIR(mode) ? 2 : 1;
  SetEntry(parent, name, id);
  if (S_ISDIR(mode)) ++inode(parent).nlink;
}

void Model::Remove(InodeId parent, const std::string& name) {
  const InodeId id = inode(parent).children.at(name);
  inode(parent).children.erase(name);
  if (inode(id).directory()) {
    --inode(parent).nlink;
    inode(id).nlink = 0;
  } else {
    --inode(id).nlink;
  }
  DropIfGone(id);
}

void Model::Link(InodeId id, InodeId parent, const std::string& name) {
  ++inode(id).nlink;
  SetEntry(parent, name, id);
}

void Model::Rename(InodeId parent, const std::string& name, InodeId new_parent, const std::string& new_name,
                   bool exchange, int client, uint64_t behind) {
  const InodeId id = inode(parent).children.at(name);
  const auto replaced = Child(new_parent, new_name);
  if (replaced == id) return;  // two names of one file: nothing happens
  auto move = [this](InodeId what, InodeId from, InodeId to) {
    if (!inode(what).directory() || from == to) return;
    --inode(from).nlink;
    ++inode(to).nlink;
    inode(what).parent = to;
  };
  if (exchange) {
    if (!replaced) throw std::out_of_range("nothing to exchange it with");
    inode(parent).children[name] = *replaced;
    inode(new_parent).children[new_name] = id;
    move(id, parent, new_parent);
    move(*replaced, new_parent, parent);
    return;
  }
  if (replaced && inode(*replaced).regular() && inode(id).regular()) {
    inode(id).replaced_behind = behind;
    inode(id).replaced_by = client;
  }
  if (replaced) Remove(new_parent, new_name);
  inode(parent).children.erase(name);
  inode(new_parent).children[new_name] = id;
  move(id, parent, new_parent);
}

void Model::Closed(InodeId id) {
  --inode(id).open;
  DropIfGone(id);
}

void Model::DropIfGone(InodeId id) {
  if (inode(id).nlink == 0 && inode(id).open == 0) inodes_.erase(id);
}

namespace {

bool Meet(const std::vector<Claim>& some, const std::vector<Claim>& others) {
  for (const Claim& one : some) {
    for (const Claim& other : others) {
      const bool meet = one.resource == other.resource && one.begin < other.end && other.begin < one.end;
      if (meet && (one.exclusive || other.exclusive)) return true;
    }
  }
  return false;
}

}  // namespace

Claim NameClaim(InodeId directory, const std::string& name) {
  return {absl::StrFormat("n%d/%s", directory, name)};
}
Claim DirectoryClaim(InodeId directory, bool exclusive) {
  return {absl::StrFormat("d%d", directory), exclusive};
}
Claim AttributeClaim(InodeId inode, bool exclusive) { return {absl::StrFormat("a%d", inode), exclusive}; }
Claim BytesClaim(InodeId inode, bool exclusive) { return {absl::StrFormat("f%d", inode), exclusive}; }

void Model::Doubt(int client) {
  doubted_.insert(client);
  for (const EarlyChange& early : early_) {
    if (early.client == client) Keep(early.claims);
  }
  for (const auto& [id, file] : files_) {
    if (file.MayMissSomethingOf(client)) Keep({AttributeClaim(id, true), BytesClaim(id, true)});
  }
  for (auto& [id, inode] : inodes_) {
    if (inode.times_held_by == client) inode.mtime.known = false;
  }
}

void Model::WroteEarly(int client, InodeId file) {
  if (doubted_.contains(client)) Keep({AttributeClaim(file, true), BytesClaim(file, true)});
}

// Claims without an end.
void Model::Keep(std::vector<Claim> claims) {
  for (const auto& [holder, held] : claims_) {
    if (Meet(claims, held)) doubtful_.insert(holder);
  }
  claims_.emplace(last_doubt_--, std::move(claims));
}

bool Model::Take(uint64_t operation, std::vector<Claim> claims) {
  for (const auto& [holder, held] : claims_) {
    if (Meet(claims, held)) return false;
  }
  claims_.emplace(operation, std::move(claims));
  return true;
}

std::string Model::PathOf(InodeId id) const {
  if (id == kRootInode) return "/";
  for (const auto& [parent, inode] : inodes_) {
    for (const auto& [name, child] : inode.children) {
      if (child != id) continue;
      return parent == kRootInode ? "/" + name : PathOf(parent) + "/" + name;
    }
  }
  return absl::StrFormat("(inode %d, unlinked)", id);
}

void Model::MayGoOnWithout(int client) {
  for (auto& [operation, pending] : pending_) {
    if (pending.client == client) pending.after = 0;
  }
}

void Model::Remember(Duration now) {
  history_.emplace_back(now, inodes_);
  while (history_.size() > 2 && history_[1].first < now - 10s) history_.pop_front();
  if (!remembers_steps_) return;
  if (steps_.empty()) steps_.emplace_back(now, settled_);
  for (auto step = steps_.rbegin(); step != steps_.rend() && !step->first; ++step) step->first = now;
  while (steps_.size() > 2 && *steps_[1].first < now - 10s) steps_.pop_front();
}

std::string Model::Settle(const ObservedTree& tree, const Losses& losses) {
  claims_.clear();
  doubted_.clear();
  const std::map<uint64_t, Pending> pending = std::exchange(pending_, {});
  std::string wrong = CompareWith(pending, {}, tree);
  for (const auto& [id, inode] : inodes_) {
    if (!inode.synced || inode.nlink == 0 || tree.contains(inode.fid)) continue;
    return absl::StrFormat("%s %s was fsynced and is gone", PathOf(id), inode.fid.ToString());
  }
  if (!wrong.empty() && losses.names_after && GoesBack(tree, losses)) wrong.clear();
  if (!wrong.empty() && losses.early) LoseEarly(pending, tree, &wrong);
  while (!wrong.empty() && losses.names_after && !history_.empty()) {
    GoBackTo(std::move(history_.back().second));
    const bool durable = history_.back().first <= *losses.names_after;
    history_.pop_back();
    const std::string older = CompareTree(tree);
    if (older.empty()) {
      wrong.clear();
      break;
    }
    wrong += "; before that: " + older;
    if (durable) break;
  }
  history_.clear();
  steps_.clear();
  early_.clear();
  if (!wrong.empty()) return wrong;
  settled_ = inodes_;
  for (const auto& [id, inode] : inodes_) NoteMade(inode.fid);
  for (auto& [id, inode] : inodes_) {
    if (!inode.regular() || inode.nlink == 0) continue;
    inode.mtime.known = false;
    const std::optional<uint64_t> behind =
        losses.replaced_whole ? inode.replaced_behind : std::optional<uint64_t>();
    auto unless_replaced = [behind,
                            by = inode.replaced_by](const std::function<bool(const FileChange&)>& allowed) {
      return [&allowed, behind, by](const FileChange& change) {
        const bool before = behind && change.client == by && change.acknowledged && change.answer <= *behind;
        return !before && allowed && allowed(change);
      };
    };
    if (files_move_) file(id).MayHaveMoved();
    wrong = file(id).Settle(tree.at(inode.fid).bytes, unless_replaced(losses.may_be_lost),
                            unless_replaced(losses.may_wait));
    inode.replaced_behind.reset();
    if (!wrong.empty()) return absl::StrFormat("%s %s: %s", PathOf(id), inode.fid.ToString(), wrong);
  }
  return {};
}

// Of what each client had answered early the newest may be gone, of all that many together. Tries few losses
// first; `wrong` is empty if one explains the tree, which is as it was then.
void Model::LoseEarly(const std::map<uint64_t, Pending>& pending, const ObservedTree& tree,
                      std::string* wrong) {
  constexpr int kMostTries = 3000;
  std::map<int, std::vector<uint64_t>> positions;  // of each client, in order
  for (const EarlyChange& early : early_) positions[early.client].push_back(early.position);
  std::vector<std::map<int, uint64_t>> losses = {{}};  // of one size: where each client's begins
  for (int tries = 0; !losses.empty();) {
    std::vector<std::map<int, uint64_t>> larger;
    for (const auto& before : losses) {
      for (const auto& [client, all] : positions) {
        std::map<int, uint64_t> lost_from = before;
        auto first = lost_from.find(client);
        const auto until =
            first == lost_from.end() ? all.end() : std::ranges::lower_bound(all, first->second);
        if (until == all.begin()) continue;
        lost_from[client] = *std::prev(until);
        if (std::ranges::find(larger, lost_from) == larger.end()) larger.push_back(std::move(lost_from));
      }
    }
    for (const auto& lost_from : larger) {
      if (++tries > kMostTries) return;
      inodes_ = settled_;
      for (const EarlyChange& early : early_) {
        auto first = lost_from.find(early.client);
        if (first == lost_from.end() || early.position < first->second) (void)Try(early.change);
      }
      GoBackTo(std::exchange(inodes_, {}));
      const std::string older = CompareWith(pending, lost_from, tree);
      if (older.empty()) return wrong->clear();
      if (tries == 1) *wrong += "; before that: " + older;
    }
    losses = std::move(larger);
  }
}

// Decides for each change that was not answered whether it has happened, then compares. It has not where that
// is impossible, whatever it looks like: what was found at its name is of others, and the comparison judges
// it. Nor if it came behind what its client has lost, which begins at `lost_from`.
std::string Model::CompareWith(const std::map<uint64_t, Pending>& pending,
                               const std::map<int, uint64_t>& lost_from, const ObservedTree& tree) {
  for (const auto& [operation, one] : pending) {
    const auto lost = lost_from.find(one.client);
    if (lost != lost_from.end() && lost->second <= one.after) continue;
    const Unanswered& change = one.change;
    if (change.happened(tree)) (void)Try([&change, &tree] { change.apply(tree); });
  }
  return CompareTree(tree);
}

// True: the tree is one of the last that the MDS was in. If clients have repeated what it had not answered:
// with everything done to it that is early_ and possible there.
bool Model::GoesBack(const ObservedTree& tree, const Losses& losses) {
  Inodes before = inodes_;
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    GoBackTo(step->second);
    for (const EarlyChange& early : early_) {
      if (losses.repeated) (void)Try(early.change);
    }
    if (CompareTree(tree).empty()) return true;
    if (step->first && *step->first <= *losses.names_after) break;
  }
  inodes_ = std::move(before);
  return false;
}

// Nobody has anything open then: a loss of power ends the clients too.
void Model::GoBackTo(Inodes inodes) {
  inodes_ = std::move(inodes);
  for (auto& [id, inode] : inodes_) inode.open = 0;
  std::erase_if(inodes_, [](const auto& entry) { return entry.second.nlink == 0; });
}

std::string Model::CompareTree(const ObservedTree& tree) const {
  size_t linked = 0;
  for (const auto& [id, inode] : inodes_) {
    if (inode.nlink == 0) continue;
    ++linked;
    auto found = tree.find(inode.fid);
    if (found == tree.end()) return absl::StrFormat("%s %s is not there", PathOf(id), inode.fid.ToString());
    std::string wrong = CompareInode(inode, found->second);
    if (!wrong.empty()) return absl::StrFormat("%s %s: %s", PathOf(id), inode.fid.ToString(), wrong);
  }
  if (linked == tree.size()) return {};
  for (const auto& [fid, found] : tree) {
    const bool known = std::any_of(inodes_.begin(), inodes_.end(),
                                   [&fid = fid](auto& entry) { return entry.second.fid == fid; });
    if (!known) return absl::StrFormat("%s is there and nobody has made it", fid.ToString());
  }
  return {};
}

std::string Model::CompareInode(const ModelInode& inode, const ObservedInode& found) const {
  const proto::Attr& attr = found.attr;
  if (attr.mode() != inode.mode) return absl::StrFormat("mode 0%o instead of 0%o", attr.mode(), inode.mode);
  if (attr.uid() != inode.uid || attr.gid() != inode.gid) {
    return absl::StrFormat("owner %d:%d instead of %d:%d", attr.uid(), attr.gid(), inode.uid, inode.gid);
  }
  if (attr.nlink() != inode.nlink)
    return absl::StrFormat("%d links instead of %d", attr.nlink(), inode.nlink);
  if (found.target != inode.target)
    return absl::StrFormat("target '%s' instead of '%s'", found.target, inode.target);
  if (found.xattrs != inode.xattrs) return "other extended attributes";
  if (inode.directory() && attr.size() != inode.children.size()) {
    return absl::StrFormat("a directory of size %d with %d entries", attr.size(), inode.children.size());
  }
  if (found.children.size() != inode.children.size()) {
    return absl::StrFormat("%d entries instead of %d", found.children.size(), inode.children.size());
  }
  for (const auto& [name, child] : inode.children) {
    auto entry = found.children.find(name);
    if (entry == found.children.end()) return absl::StrFormat("no entry %s", name);
    if (entry->second != inodes_.at(child).fid) {
      return absl::StrFormat("entry %s leads to %s instead of %s", name, entry->second.ToString(),
                             inodes_.at(child).fid.ToString());
    }
  }
  if (inode.regular() && attr.size() != found.bytes.size()) {
    return absl::StrFormat("size %d, but %d bytes could be read", attr.size(), found.bytes.size());
  }
  return {};
}

}  // namespace nacre::sim
