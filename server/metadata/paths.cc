#include "server/metadata/paths.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <cerrno>

#include "common/bytes.h"
#include "server/metadata/keys.h"

namespace nacre::mds {
namespace {

constexpr int kMaxDepth = 10'000;  // a damaged MDT may have a circle

StatusOr<std::string> PathOfLink(Tables& tables, Fid parent, uint64_t cookie) {
  std::string path;
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    ASSIGN_OR_RETURN(std::string name, tables.NameOf(parent, cookie));
    path = absl::StrCat("/", name, path);
    if (parent == kRootFid) return path;
    ASSIGN_OR_RETURN(InodePtr directory, tables.GetInode(parent));
    parent = directory->parent;
    cookie = directory->parent_cookie;
  }
  return absl::DataLossError(
      absl::StrFormat("directory %s lies in itself: run nacre doctor", parent.ToString()));
}

}  // namespace

StatusOr<std::vector<std::string>> PathsOf(Tables& tables, const Fid& fid) {
  if (fid == kRootFid) return std::vector<std::string>{"/"};
  StatusOr<InodePtr> inode = tables.GetInode(fid);
  if (absl::IsNotFound(inode.status()))
    return ErrnoError(ENOENT, absl::StrFormat("no file has the FID %s", fid.ToString()));
  RETURN_IF_ERROR(inode.status());
  if ((*inode)->nlink == 0) {
    return ErrnoError(ENOENT,
                      absl::StrFormat("%s has no name any more; somebody has it open", fid.ToString()));
  }
  std::vector<std::string> paths;
  ASSIGN_OR_RETURN(std::string primary, PathOfLink(tables, (*inode)->parent, (*inode)->parent_cookie));
  paths.push_back(std::move(primary));
  const std::string prefix = FidKey(Table::kReverseLink, fid);
  ASSIGN_OR_RETURN(auto links, tables.Scan(prefix, PrefixEnd(prefix), kMaxPaths - 1));
  for (const KvEntry& link : links) {
    ByteReader key(std::string_view(link.key).substr(prefix.size()));
    const Fid parent = key.ReadFid();
    const uint64_t cookie = key.Big<uint64_t>();
    ASSIGN_OR_RETURN(std::string path, PathOfLink(tables, parent, cookie));
    paths.push_back(std::move(path));
  }
  return paths;
}

std::string PathRemark(Tables& tables, const Fid& fid) {
  StatusOr<std::vector<std::string>> paths = PathsOf(tables, fid);
  return paths.ok() ? absl::StrCat(" (", paths->front(), ")") : "";
}

}  // namespace nacre::mds
