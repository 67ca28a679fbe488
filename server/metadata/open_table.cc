#include "server/metadata/open_table.h"

#include <algorithm>

namespace nacre::mds {

void OpenTable::Open(SessionId session, const Fid& fid, bool write) {
  std::lock_guard lock(mutex_);
  Count& count = files_[fid][session];
  ++count.handles;
  if (write) ++count.writers;
  sessions_[session].insert(fid);
}

void OpenTable::Hold(SessionId session, const Fid& fid) {
  std::lock_guard lock(mutex_);
  Count& count = files_[fid][session];
  count.handles = std::max(count.handles, uint32_t{1});
  sessions_[session].insert(fid);
}

void OpenTable::Set(SessionId session, const Fid& fid, uint32_t handles, bool write) {
  std::lock_guard lock(mutex_);
  if (handles == 0) return Forget(session, fid);
  files_[fid][session] = {handles, write ? handles : 0};
  sessions_[session].insert(fid);
}

void OpenTable::Close(SessionId session, const Fid& fid, uint32_t handles, bool write) {
  std::lock_guard lock(mutex_);
  auto file = files_.find(fid);
  if (file == files_.end()) return;
  auto it = file->second.find(session);
  if (it == file->second.end()) return;
  Count& count = it->second;
  if (handles == 0 || handles >= count.handles) return Forget(session, fid);
  count.handles -= handles;
  if (write) count.writers -= std::min(count.writers, handles);
}

void OpenTable::Forget(SessionId session, const Fid& fid) {
  auto file = files_.find(fid);
  if (file != files_.end()) {
    file->second.erase(session);
    if (file->second.empty()) files_.erase(file);
  }
  auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  it->second.erase(fid);
  if (it->second.empty()) sessions_.erase(it);
}

bool OpenTable::IsOpen(const Fid& fid) const {
  std::lock_guard lock(mutex_);
  return files_.contains(fid);
}

bool OpenTable::IsOpenFor(SessionId session, const Fid& fid) const {
  std::lock_guard lock(mutex_);
  auto file = files_.find(fid);
  return file != files_.end() && file->second.contains(session);
}

uint64_t OpenTable::CountOf(SessionId session) const {
  std::lock_guard lock(mutex_);
  auto it = sessions_.find(session);
  return it == sessions_.end() ? 0 : it->second.size();
}

std::vector<Fid> OpenTable::FilesOf(SessionId session) const {
  std::lock_guard lock(mutex_);
  auto it = sessions_.find(session);
  if (it == sessions_.end()) return {};
  std::vector<Fid> files(it->second.begin(), it->second.end());
  std::sort(files.begin(), files.end());
  return files;
}

void OpenTable::DropSession(SessionId session) {
  for (const Fid& fid : FilesOf(session)) {
    std::lock_guard lock(mutex_);
    Forget(session, fid);
  }
}

}  // namespace nacre::mds
