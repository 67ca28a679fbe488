// The operations on names and attributes.

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "rpc/convert.h"
#include "tests/sim/unanswered.h"
#include "tests/sim/workload.h"

namespace nacre::sim {
namespace {

constexpr size_t kMaxDirectories = 6;
constexpr size_t kMaxInodes = 40;
constexpr size_t kMaxHandles = 4;

constexpr uint64_t kVisits = 60;  // one in so many operations is done away from home

// One operation's surroundings, and what it may choose from.
struct Context {
  Workload* workload;
  ClientState* client;
  Model& model;
  Random& random;
  client::FileSystem& filesystem;

  explicit Context(Workload* workload, ClientState* client)
      : workload(workload),
        client(client),
        model(workload->model()),
        random(workload->random()),
        filesystem(*client->filesystem) {}

  template <typename Wanted>
  std::optional<InodeId> PickInode(Wanted wanted) const {
    std::vector<InodeId> candidates;
    for (const auto& [id, inode] : model.inodes()) {
      if (inode.nlink > 0 && wanted(inode)) candidates.push_back(id);
    }
    if (candidates.empty()) return std::nullopt;
    if (workload->options().homes > 1 && !random.OneIn(kVisits)) {
      const std::set<InodeId> home = workload->Home(client->index);
      std::vector<InodeId> here;
      std::ranges::set_intersection(candidates, home, std::back_inserter(here));
      if (!here.empty()) candidates = std::move(here);
    }
    return candidates[random.Below(candidates.size())];
  }
  InodeId PickDirectory() const {
    return *PickInode([](const ModelInode& inode) { return inode.directory(); });
  }
  // As a kernel does before it changes what a name means, unless it knows that from before.
  Task<void> LookFirst(InodeId directory, std::string name) const {
    if (random.OneIn(4)) co_return;
    const Fid parent = FidOf(directory);
    (void)co_await client->kernel->Lookup(parent, name);
  }
  std::string PickName() const { return std::string(1, static_cast<char>('a' + random.Below(7))); }
  Fid FidOf(InodeId id) const { return model.inode(id).fid; }
  bool Crowded() const { return model.inodes().size() >= kMaxInodes; }
};

Task<bool> Make(Context at, uint32_t type) {
  if (at.Crowded()) co_return false;
  const InodeId directory = at.PickDirectory();
  const std::string name = at.PickName();
  if (type == S_IFDIR) {
    size_t directories = 0;
    for (const auto& [id, inode] : at.model.inodes()) directories += inode.directory();
    if (directories >= kMaxDirectories) co_return false;
  }
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {NameClaim(directory, name), DirectoryClaim(directory, false)};
  if (!operation.Take(std::move(claims))) co_return false;
  co_await at.LookFirst(directory, name);
  const uint32_t mode = type | (at.random.OneIn(2) ? 0644 : 0750);
  const std::string target = type == S_IFLNK ? absl::StrFormat("to/%d", operation.id()) : "";
  const uint32_t want_mode = type == S_IFLNK ? S_IFLNK | 0777 : mode;
  const int error = at.model.Child(directory, name) ? EEXIST : 0;
  const std::string what = absl::StrFormat("make 0%o %s/%s", want_mode, at.model.PathOf(directory), name);
  operation.Pending(UnansweredMake(at.model, directory, name, want_mode, target));
  const Fid parent = at.FidOf(directory);
  StatusOr<client::Known> made;
  if (type == S_IFLNK) {
    made = co_await at.filesystem.Symlink(Root(), parent, name, target);
  } else {
    made = co_await at.filesystem.Mknod(Root(), parent, name, mode, 0);
  }
  if (made.ok()) at.client->kernel->Made(parent, name, *made);
  if (!operation.Expect(what, made.status(), error) || error != 0) co_return true;
  const Fid fid = FromProto(made->attr.fid());
  const InodeId id = at.model.NewId();
  at.model.NoteMade(fid);
  operation.Change([&model = at.model, id, directory, name, want_mode, fid, target] {
    model.Add(id, directory, name, want_mode, fid);
    model.inode(id).target = target;
  });
  co_return true;
}

Task<bool> Create(Context at) {
  if (at.Crowded() || at.client->files.size() >= kMaxHandles) co_return false;
  const InodeId directory = at.PickDirectory();
  const std::string name = at.PickName();
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {NameClaim(directory, name), DirectoryClaim(directory, false)};
  if (!operation.Take(std::move(claims))) co_return false;
  co_await at.LookFirst(directory, name);
  const int error = at.model.Child(directory, name) ? EEXIST : 0;
  constexpr uint32_t mode = S_IFREG | 0640;
  const int flags =
      O_RDWR | O_CREAT | O_EXCL | (at.random.OneIn(4) ? O_APPEND : 0) | (at.random.OneIn(6) ? O_DIRECT : 0);
  const std::string what = absl::StrFormat("create %s/%s", at.model.PathOf(directory), name);
  operation.Pending(UnansweredMake(at.model, directory, name, mode, ""));
  const Fid parent = at.FidOf(directory);
  auto made = co_await at.filesystem.Create(Root(), parent, name, mode, flags);
  if (made.ok()) at.client->kernel->Made(parent, name, made->known);
  if (!operation.Expect(what, made.status(), error) || error != 0) co_return true;
  const InodeId id = at.model.NewId();
  const Fid fid = FromProto(made->known.attr.fid());
  at.model.NoteMade(fid);
  operation.Change(
      [&model = at.model, id, directory, name, fid] { model.Add(id, directory, name, mode, fid); });
  at.model.Opened(id);
  at.workload->NoteMaker(id, at.client->index);
  at.client->files.push_back({id, flags, made->handle});
  co_await at.client->kernel->Opened(made->handle, FromProto(made->known.attr.fid()));
  co_return true;
}

Task<bool> Remove(Context at) {
  const InodeId directory = at.PickDirectory();
  const std::string name = at.PickName();
  const auto child = at.model.Child(directory, name);
  const bool is_directory = child && at.model.inode(*child).directory();
  const bool as_directory = at.random.OneIn(8) ? !is_directory : is_directory;
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {NameClaim(directory, name), DirectoryClaim(directory, false)};
  if (child) claims.push_back(AttributeClaim(*child, true));
  if (is_directory) claims.push_back(DirectoryClaim(*child, true));
  if (is_directory) claims.push_back({"tree"});
  if (!operation.Take(std::move(claims))) co_return false;
  co_await at.LookFirst(directory, name);
  int error = 0;
  if (!child) {
    error = ENOENT;
  } else if (as_directory != is_directory) {
    error = as_directory ? ENOTDIR : EISDIR;
  } else if (is_directory && !at.model.inode(*child).children.empty()) {
    error = ENOTEMPTY;
  }
  const std::string what =
      absl::StrFormat("%s %s/%s", as_directory ? "rmdir" : "unlink", at.model.PathOf(directory), name);
  const Fid parent = at.FidOf(directory);
  operation.Pending(UnansweredRemove(at.model, directory, name));
  Status status;
  if (as_directory) {
    status = co_await at.filesystem.Rmdir(Root(), parent, name);
  } else {
    status = co_await at.filesystem.Unlink(Root(), parent, name);
  }
  if (status.ok() && child) at.client->kernel->Removed(parent, name, at.FidOf(*child));
  if (operation.Expect(what, status, error) && error == 0) {
    operation.Change([&model = at.model, directory, name] { model.Remove(directory, name); });
  }
  co_return true;
}

struct Name {
  InodeId directory;
  std::string name;
};

// Every name of a regular file of which this is true.
template <typename Wanted>
std::vector<Name> NamesOf(Model& model, Wanted wanted) {
  std::vector<Name> names;
  for (const auto& [directory, inode] : model.inodes()) {
    for (const auto& [name, child] : inode.children) {
      if (model.inode(child).regular() && wanted(child)) names.push_back({directory, name});
    }
  }
  return names;
}

// Any two names; or, as programs save what they have written, that of a file that is open here and another
// file's.
std::pair<Name, Name> PickRename(Context& at) {
  const InodeId directory = at.PickDirectory();
  const InodeId other = at.random.OneIn(2) ? directory : at.PickDirectory();
  std::string name = at.PickName(), new_name = at.PickName();
  std::pair<Name, Name> any = {{directory, std::move(name)}, {other, std::move(new_name)}};
  const std::vector<OpenFile>& open = at.client->files;
  if (!at.workload->options().saves || open.empty() || at.random.OneIn(2)) return any;
  const InodeId written = open[at.random.Below(open.size())].inode;
  const auto sources = NamesOf(at.model, [&](InodeId id) { return id == written; });
  const auto targets = NamesOf(at.model, [&](InodeId id) { return id != written; });
  if (sources.empty() || targets.empty()) return any;
  return {sources[at.random.Below(sources.size())], targets[at.random.Below(targets.size())]};
}

Task<bool> Rename(Context at) {
  const auto [old_place, new_place] = PickRename(at);
  const InodeId from = old_place.directory, to = new_place.directory;
  const std::string name = old_place.name, new_name = new_place.name;
  const auto source = at.model.Child(from, name), target = at.model.Child(to, new_name);
  const uint32_t choice = static_cast<uint32_t>(at.random.Below(6));
  const uint32_t flags = choice == 0 ? RENAME_NOREPLACE : choice == 1 ? RENAME_EXCHANGE : 0;
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {NameClaim(from, name), NameClaim(to, new_name), DirectoryClaim(from, false),
                               DirectoryClaim(to, false)};
  for (const auto& id : {source, target}) {
    if (!id) continue;
    claims.push_back(AttributeClaim(*id, true));
    if (!at.model.inode(*id).directory()) continue;
    claims.push_back(DirectoryClaim(*id, false));
    claims.push_back({"tree"});
  }
  if (target && at.model.inode(*target).directory()) claims.push_back(DirectoryClaim(*target, true));
  if (!operation.Take(std::move(claims))) co_return false;
  co_await at.LookFirst(from, name);
  co_await at.LookFirst(to, new_name);
  const int error = RenameError(at.model, from, name, to, new_name, flags);
  const bool exchange = (flags & RENAME_EXCHANGE) != 0, nothing = error == 0 && source == target;
  const std::string what = absl::StrFormat("rename %s/%s -> %s/%s flags %d", at.model.PathOf(from), name,
                                           at.model.PathOf(to), new_name, flags);
  const Fid from_fid = at.FidOf(from), to_fid = at.FidOf(to);
  const int client = at.client->index;
  // A client that may have been evicted by now may have lost with that what it had written before.
  const uint64_t behind = at.client->failing ? 0 : at.workload->done();
  operation.Pending(UnansweredRename(at.model, from, name, to, new_name, flags, client, behind));
  Status status = co_await at.filesystem.Rename(Root(), from_fid, name, to_fid, new_name, flags);
  if (status.ok() && !nothing)
    at.client->kernel->Renamed(from_fid, name, to_fid, new_name, at.FidOf(target.value_or(from)), exchange);
  if (!operation.Expect(what, status, error) || error != 0 || nothing) co_return true;
  if (target) at.workload->NotePromise(Promise::kReplaced);
  operation.Change(
      [=, &model = at.model] { model.Rename(from, name, to, new_name, exchange, client, behind); });
  co_return true;
}

Task<bool> MakeLink(Context at) {
  const auto source = at.PickInode([](const ModelInode& inode) { return !inode.directory(); });
  if (!source) co_return false;
  const InodeId directory = at.PickDirectory();
  const std::string name = at.PickName();
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {NameClaim(directory, name), DirectoryClaim(directory, false),
                               AttributeClaim(*source, true)};
  if (!operation.Take(std::move(claims))) co_return false;
  co_await at.LookFirst(directory, name);
  const int error = at.model.Child(directory, name) ? EEXIST : 0;
  const std::string what =
      absl::StrFormat("link %s -> %s/%s", at.model.PathOf(*source), at.model.PathOf(directory), name);
  const Fid parent = at.FidOf(directory), fid = at.FidOf(*source);
  operation.Pending(UnansweredLink(at.model, *source, directory, name));
  auto linked = co_await at.filesystem.Link(Root(), fid, parent, name);
  if (linked.ok()) at.client->kernel->Made(parent, name, *linked);
  if (operation.Expect(what, linked.status(), error) && error == 0) {
    operation.Change([&model = at.model, id = *source, directory, name] { model.Link(id, directory, name); });
  }
  co_return true;
}

Task<bool> SetMode(Context at) {
  const auto id = at.PickInode([](const ModelInode& inode) { return !S_ISLNK(inode.mode); });
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {AttributeClaim(*id, true)};
  if (!operation.Take(std::move(claims))) co_return false;
  const Fid fid = at.FidOf(*id);
  client::SetAttributes set;
  const uint32_t mode =
      (at.model.inode(*id).mode & S_IFMT) | (0700 + static_cast<uint32_t>(at.random.Below(64)));
  const uint32_t uid = static_cast<uint32_t>(at.random.Below(3));
  set.mode = mode & 07777;
  set.uid = uid;
  const std::string what = absl::StrFormat("setattr %s 0%o uid %d", at.model.PathOf(*id), mode, uid);
  auto change = [&model = at.model, id = *id, mode, uid] {
    model.inode(id).mode = mode;
    model.inode(id).uid = uid;
  };
  auto happened = [fid, mode, uid](const ObservedTree& tree) {
    auto found = tree.find(fid);
    return found != tree.end() && found->second.attr.mode() == mode && found->second.attr.uid() == uid;
  };
  operation.Pending({happened, [change](const ObservedTree&) { change(); }});
  client::HandlePtr none;
  auto changed = co_await at.filesystem.Setattr(Root(), fid, set, none);
  if (changed.ok()) at.client->kernel->Learn(*changed);
  if (!operation.Expect(what, changed.status(), 0)) co_return true;
  operation.Change(change);
  if (changed->attr.mode() != mode || changed->attr.uid() != uid)
    operation.Wrong(what + " answers other attributes");
  co_return true;
}

Task<bool> Xattr(Context at) {
  const auto id = at.PickInode([](const ModelInode& inode) { return inode.regular() || inode.directory(); });
  Operation operation(*at.workload, *at.client);
  const uint64_t choice = at.random.Below(3);
  std::vector<Claim> claims = {AttributeClaim(*id, choice != 0)};
  if (!operation.Take(std::move(claims))) co_return false;
  const std::string name = at.random.OneIn(2) ? "user.x" : "user.y";
  const Fid fid = at.FidOf(*id);
  const auto& xattrs = at.model.inode(*id).xattrs;
  const int error = choice != 1 && !xattrs.contains(name) ? ENODATA : 0;
  if (choice == 0) {
    auto value = co_await at.filesystem.GetXattr(Root(), fid, name);
    if (!operation.Expect("getxattr " + at.model.PathOf(*id), value.status(), error) || error != 0)
      co_return true;
    if (*value != at.model.inode(*id).xattrs.at(name)) operation.Wrong("getxattr: another value");
    co_return true;
  }
  const std::string value = choice == 1 ? absl::StrFormat("v%d", operation.id()) : "";
  const std::string what =
      absl::StrFormat("%s %s %s", choice == 1 ? "setxattr" : "removexattr", at.model.PathOf(*id), name);
  auto change = [&model = at.model, id = *id, name, value] {
    if (value.empty()) {
      model.inode(id).xattrs.erase(name);
    } else {
      model.inode(id).xattrs[name] = value;
    }
  };
  auto happened = [fid, name, value](const ObservedTree& tree) {
    auto found = tree.find(fid);
    if (found == tree.end()) return false;
    auto place = found->second.xattrs.find(name);
    return place == found->second.xattrs.end() ? value.empty() : place->second == value;
  };
  if (error == 0) operation.Pending({happened, [change](const ObservedTree&) { change(); }});
  Status status;
  if (choice == 1) {
    status = co_await at.filesystem.SetXattr(Root(), fid, name, value, 0);
  } else {
    status = co_await at.filesystem.RemoveXattr(Root(), fid, name);
  }
  if (operation.Expect(what, status, error) && error == 0) operation.Change(change);
  co_return true;
}

Task<bool> Lookup(Context at) {
  const InodeId directory = at.PickDirectory();
  const std::string name = at.PickName();
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {NameClaim(directory, name), DirectoryClaim(directory, false)};
  if (!operation.Take(std::move(claims))) co_return false;
  const auto child = at.model.Child(directory, name);
  const std::string what = absl::StrFormat("lookup %s/%s", at.model.PathOf(directory), name);
  const Fid parent = at.FidOf(directory);
  auto found = co_await at.client->kernel->Lookup(parent, name);
  if (!operation.Expect(what, found.status(), child ? 0 : ENOENT) || !child) co_return true;
  if (FromProto(found->fid()) != at.FidOf(*child)) operation.Wrong(what + " finds another inode");
  co_return true;
}

Task<bool> Getattr(Context at) {
  const auto id = at.PickInode([](const ModelInode&) { return true; });
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {AttributeClaim(*id, false), BytesClaim(*id, false)};
  const bool directory = at.model.inode(*id).directory();
  if (directory) claims.push_back(DirectoryClaim(*id, true));
  if (!operation.Take(std::move(claims))) co_return false;
  const std::string what = "getattr " + at.model.PathOf(*id);
  const Fid fid = at.FidOf(*id);
  client::HandlePtr none;
  auto known = co_await at.client->kernel->Stat(none, fid);
  if (!operation.Expect(what, known.status(), 0)) co_return true;
  const ModelInode& inode = at.model.inode(*id);
  const proto::Attr& attr = *known;
  if (attr.mode() != inode.mode || attr.uid() != inode.uid || attr.nlink() != inode.nlink) {
    operation.Wrong(absl::StrFormat("%s: mode 0%o uid %d nlink %d instead of 0%o %d %d", what, attr.mode(),
                                    attr.uid(), attr.nlink(), inode.mode, inode.uid, inode.nlink));
  }
  const uint64_t size = directory ? inode.children.size() : at.model.file(*id).size();
  const bool visited = *id == kRootInode && at.workload->visited() && attr.size() == size + 1;
  if ((directory || inode.regular()) && attr.size() != size && !visited) {
    operation.Wrong(absl::StrFormat("%s: size %d instead of %d", what, attr.size(), size));
  }
  const WallTime mtime = FromProto(attr.mtime());
  if (inode.regular() && inode.mtime.known && (mtime < inode.mtime.low || mtime > inode.mtime.high)) {
    operation.Wrong(absl::StrFormat("%s: mtime %d.%09d, last changed between %d.%09d and %d.%09d", what,
                                    mtime.seconds, mtime.nanos, inode.mtime.low.seconds,
                                    inode.mtime.low.nanos, inode.mtime.high.seconds, inode.mtime.high.nanos));
  }
  co_return true;
}

Task<bool> Readdir(Context at) {
  const InodeId directory = at.PickDirectory();
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {DirectoryClaim(directory, true)};
  if (!operation.Take(std::move(claims))) co_return false;
  const std::string what = "readdir " + at.model.PathOf(directory);
  const Fid fid = at.FidOf(directory);
  auto found = co_await at.client->kernel->List(fid, at.random.OneIn(2));
  if (!operation.Expect(what, found.status(), 0)) co_return true;
  if (directory == kRootInode && at.workload->visited()) found->erase(std::string(kVisitorsName));
  std::map<std::string, Fid> want;
  for (const auto& [name, child] : at.model.inode(directory).children) want.emplace(name, at.FidOf(child));
  if (*found != want) {
    operation.Wrong(
        absl::StrFormat("%s: %d entries, or others, instead of %d", what, found->size(), want.size()));
  }
  co_return true;
}

Task<bool> Open(Context at) {
  if (at.client->files.size() >= kMaxHandles) co_return false;
  const auto id = at.PickInode([](const ModelInode& inode) { return inode.regular(); });
  if (!id) co_return false;
  const bool read_only = at.random.OneIn(4) || !at.workload->MayWrite(*id, at.client->index),
             empties = !read_only && at.random.OneIn(6);
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {AttributeClaim(*id, false)};
  if (empties) claims.push_back(BytesClaim(*id, true));
  if (!operation.Take(std::move(claims))) co_return false;
  const int flags = (read_only ? O_RDONLY : O_RDWR | (at.random.OneIn(4) ? O_APPEND : 0)) |
                    (at.random.OneIn(6) ? O_DIRECT : 0) | (empties ? O_TRUNC : 0);
  const std::string what = absl::StrFormat("open %s%s", at.model.PathOf(*id), empties ? " and empty it" : "");
  const Fid fid = at.FidOf(*id);
  World& world = at.workload->world();
  const WallTime start = world.clock().Wall();
  FileChange emptied;
  emptied.kind = FileChange::kTruncate;
  if (empties) BeginChange(*at.workload, *at.client, *id, operation, emptied);
  auto opened = co_await at.filesystem.Open(Root(), fid, flags);
  if (empties) co_await at.client->kernel->Changed(fid);
  if (!operation.Expect(what, opened.status(), 0)) co_return true;
  if (empties) EndChange(*at.workload, *at.client, *id, operation, start);
  at.model.Opened(*id);
  at.client->files.push_back({*id, flags & ~O_TRUNC, *opened});
  co_await at.client->kernel->Opened(*opened, fid);
  co_return true;
}

}  // namespace

Task<bool> ReadNames(Workload* workload, ClientState* client) {
  Context at(workload, client);
  return at.random.OneIn(2) ? Lookup(at) : at.random.OneIn(3) ? Readdir(at) : Getattr(at);
}

Task<bool> NamespaceOperation(Workload* workload, ClientState* client) {
  Context at(workload, client);
  switch (at.random.Below(20)) {
    case 0:
      return Make(at, S_IFDIR);
    case 1:
      return Make(at, S_IFLNK);
    case 2:
      return Make(at, S_IFREG);
    case 3:
    case 4:
    case 5:
      return Create(at);
    case 6:
    case 7:
      return Remove(at);
    case 8:
    case 9:
      return Rename(at);
    case 10:
      return MakeLink(at);
    case 11:
      return SetMode(at);
    case 12:
      return Xattr(at);
    case 13:
    case 14:
      return Lookup(at);
    case 15:
    case 16:
      return Getattr(at);
    case 17:
      return Readdir(at);
    default:
      return Open(at);
  }
}

}  // namespace nacre::sim
