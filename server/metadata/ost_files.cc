#include "server/metadata/ost_files.h"

#include <sys/stat.h>

#include <algorithm>

#include "common/log.h"

namespace nacre::mds {
namespace {

constexpr size_t kInodesAtOnce = 4096;
constexpr Duration kTurnOfOthers = std::chrono::milliseconds(1);

}  // namespace

bool HasObjectsOn(const Inode& inode, OstIndex ost) {
  if (!S_ISREG(inode.mode) || inode.inline_data) return false;
  return std::ranges::any_of(inode.layout.components, [ost](const LayoutComponent& component) {
    return std::ranges::find(component.groups, ost) != component.groups.end();
  });
}

StatusOr<FilesFound> FindFiles(Mds& mds, const Fid& after, absl::FunctionRef<bool(const Inode&)> wanted) {
  const std::string prefix = TableKey(Table::kInode);
  const std::string from = after ? FidKey(Table::kInode, after) + '\0' : prefix;
  ASSIGN_OR_RETURN(std::vector<KvEntry> page, mds.tables->Scan(from, PrefixEnd(prefix), kInodesAtOnce));
  FilesFound found;
  found.last = after;
  found.end = page.size() < kInodesAtOnce;
  for (const KvEntry& entry : page) {
    ByteReader key(std::string_view(entry.key).substr(1));
    found.last = key.ReadFid();
    auto inode = ParseInode(found.last, entry.value);
    if (!inode.ok()) {
      LogWarning("where %s has objects cannot be read: %s; run nacre doctor", found.last.ToString(),
                 std::string(inode.status().message()));
      continue;
    }
    if (wanted(*inode)) found.files.push_back(found.last);
  }
  return found;
}

StatusOr<FilesFound> FindFilesOn(Mds& mds, OstIndex ost, const Fid& after) {
  return FindFiles(mds, after, [ost](const Inode& inode) { return HasObjectsOn(inode, ost); });
}

Task<StatusOr<uint64_t>> CountFilesOn(MdsPtr mds, OstIndex ost) {
  uint64_t count = 0;
  for (Fid after;;) {
    CO_ASSIGN_OR_RETURN(FilesFound found, FindFilesOn(*mds, ost, after));
    count += found.files.size();
    if (found.end) co_return count;
    after = found.last;
    co_await mds->env.clock.Sleep(kTurnOfOthers);
  }
}

}  // namespace nacre::mds
