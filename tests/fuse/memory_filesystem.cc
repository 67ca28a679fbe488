#include "tests/fuse/memory_filesystem.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <absl/strings/str_split.h>

#include <cerrno>
#include <cstring>

#include "rpc/convert.h"

namespace nacre::client {
namespace {

void SetNow(proto::Time* time) { *time = ToProto(RealClock().Wall()); }
bool IsDirectory(const NodePtr& node) { return S_ISDIR(node->attr.mode()); }
Status NoSuch(const std::string& name) { return ErrnoError(ENOENT, name + ": no such file"); }

bool Overlap(const proto::LockRange& a, const proto::LockRange& b) {
  return FromProto(a.fid()) == FromProto(b.fid()) && a.flock() == b.flock() && a.start() <= b.end() &&
         b.start() <= a.end();
}

}  // namespace

MemoryFileSystem::MemoryFileSystem(Executor executor) : executor_(std::move(executor)) {
  root_ = std::make_shared<MemoryNode>();
  *root_->attr.mutable_fid() = ToProto(kRootFid);
  *root_->attr.mutable_parent() = ToProto(kRootFid);
  root_->attr.set_mode(S_IFDIR | 0755);
  root_->attr.set_nlink(2);
  Touch(root_);
  SetNow(root_->attr.mutable_atime());
  nodes_[kRootFid] = root_;
}

void MemoryFileSystem::SetMayCache(bool may) {
  std::lock_guard lock(mutex_);
  may_cache_ = may;
}

void MemoryFileSystem::SetValid(Duration valid) {
  std::lock_guard lock(mutex_);
  valid_ = valid;
}

NodePtr MemoryFileSystem::Find(const std::string& path) {
  std::lock_guard lock(mutex_);
  NodePtr node = root_;
  std::vector<std::string> names = absl::StrSplit(path, '/', absl::SkipEmpty());
  for (const std::string& name : names) {
    auto it = node->children.find(name);
    if (it == node->children.end()) return nullptr;
    node = it->second;
  }
  return node;
}

Fid MemoryFileSystem::FidOf(const std::string& path) { return FromProto(Find(path)->attr.fid()); }

void MemoryFileSystem::Overwrite(const std::string& path, std::string data) {
  NodePtr node = Find(path);
  std::lock_guard lock(mutex_);
  node->data = std::move(data);
  node->attr.set_size(node->data.size());
  Touch(node);
}

uint64_t MemoryFileSystem::open_handles() {
  std::lock_guard lock(mutex_);
  return open_handles_;
}

uint64_t MemoryFileSystem::reads() {
  std::lock_guard lock(mutex_);
  return reads_;
}

uint64_t MemoryFileSystem::xattr_requests() {
  std::lock_guard lock(mutex_);
  return xattr_requests_;
}

Caller MemoryFileSystem::last_caller() {
  std::lock_guard lock(mutex_);
  return last_caller_;
}

void MemoryFileSystem::HoldReads(bool hold) {
  std::list<OneShot<Unit>> freed;
  {
    std::lock_guard lock(mutex_);
    hold_ = hold;
    if (!hold) freed.swap(held_);
  }
  for (OneShot<Unit>& one : freed) one.Set({});
}

NodePtr MemoryFileSystem::NodeOf(const Fid& fid) {
  auto it = nodes_.find(fid);
  return it == nodes_.end() ? nullptr : it->second.lock();
}

StatusOr<NodePtr> MemoryFileSystem::DirectoryOf(const Fid& fid) {
  NodePtr node = NodeOf(fid);
  if (node == nullptr) return ErrnoError(ESTALE, fid.ToString());
  if (!IsDirectory(node)) return ErrnoError(ENOTDIR, fid.ToString());
  return node;
}

Known MemoryFileSystem::KnownOf(const NodePtr& node) const { return {node->attr, valid_}; }

void MemoryFileSystem::Touch(const NodePtr& node) {
  SetNow(node->attr.mutable_mtime());
  *node->attr.mutable_ctime() = node->attr.mtime();
  node->attr.set_blocks((node->data.size() + 511) / 512);
}

NodePtr MemoryFileSystem::NewNode(const Caller& caller, uint32_t mode) {
  auto node = std::make_shared<MemoryNode>();
  // Every other one with a FID that is no node number by itself.
  uint32_t object = next_object_++;
  Fid fid{object % 2 == 0 ? 7 : uint64_t{1} << 40, object, object % 3};
  *node->attr.mutable_fid() = ToProto(fid);
  node->attr.set_mode(mode);
  node->attr.set_uid(caller.uid);
  node->attr.set_gid(caller.gid);
  node->attr.set_nlink(S_ISDIR(mode) ? 2 : 1);
  Touch(node);
  *node->attr.mutable_atime() = node->attr.mtime();
  nodes_[fid] = node;
  last_caller_ = caller;
  return node;
}

StatusOr<NodePtr> MemoryFileSystem::Insert(const Caller& caller, const Fid& parent, const std::string& name,
                                           uint32_t mode) {
  if (name.size() > 255) return ErrnoError(ENAMETOOLONG, name);
  ASSIGN_OR_RETURN(NodePtr directory, DirectoryOf(parent));
  if (directory->children.contains(name)) return ErrnoError(EEXIST, name);
  NodePtr node = NewNode(caller, mode);
  *node->attr.mutable_parent() = ToProto(parent);
  directory->children[name] = node;
  if (S_ISDIR(mode)) directory->attr.set_nlink(directory->attr.nlink() + 1);
  Touch(directory);
  return node;
}

void MemoryFileSystem::Drop(const NodePtr& directory, const std::string& name) {
  auto it = directory->children.find(name);
  NodePtr node = it->second;
  directory->children.erase(it);
  if (IsDirectory(node)) {
    node->attr.set_nlink(0);
    directory->attr.set_nlink(directory->attr.nlink() - 1);
  } else {
    node->attr.set_nlink(node->attr.nlink() - 1);
  }
  SetNow(node->attr.mutable_ctime());
  Touch(directory);
}

Task<Status> MemoryFileSystem::Unmount() { co_return OkStatus(); }

void MemoryFileSystem::SetInvalidation(Invalidation invalidation) { invalidation_ = std::move(invalidation); }

Task<StatusOr<Known>> MemoryFileSystem::Lookup(const Caller&, Fid parent, std::string name,
                                               Duration* negative_valid) {
  std::lock_guard lock(mutex_);
  *negative_valid = valid_;
  CO_ASSIGN_OR_RETURN(NodePtr directory, DirectoryOf(parent));
  auto it = directory->children.find(name);
  if (it == directory->children.end()) co_return NoSuch(name);
  co_return KnownOf(it->second);
}

Task<StatusOr<Known>> MemoryFileSystem::Getattr(const Caller&, Fid fid, HandlePtr handle) {
  std::lock_guard lock(mutex_);
  NodePtr node = handle != nullptr ? MemoryHandle::Of(handle).node : NodeOf(fid);
  if (node == nullptr) co_return ErrnoError(ESTALE, fid.ToString());
  co_return KnownOf(node);
}

Task<StatusOr<Known>> MemoryFileSystem::Setattr(const Caller&, Fid fid, SetAttributes set, HandlePtr handle) {
  std::lock_guard lock(mutex_);
  NodePtr node = handle != nullptr ? MemoryHandle::Of(handle).node : NodeOf(fid);
  if (node == nullptr) co_return ErrnoError(ESTALE, fid.ToString());
  if (set.mode) node->attr.set_mode((node->attr.mode() & S_IFMT) | *set.mode);
  if (set.uid) node->attr.set_uid(*set.uid);
  if (set.gid) node->attr.set_gid(*set.gid);
  if (set.size) {
    node->data.resize(*set.size);
    node->attr.set_size(*set.size);
    Touch(node);
  }
  if (set.atime_now) SetNow(node->attr.mutable_atime());
  if (set.mtime_now) SetNow(node->attr.mutable_mtime());
  if (set.atime) *node->attr.mutable_atime() = ToProto(*set.atime);
  if (set.mtime) *node->attr.mutable_mtime() = ToProto(*set.mtime);
  SetNow(node->attr.mutable_ctime());
  co_return KnownOf(node);
}

Task<StatusOr<Known>> MemoryFileSystem::Mknod(const Caller& caller, Fid parent, std::string name,
                                              uint32_t mode, uint64_t rdev) {
  std::lock_guard lock(mutex_);
  CO_ASSIGN_OR_RETURN(NodePtr node, Insert(caller, parent, name, mode));
  node->attr.set_rdev(rdev);
  co_return KnownOf(node);
}

Task<StatusOr<Known>> MemoryFileSystem::Symlink(const Caller& caller, Fid parent, std::string name,
                                                std::string target) {
  std::lock_guard lock(mutex_);
  CO_ASSIGN_OR_RETURN(NodePtr node, Insert(caller, parent, name, S_IFLNK | 0777));
  node->data = std::move(target);
  node->attr.set_size(node->data.size());
  co_return KnownOf(node);
}

Task<StatusOr<std::string>> MemoryFileSystem::Readlink(const Caller&, Fid fid) {
  std::lock_guard lock(mutex_);
  NodePtr node = NodeOf(fid);
  if (node == nullptr) co_return ErrnoError(ESTALE, fid.ToString());
  co_return node->data;
}

Task<Status> MemoryFileSystem::Unlink(const Caller&, Fid parent, std::string name) {
  std::lock_guard lock(mutex_);
  CO_ASSIGN_OR_RETURN(NodePtr directory, DirectoryOf(parent));
  auto it = directory->children.find(name);
  if (it == directory->children.end()) co_return NoSuch(name);
  if (IsDirectory(it->second)) co_return ErrnoError(EISDIR, name);
  Drop(directory, name);
  co_return OkStatus();
}

Task<Status> MemoryFileSystem::Rmdir(const Caller&, Fid parent, std::string name) {
  std::lock_guard lock(mutex_);
  CO_ASSIGN_OR_RETURN(NodePtr directory, DirectoryOf(parent));
  auto it = directory->children.find(name);
  if (it == directory->children.end()) co_return NoSuch(name);
  if (!IsDirectory(it->second)) co_return ErrnoError(ENOTDIR, name);
  if (!it->second->children.empty()) co_return ErrnoError(ENOTEMPTY, name);
  Drop(directory, name);
  co_return OkStatus();
}

Task<Status> MemoryFileSystem::Rename(const Caller&, Fid parent, std::string name, Fid new_parent,
                                      std::string new_name, uint32_t flags) {
  std::lock_guard lock(mutex_);
  CO_ASSIGN_OR_RETURN(NodePtr from, DirectoryOf(parent));
  CO_ASSIGN_OR_RETURN(NodePtr to, DirectoryOf(new_parent));
  auto source = from->children.find(name);
  if (source == from->children.end()) co_return NoSuch(name);
  auto target = to->children.find(new_name);
  bool exists = target != to->children.end();
  if (flags & RENAME_EXCHANGE) {
    if (!exists) co_return NoSuch(new_name);
    std::swap(source->second, target->second);
    co_return OkStatus();
  }
  if (exists && (flags & RENAME_NOREPLACE)) co_return ErrnoError(EEXIST, new_name);
  if (exists && target->second == source->second) co_return OkStatus();
  if (exists && !target->second->children.empty()) co_return ErrnoError(ENOTEMPTY, new_name);
  if (exists) Drop(to, new_name);
  NodePtr node = source->second;
  from->children.erase(name);
  to->children[new_name] = node;
  *node->attr.mutable_parent() = ToProto(new_parent);
  Touch(from);
  Touch(to);
  co_return OkStatus();
}

Task<StatusOr<Known>> MemoryFileSystem::Link(const Caller&, Fid fid, Fid parent, std::string name) {
  std::lock_guard lock(mutex_);
  NodePtr node = NodeOf(fid);
  if (node == nullptr) co_return ErrnoError(ESTALE, fid.ToString());
  CO_ASSIGN_OR_RETURN(NodePtr directory, DirectoryOf(parent));
  if (directory->children.contains(name)) co_return ErrnoError(EEXIST, name);
  directory->children[name] = node;
  node->attr.set_nlink(node->attr.nlink() + 1);
  co_return KnownOf(node);
}

Task<StatusOr<proto::StatfsReply>> MemoryFileSystem::Statfs(const Caller&) {
  proto::StatfsReply reply;
  reply.set_total_bytes(1 << 30);
  reply.set_free_bytes(1 << 29);
  reply.set_available_bytes(1 << 28);
  reply.set_inodes(12);
  reply.set_inodes_free(1000);
  co_return reply;
}

Task<StatusOr<HandlePtr>> MemoryFileSystem::Opendir(const Caller&, Fid fid) {
  std::lock_guard lock(mutex_);
  CO_ASSIGN_OR_RETURN(NodePtr node, DirectoryOf(fid));
  ++open_handles_;
  co_return MemoryHandle::Make(node, O_RDONLY | O_DIRECTORY);
}

// Cookies are positions: good enough for directories that do not change while they are listed.
Task<StatusOr<std::vector<DirEntry>>> MemoryFileSystem::Readdir(const Caller&, HandlePtr directory,
                                                                uint64_t cookie, size_t limit, bool plus) {
  std::lock_guard lock(mutex_);
  std::vector<DirEntry> entries;
  uint64_t position = 0;
  for (const auto& [name, node] : MemoryHandle::Of(directory).node->children) {
    if (++position <= cookie) continue;
    if (entries.size() == limit) break;
    DirEntry entry;
    entry.name = name;
    entry.fid = FromProto(node->attr.fid());
    entry.type = IFTODT(node->attr.mode());
    entry.cookie = position;
    if (plus) entry.known = KnownOf(node);
    entries.push_back(std::move(entry));
  }
  co_return entries;
}

Task<StatusOr<Created>> MemoryFileSystem::Create(const Caller& caller, Fid parent, std::string name,
                                                 uint32_t mode, int flags) {
  std::lock_guard lock(mutex_);
  CO_ASSIGN_OR_RETURN(NodePtr node, Insert(caller, parent, name, S_IFREG | (mode & 07777)));
  ++open_handles_;
  co_return Created{KnownOf(node), MemoryHandle::Make(node, flags)};
}

Task<StatusOr<HandlePtr>> MemoryFileSystem::Open(const Caller&, Fid fid, int flags) {
  std::lock_guard lock(mutex_);
  NodePtr node = NodeOf(fid);
  if (node == nullptr) co_return ErrnoError(ESTALE, fid.ToString());
  if (flags & O_TRUNC) {
    node->data.clear();
    node->attr.set_size(0);
    Touch(node);
  }
  ++open_handles_;
  co_return MemoryHandle::Make(node, flags);
}

Task<Status> MemoryFileSystem::Release(HandlePtr) {
  std::lock_guard lock(mutex_);
  --open_handles_;
  co_return OkStatus();
}

Task<Status> MemoryFileSystem::Flush(HandlePtr handle, uint64_t lock_owner) {
  std::lock_guard lock(mutex_);
  locks_.remove_if([&](const proto::LockRange& held) {
    return !held.flock() && held.owner() == lock_owner &&
           FromProto(held.fid()) == FromProto(MemoryHandle::Of(handle).node->attr.fid());
  });
  GrantWaiters();
  co_return OkStatus();
}

Task<Status> MemoryFileSystem::Fsync(HandlePtr, bool) { co_return OkStatus(); }

// Resumes on another thread first, as an answer from a server would.
Task<StatusOr<ReadResult>> MemoryFileSystem::Read(HandlePtr handle, uint64_t offset, size_t size) {
  co_await asio::post(executor_, asio::use_awaitable);
  OneShot<Unit> turn;
  bool wait = false;
  {
    std::lock_guard lock(mutex_);
    ++reads_;
    wait = hold_;
    if (wait) held_.push_back(turn);
  }
  if (wait) co_await turn.Wait();
  std::lock_guard lock(mutex_);
  const std::string& data = MemoryHandle::Of(handle).node->data;
  ReadResult result;
  if (offset >= data.size()) co_return result;
  auto copy = std::make_shared<std::string>(data.substr(offset, size));
  std::span<const std::byte> bytes = std::as_bytes(std::span(*copy));
  size_t half = bytes.size() / 2;  // in two pieces
  result.pieces = {bytes.first(half), bytes.subspan(half)};
  result.size = bytes.size();
  result.keep = copy;
  co_return result;
}

// Suspends before it looks at the data, which must therefore stay in place.
Task<StatusOr<size_t>> MemoryFileSystem::Write(HandlePtr handle, uint64_t offset,
                                               std::span<const std::span<const std::byte>> pieces) {
  co_await asio::post(executor_, asio::use_awaitable);
  std::lock_guard lock(mutex_);
  std::string& data = MemoryHandle::Of(handle).node->data;
  if (MemoryHandle::Of(handle).flags & O_APPEND) offset = data.size();
  size_t written = 0;
  for (std::span<const std::byte> piece : pieces) {
    if (data.size() < offset + piece.size()) data.resize(offset + piece.size());
    std::memcpy(data.data() + offset, piece.data(), piece.size());
    offset += piece.size();
    written += piece.size();
  }
  MemoryHandle::Of(handle).node->attr.set_size(data.size());
  Touch(MemoryHandle::Of(handle).node);
  co_return written;
}

Task<Status> MemoryFileSystem::Fallocate(HandlePtr handle, int mode, uint64_t offset, uint64_t length) {
  std::lock_guard lock(mutex_);
  std::string& data = MemoryHandle::Of(handle).node->data;
  if (mode & FALLOC_FL_PUNCH_HOLE) {
    for (uint64_t i = offset; i < std::min<uint64_t>(offset + length, data.size()); ++i) data[i] = 0;
  } else if (mode == 0 && data.size() < offset + length) {
    data.resize(offset + length);
    MemoryHandle::Of(handle).node->attr.set_size(data.size());
  } else if (mode != 0 && mode != FALLOC_FL_KEEP_SIZE) {
    co_return ErrnoError(EOPNOTSUPP, "fallocate mode");
  }
  Touch(MemoryHandle::Of(handle).node);
  co_return OkStatus();
}

Task<StatusOr<uint64_t>> MemoryFileSystem::Seek(HandlePtr handle, uint64_t offset, int whence) {
  std::lock_guard lock(mutex_);
  const std::string& data = MemoryHandle::Of(handle).node->data;
  if (offset >= data.size()) co_return ErrnoError(ENXIO, "behind the end");
  if (whence == SEEK_HOLE) {
    size_t at = data.find('\0', offset);
    co_return at == std::string::npos ? data.size() : at;
  }
  while (offset < data.size() && data[offset] == 0) ++offset;
  if (offset == data.size()) co_return ErrnoError(ENXIO, "no data");
  co_return offset;
}

Task<StatusOr<size_t>> MemoryFileSystem::CopyRange(HandlePtr from, uint64_t from_offset, HandlePtr to,
                                                   uint64_t to_offset, size_t size) {
  std::lock_guard lock(mutex_);
  if (from_offset >= MemoryHandle::Of(from).node->data.size()) co_return size_t{0};
  std::string copied = MemoryHandle::Of(from).node->data.substr(from_offset, size);
  std::string& data = MemoryHandle::Of(to).node->data;
  if (data.size() < to_offset + copied.size()) data.resize(to_offset + copied.size());
  data.replace(to_offset, copied.size(), copied);
  MemoryHandle::Of(to).node->attr.set_size(data.size());
  Touch(MemoryHandle::Of(to).node);
  co_return copied.size();
}

Task<StatusOr<std::string>> MemoryFileSystem::GetXattr(const Caller&, Fid fid, std::string name) {
  std::lock_guard lock(mutex_);
  ++xattr_requests_;
  NodePtr node = NodeOf(fid);
  if (node == nullptr) co_return ErrnoError(ESTALE, fid.ToString());
  auto it = node->xattrs.find(name);
  if (it == node->xattrs.end()) co_return ErrnoError(ENODATA, name);
  co_return it->second;
}

Task<Status> MemoryFileSystem::SetXattr(const Caller&, Fid fid, std::string name, std::string value,
                                        int flags) {
  std::lock_guard lock(mutex_);
  NodePtr node = NodeOf(fid);
  if (node == nullptr) co_return ErrnoError(ESTALE, fid.ToString());
  bool exists = node->xattrs.contains(name);
  if (exists && (flags & XATTR_CREATE)) co_return ErrnoError(EEXIST, name);
  if (!exists && (flags & XATTR_REPLACE)) co_return ErrnoError(ENODATA, name);
  node->xattrs[name] = std::move(value);
  co_return OkStatus();
}

Task<StatusOr<std::vector<std::string>>> MemoryFileSystem::ListXattr(const Caller&, Fid fid) {
  std::lock_guard lock(mutex_);
  NodePtr node = NodeOf(fid);
  if (node == nullptr) co_return ErrnoError(ESTALE, fid.ToString());
  std::vector<std::string> names;
  for (const auto& [name, value] : node->xattrs) names.push_back(name);
  co_return names;
}

Task<Status> MemoryFileSystem::RemoveXattr(const Caller&, Fid fid, std::string name) {
  std::lock_guard lock(mutex_);
  NodePtr node = NodeOf(fid);
  if (node == nullptr) co_return ErrnoError(ESTALE, fid.ToString());
  if (node->xattrs.erase(name) == 0) co_return ErrnoError(ENODATA, name);
  co_return OkStatus();
}

const proto::LockRange* MemoryFileSystem::Conflict(const proto::LockRange& lock) const {
  for (const proto::LockRange& held : locks_) {
    if (held.owner() == lock.owner() || !Overlap(held, lock)) continue;
    if (held.type() == F_WRLCK || lock.type() == F_WRLCK) return &held;
  }
  return nullptr;
}

// Whole ranges only: an owner's overlapping locks are replaced, not split.
void MemoryFileSystem::Apply(const proto::LockRange& lock) {
  locks_.remove_if(
      [&](const proto::LockRange& held) { return held.owner() == lock.owner() && Overlap(held, lock); });
  if (lock.type() != F_UNLCK) locks_.push_back(lock);
}

void MemoryFileSystem::GrantWaiters() {
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (Conflict(it->lock) != nullptr) {
      ++it;
      continue;
    }
    Apply(it->lock);
    it->turn.Set(OkStatus());
    it = waiters_.erase(it);
  }
}

