// MemoryFileSystem's names: entries, links and directories.
#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>

#include <cerrno>

#include "rpc/convert.h"
#include "tests/fuse/memory_filesystem.h"

namespace nacre::client {
namespace {

bool IsDirectory(const NodePtr& node) { return S_ISDIR(node->attr.mode()); }
Status NoSuch(const std::string& name) { return ErrnoError(ENOENT, name + ": no such file"); }

}  // namespace

Task<StatusOr<Known>> MemoryFileSystem::Lookup(const Caller&, Fid parent, std::string name,
                                               Duration* absent_until) {
  std::lock_guard lock(mutex_);
  *absent_until = Until();
  CO_ASSIGN_OR_RETURN(NodePtr directory, DirectoryOf(parent));
  auto it = directory->children.find(name);
  if (it == directory->children.end()) co_return NoSuch(name);
  co_return KnownOf(it->second);
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

}  // namespace nacre::client
