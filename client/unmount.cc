// Unmounting: in bounded time, whichever server is away. Data that is held back is sent if that is possible
// within Options::unmount_patience, and reported as lost if not; with nothing held back unmounting waits for
// no server.
#include <absl/container/flat_hash_map.h>
#include <absl/strings/str_join.h>

#include <cerrno>

#include "client/core.h"
#include "client/within.h"
#include "common/log.h"

namespace nacre::client {
namespace {

// For closes and the like, which the end of the session does as well.
constexpr Duration kBackgroundPatience = 2s;

}  // namespace

Task<Status> Core::Unmount() {
  dirty_.Stop();
  entrance_.Stop();
  Clock& clock = environment_.clock;
  auto sent = std::make_shared<Status>();
  OneShot<Unit> ended;
  const bool all = co_await EndsWithin(clock, options_.unmount_patience, LastSend(sent, ended));
  Status result;
  if (all) {
    result = *sent;
    (void)co_await EndsWithin(clock, kBackgroundPatience, background_.Drain());
    co_await targets_->ReturnGrants(session_->epoch());
  } else {
    result = TellLoss();
  }
  co_await session_->End(true);
  targets_->Close();  // whoever still waits for a server has an answer now
  co_await ended.Wait();
  co_await background_.Drain();
  co_return result;
}

Task<void> Core::LastSend(std::shared_ptr<Status> sent, OneShot<Unit> ended) {
  co_await entrance_.gate().Close();
  entrance_.gate().Open();
  *sent = co_await write_behind_->SendEverything();
  co_await queue_->Drain();
  ended.Set({});
}

// The files are named in the log, some of them in the error. OK if it is only operations that still wait.
Status Core::TellLoss() {
  constexpr size_t kMostLogged = 100, kMostNamed = 3;
  std::vector<Fid> files;
  for (const InodePtr& inode : inodes_->All()) {
    if (HoldsBack(*inode)) files.push_back(inode->fid);
  }
  const uint64_t names = queue_->pushed() - queue_->answered();
  if (files.empty() && names == 0) {
    LogWarning("unmount: operations that still wait for a server end with an error");
    return OkStatus();
  }
  std::vector<std::string> paths = PathsOf(files);
  for (size_t i = 0; i < std::min(paths.size(), kMostLogged); ++i)
    LogError("unmount: what was written last to %s is lost", paths[i]);
  const std::string more = paths.size() > kMostNamed ? ", …" : "";
  paths.resize(std::min(paths.size(), kMostNamed));
  return ErrnoError(
      EIO, absl::StrFormat("a server has not answered for %d s; lost are the last changes of %d files (%d "
                           "bytes of data not written back) and %d changes of names and attributes%s%s%s",
                           options_.unmount_patience / 1s, files.size(), cache_->dirty_bytes(), names,
                           paths.empty() ? "" : ": ", absl::StrJoin(paths, ", "), more));
}

// From the filesystem's root, as far as the names are known here; else the FID.
std::vector<std::string> Core::PathsOf(const std::vector<Fid>& files) {
  struct Place {
    Fid directory;
    std::string name;
  };
  absl::flat_hash_map<Fid, Place> places;
  for (const InodePtr& inode : inodes_->All()) {
    std::lock_guard lock(inode->mutex);
    for (const auto& [name, fid] : inode->names) {
      if (fid) places.insert_or_assign(fid, Place{inode->fid, name});
    }
  }
  std::vector<std::string> paths;
  for (const Fid& file : files) {
    std::string path;
    Fid at = file;
    for (size_t depth = 0; at != kRootFid && depth <= places.size(); ++depth) {
      auto place = places.find(at);
      if (place == places.end()) break;
      path = "/" + place->second.name + path;
      at = place->second.directory;
    }
    if (path.empty()) {
      path = file.ToString();
    } else if (at != kRootFid) {
      path = at.ToString() + path;
    }
    paths.push_back(std::move(path));
  }
  return paths;
}

}  // namespace nacre::client