Task<StatusOr<proto::LockRange>> MemoryFileSystem::GetLock(HandlePtr, proto::LockRange lock) {
  std::lock_guard guard(mutex_);
  if (const proto::LockRange* conflict = Conflict(lock)) co_return *conflict;
  lock.set_type(F_UNLCK);
  co_return lock;
}

Task<Status> MemoryFileSystem::SetLock(HandlePtr, proto::LockRange lock, bool wait, uint64_t wait_id) {
  OneShot<Status> turn;
  {
    std::lock_guard guard(mutex_);
    if (lock.type() == F_UNLCK || Conflict(lock) == nullptr) {
      Apply(lock);
      GrantWaiters();
      co_return OkStatus();
    }
    if (!wait) co_return ErrnoError(EAGAIN, "locked");
    waiters_.push_back({lock, wait_id, turn});
  }
  co_return co_await turn.Wait();
}

void MemoryFileSystem::CancelLock(HandlePtr, uint64_t wait_id) {
  std::lock_guard guard(mutex_);
  waiters_.remove_if([&](const Waiter& waiter) {
    if (waiter.id != wait_id) return false;
    waiter.turn.Set(ErrnoError(EINTR, "interrupted"));
    return true;
  });
}

bool MemoryFileSystem::MayCachePages(const HandlePtr&) {
  std::lock_guard lock(mutex_);
  return may_cache_;
}

Seen MemoryFileSystem::Look() { return {}; }

}  // namespace nacre::client
