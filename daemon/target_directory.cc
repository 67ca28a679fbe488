#include "daemon/target_directory.h"

#include <absl/strings/match.h>
#include <absl/strings/str_format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common/log.h"

namespace nacre {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kOthers = 0077;

const char* NameOf(TargetKind kind) { return kind == TargetKind::kMdt ? "MDT" : "OST"; }
const char* ProgramOf(TargetKind kind) { return kind == TargetKind::kMdt ? "nacre-mds" : "nacre-oss"; }

Status SystemError(const std::string& what, const std::string& path) {
  const int error = errno;
  return ErrnoError(error, absl::StrFormat("%s %s: %s", what, path, std::strerror(error)));
}

// Names that a filesystem or an earlier start leaves in a directory without a target.
bool IsNothing(const std::string& name) { return name == "lost+found" || absl::EndsWith(name, ".pid"); }

bool IsEmpty(const fs::path& directory) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (!IsNothing(entry.path().filename())) return false;
  }
  return true;
}

// Also one that has lost its CURRENT: opening it says what is wrong with it.
bool IsDatabase(const fs::path& directory) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    if (name == "CURRENT" || absl::StartsWith(name, "MANIFEST-") || absl::EndsWith(name, ".sst")) return true;
  }
  return false;
}

// Returns whether others had any right.
bool Close(const fs::path& path) {
  struct stat found;
  if (::lstat(path.c_str(), &found) != 0 || S_ISLNK(found.st_mode) || (found.st_mode & kOthers) == 0)
    return false;
  if (::chmod(path.c_str(), found.st_mode & ~kOthers & 07777) == 0) return true;
  LogWarning("%s can be reached by other users, and chmod fails: %s", path.string(), std::strerror(errno));
  return false;
}

// The directory first: once it is closed nobody new gets at what is in it.
void CloseAll(const std::string& directory) {
  std::error_code error;
  size_t closed = Close(fs::canonical(directory, error)) ? 1 : 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory, error)) {
    closed += Close(entry.path()) ? 1 : 0;
  }
  if (closed == 0) return;
  LogWarning("%s: %d files and directories could be reached by other users of this machine; now they cannot",
             directory, closed);
}

Status Foreign(TargetKind kind, const std::string& directory) {
  return ErrnoError(EEXIST,
                    absl::StrFormat("%s holds files, but no %s: name its directory, or an empty one for "
                                    "a new %s (after an interrupted --format: empty it)",
                                    directory, NameOf(kind), NameOf(kind)));
}

}  // namespace

TargetState LookAtTarget(TargetKind kind, const std::string& directory) {
  const fs::path database = kind == TargetKind::kMdt ? fs::path(directory) : fs::path(directory) / "meta";
  if (IsDatabase(database)) return TargetState::kThere;
  std::error_code error;
  const bool missing = !fs::exists(directory, error);
  if (missing) return TargetState::kNone;
  return fs::is_directory(directory, error) && IsEmpty(directory) ? TargetState::kNone
                                                                  : TargetState::kForeign;
}

void MakeFilesPrivate() { ::umask(kOthers); }

Status CheckTarget(TargetKind kind, const std::string& directory) {
  switch (LookAtTarget(kind, directory)) {
    case TargetState::kNone:
      return ErrnoError(
          ENOENT,
          absl::StrFormat("there is no %s in %s. Is its disk mounted? A new %s is made by: %s --format with "
                          "the same configuration",
                          NameOf(kind), directory, NameOf(kind), ProgramOf(kind)));
    case TargetState::kForeign:
      return Foreign(kind, directory);
    case TargetState::kThere:
      break;
  }
  if (kind == TargetKind::kOst && IsEmpty(fs::path(directory) / "data")) {
    return absl::DataLossError(absl::StrFormat(
        "the OST in %s has its metadata, but not its blocks: nothing is in %s/data. Is a disk not mounted?",
        directory, directory));
  }
  CloseAll(directory);
  return OkStatus();
}

Status MakeTargetDirectory(TargetKind kind, const std::string& directory) {
  if (LookAtTarget(kind, directory) != TargetState::kNone) return Foreign(kind, directory);
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return SystemError("cannot make the directory", directory);
  }
  CloseAll(directory);
  if (kind == TargetKind::kMdt) return OkStatus();
  for (const char* below : {"/meta", "/data"}) {
    const std::string path = directory + below;
    if (::mkdir(path.c_str(), 0700) != 0) return SystemError("cannot make the directory", path);
  }
  return OkStatus();
}

Status FillTarget(TargetKind kind, const std::string& directory, const std::function<Status()>& fill) {
  std::error_code error;
  const bool was_there = fs::exists(directory, error);
  RETURN_IF_ERROR(MakeTargetDirectory(kind, directory));
  Status status = fill();
  if (status.ok()) return status;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (!IsNothing(entry.path().filename())) fs::remove_all(entry.path(), error);
  }
  if (!was_there) fs::remove(directory, error);
  return status;
}

}  // namespace nacre
