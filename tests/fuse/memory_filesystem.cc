#include "tests/fuse/memory_filesystem.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <absl/strings/str_split.h>

#include <cerrno>
#include <future>

#include "rpc/convert.h"

namespace nacre::client {
namespace {

void SetNow(proto::Time* time) { *time = ToProto(RealClock().Wall()); }

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

void MemoryFileSystem::SetOvertaken(bool overtaken) {
  std::lock_guard lock(mutex_);
  overtaken_ = overtaken;
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
  const Fid fid = FromProto(node->attr.fid());
  {
    std::lock_guard lock(mutex_);
    node->data = std::move(data);
    node->attr.set_size(node->data.size());
    Touch(node);
    if (paged_.erase(fid) == 0) return;
  }
  Forget(fid);
}

void MemoryFileSystem::Forget(Fid fid) {
  std::promise<void> forgotten;
  Spawn(executor_, [](MemoryFileSystem* self, Fid fid, std::promise<void>* done) -> Task<void> {
    co_await self->invalidation_.data_and_attributes(fid, 0, UINT64_MAX);
    done->set_value();
  }(this, fid, &forgotten));
  forgotten.get_future().wait();
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

void MemoryFileSystem::Hold(bool* which, bool hold) {
  std::list<OneShot<Unit>> freed;
  {
    std::lock_guard lock(mutex_);
    *which = hold;
    for (auto it = held_.begin(); !hold && it != held_.end();) {
      if (it->first == which) freed.push_back(it->second);
      it = it->first == which ? held_.erase(it) : std::next(it);
    }
  }
  for (OneShot<Unit>& turn : freed) turn.Set({});
}

Task<void> MemoryFileSystem::WaitWhile(const bool* held) {
  OneShot<Unit> turn;
  {
    std::lock_guard lock(mutex_);
    if (!*held) co_return;
    held_.emplace_back(held, turn);
  }
  co_await turn.Wait();
}

size_t MemoryFileSystem::waiting() {
  std::lock_guard lock(mutex_);
  return held_.size();
}

NodePtr MemoryFileSystem::NodeOf(const Fid& fid) {
  auto it = nodes_.find(fid);
  return it == nodes_.end() ? nullptr : it->second.lock();
}

StatusOr<NodePtr> MemoryFileSystem::DirectoryOf(const Fid& fid) {
  NodePtr node = NodeOf(fid);
  if (node == nullptr) return ErrnoError(ESTALE, fid.ToString());
  if (!S_ISDIR(node->attr.mode())) return ErrnoError(ENOTDIR, fid.ToString());
  return node;
}

Known MemoryFileSystem::KnownOf(const NodePtr& node) const { return {node->attr, Until(), Until()}; }

Duration MemoryFileSystem::Until() const {
  return valid_ > Duration(0) ? RealClock().Now() + valid_ : Duration(0);
}

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
  if (S_ISDIR(node->attr.mode())) {
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

Task<StatusOr<proto::StatfsReply>> MemoryFileSystem::Statfs(const Caller&) {
  proto::StatfsReply reply;
  reply.set_total_bytes(1 << 30);
  reply.set_free_bytes(1 << 29);
  reply.set_available_bytes(1 << 28);
  reply.set_inodes(12);
  reply.set_inodes_free(1000);
  co_return reply;
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

KernelPages MemoryFileSystem::PagesFor(const HandlePtr& handle) {
  std::lock_guard lock(mutex_);
  const bool may = may_cache_ && (MemoryHandle::Of(handle).flags & O_DIRECT) == 0;
  return may ? KernelPages::kKept : KernelPages::kNone;
}

Task<StatusOr<LockedPages>> MemoryFileSystem::HoldPages(HandlePtr handle, uint64_t, size_t, PageUse) {
  std::lock_guard lock(mutex_);
  if (!may_cache_) paged_.insert(FromProto(MemoryHandle::Of(handle).node->attr.fid()));
  co_return LockedPages{};
}

bool MemoryFileSystem::MayHavePages(const HandlePtr& handle) {
  std::lock_guard lock(mutex_);
  return may_cache_ || paged_.contains(FromProto(MemoryHandle::Of(handle).node->attr.fid()));
}

bool MemoryFileSystem::IsCurrent(const proto::Attr&) {
  std::lock_guard lock(mutex_);
  return !overtaken_;
}

Seen MemoryFileSystem::Look() { return {}; }

}  // namespace nacre::client
