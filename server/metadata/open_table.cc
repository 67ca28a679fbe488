#include "server/metadata/open_table.h"

#include <algorithm>

namespace nacre::mds {

OpenTable::Count& OpenTable::CountFor(SessionId session, const Fid& fid) {
  sessions_[session].fids.insert(fid);
  return files_[fid][session];
}

void OpenTable::Open(SessionId session, const Fid& fid, bool write, uint64_t stream) {
  std::lock_guard lock(mutex_);
  auto it = sessions_.find(session);
  if (it != sessions_.end() && stream < it->second.replaced_by) return;
  Count& count = CountFor(session, fid);
  ++count.handles;
  if (write) ++count.writers;
}

void OpenTable::Hold(SessionId session, const Fid& fid) {
  std::lock_guard lock(mutex_);
  CountFor(session, fid).held = true;
}

void OpenTable::Set(SessionId session, const Handles& handles, uint64_t stream) {
  std::lock_guard lock(mutex_);
  SetLocked(session, handles);
  Files& files = sessions_[session];
  if (stream == files.replaced_by) return;  // no Replace will come
  if (std::exchange(files.set_by, stream) != stream) files.set.clear();
  files.set.insert(handles.fid);
}

void OpenTable::SetLocked(SessionId session, const Handles& handles) {
  if (handles.count == 0) return Forget(session, handles.fid);
  Count& count = CountFor(session, handles.fid);
  count.handles = handles.count;
  count.writers = handles.write ? handles.count : 0;
}

void OpenTable::Replace(SessionId session, const std::vector<Handles>& all, uint64_t stream) {
  std::lock_guard lock(mutex_);
  absl::flat_hash_set<Fid> set = std::move(sessions_[session].set);
  sessions_[session].set.clear();
  if (sessions_[session].set_by != stream) set.clear();
  for (const Fid& fid : FilesLocked(session)) {
    if (set.contains(fid)) continue;
    Count& count = files_[fid][session];
    count.handles = count.writers = 0;
    if (!count.held) Forget(session, fid);
  }
  sessions_[session].replaced_by = stream;
  for (const Handles& handles : all) SetLocked(session, handles);
}

void OpenTable::Close(SessionId session, const Fid& fid, uint32_t handles, bool write) {
  std::lock_guard lock(mutex_);
  auto file = files_.find(fid);
  if (file == files_.end()) return;
  auto it = file->second.find(session);
  if (it == file->second.end()) return;
  Count& count = it->second;
  if (handles == 0) return Forget(session, fid);
  count.handles -= std::min(count.handles, handles);
  if (write) count.writers -= std::min(count.writers, handles);
  if (count.handles == 0 && !count.held) Forget(session, fid);
}

void OpenTable::Forget(SessionId session, const Fid& fid) {
  auto file = files_.find(fid);
  if (file != files_.end()) {
    file->second.erase(session);
    if (file->second.empty()) files_.erase(file);
  }
  auto it = sessions_.find(session);
  if (it != sessions_.end()) it->second.fids.erase(fid);
}

bool OpenTable::IsOpen(const Fid& fid) const {
  std::lock_guard lock(mutex_);
  return files_.contains(fid);
}

bool OpenTable::IsSoleWriter(SessionId session, const Fid& fid) const {
  std::lock_guard lock(mutex_);
  auto it = files_.find(fid);
  return it == files_.end() || std::none_of(it->second.begin(), it->second.end(), [session](const auto& one) {
           return one.first != session && one.second.writers > 0;
         });
}

uint64_t OpenTable::CountOf(SessionId session) const {
  std::lock_guard lock(mutex_);
  auto it = sessions_.find(session);
  return it == sessions_.end() ? 0 : it->second.fids.size();
}

std::vector<Fid> OpenTable::FilesOf(SessionId session) const {
  std::lock_guard lock(mutex_);
  return FilesLocked(session);
}

std::vector<Fid> OpenTable::FilesLocked(SessionId session) const {
  auto it = sessions_.find(session);
  if (it == sessions_.end()) return {};
  std::vector<Fid> files(it->second.fids.begin(), it->second.fids.end());
  std::sort(files.begin(), files.end());
  return files;
}

void OpenTable::DropSession(SessionId session) {
  std::lock_guard lock(mutex_);
  for (const Fid& fid : FilesLocked(session)) Forget(session, fid);
  sessions_.erase(session);
}

}  // namespace nacre::mds
