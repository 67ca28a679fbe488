#include "daemon/mdt_backup.h"

#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/runtime.h"
#include "common/units.h"
#include "daemon/target_directory.h"
#include "rpc/grpc_backup.h"
#include "server/kv/rocks_kv.h"

namespace nacre {
namespace {

namespace fs = std::filesystem;

Status FileError(const std::string& what, const std::string& path) {
  const int error = errno;
  return ErrnoError(error, absl::StrFormat("cannot %s %s: %s", what, path, std::strerror(error)));
}

std::string DirectoryOf(const std::string& file) {
  const std::string parent = fs::path(file).parent_path();
  return parent.empty() ? "." : parent;
}

Status CheckRoom(const std::string& directory, uint64_t bytes, const std::string& what) {
  struct statvfs disk;
  if (::statvfs(directory.c_str(), &disk) != 0) return FileError("look at the disk of", directory);
  const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
  if (free >= bytes) return OkStatus();
  return ErrnoError(ENOSPC, absl::StrFormat("%s takes about %s, and the disk of %s has %s free", what,
                                            HumanSize(bytes), directory, HumanSize(free)));
}

Status SyncDirectory(const std::string& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FileError("open", directory);
  const int result = ::fsync(fd);
  Status status = result == 0 ? OkStatus() : FileError("sync", directory);
  ::close(fd);
  return status;
}

// A file under another name until it is whole. Removes what is not published.
class NewFile {
 public:
  explicit NewFile(std::string path)
      : path_(std::move(path)), partial_(absl::StrFormat("%s.partial.%d", path_, ::getpid())) {}
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    if (!published_) ::unlink(partial_.c_str());
  }

  const std::string& partial() const { return partial_; }

  Status Open() {
    fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return fd_ >= 0 ? OkStatus() : FileError("make", partial_);
  }

  Status Write(std::string_view data) {
    while (!data.empty()) {
      const ssize_t written = ::write(fd_, data.data(), data.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return FileError("write", partial_);
      data.remove_prefix(static_cast<size_t>(written));
    }
    return OkStatus();
  }

  Status Sync() { return ::fsync(fd_) == 0 ? OkStatus() : FileError("sync", partial_); }

  // Replaces nothing: a file of that name that was made meanwhile stays, and this fails.
  Status Publish() {
    if (!RenameAsNew()) return FileError("make", path_);
    published_ = true;
    return SyncDirectory(DirectoryOf(path_));
  }

 private:
  // Filesystems without flags for a rename, such as NFS, have links, which replace nothing either. False:
  // errno says why not.
  bool RenameAsNew() {
    if (::renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) == 0) return true;
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) return false;
    if (::link(partial_.c_str(), path_.c_str()) != 0) return false;
    ::unlink(partial_.c_str());  // if this fails, it stays as a second name
    return true;
  }

  const std::string path_, partial_;
  int fd_ = -1;
  bool published_ = false;
};

Status Named(const std::string& file, const Status& status) {
  if (status.ok()) return status;
  return {status.code(), absl::StrFormat("%s: %s", file, std::string(status.message()))};
}

StatusOr<mds::Restored> Verify(const std::string& file, const WallTime& now) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return FileError("open", file);
  mds::BackupReader reader(in);
  auto found = mds::VerifyBackup(reader, now);
  RETURN_IF_ERROR(Named(file, found.status()));
  return found;
}

MdtBackupReport Report(const mds::Restored& found, uint64_t bytes) {
  return {found.header, found.entries, bytes};
}

Status CheckNothingThere(const std::string& directory) {
  switch (LookAtTarget(TargetKind::kMdt, directory)) {
    case TargetState::kNone:
      return OkStatus();
    case TargetState::kThere:
      return ErrnoError(
          EEXIST,
          absl::StrFormat("there is an MDT in %s: nothing is restored over one. Name an empty directory, "
                          "or move that MDT elsewhere first",
                          directory));
    case TargetState::kForeign:
      break;
  }
  return ErrnoError(
      EEXIST,
      absl::StrFormat("%s holds files: name an empty directory, or one that is not there yet", directory));
}

}  // namespace

StatusOr<MdtBackupReport> BackupMdt(const std::string& address, const std::string& file,
                                    const MdtBackupProgress& progress) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(file, error)))
    return ErrnoError(EEXIST, absl::StrFormat("%s is there already: a backup replaces nothing", file));
  NewFile out(file);
  RETURN_IF_ERROR(out.Open());
  uint64_t bytes = 0;
  RETURN_IF_ERROR(FetchBackup(address, [&](const std::string& data, uint64_t expected) -> Status {
    if (bytes == 0) RETURN_IF_ERROR(CheckRoom(DirectoryOf(file), expected, "the MDT"));
    bytes += data.size();
    progress(absl::StrCat(HumanSize(bytes), " written"));
    return out.Write(data);
  }));
  RETURN_IF_ERROR(out.Sync());
  // The file is read back from the disk, as a restore will read it. Its times are the MDS's.
  const WallTime any{std::numeric_limits<int64_t>::max(), 0};
  ASSIGN_OR_RETURN(mds::Restored found, Verify(out.partial(), any));
  RETURN_IF_ERROR(out.Publish());
  return Report(found, bytes);
}

StatusOr<MdtBackupReport> RestoreMdtInto(const std::string& file, const std::string& directory,
                                         const WallTime& now, const MdtBackupProgress& progress) {
  RETURN_IF_ERROR(CheckNothingThere(directory));
  progress("the backup is checked");
  ASSIGN_OR_RETURN(mds::Restored found, Verify(file, now));
  std::error_code error;
  const uint64_t bytes = fs::file_size(file, error);
  RETURN_IF_ERROR(FillTarget(TargetKind::kMdt, directory, [&]() -> Status {
    RocksKvOptions options;
    RETURN_IF_ERROR(CheckRoom(directory, bytes + 2 * options.reserve_bytes, "the MDT"));
    progress("the MDT is made");
    std::ifstream in(file, std::ios::binary);
    mds::BackupReader reader(in);
    ASSIGN_OR_RETURN(std::unique_ptr<KvStore> store, OpenRocksKv(directory, options));
    Runtime runtime(1);
    auto restored = runtime.Run(mds::RestoreMdt(*store, reader, now));
    runtime.Stop();
    RETURN_IF_ERROR(Named(file, restored.status()));
    store.reset();
    RETURN_IF_ERROR(SyncDirectory(directory));
    return SyncDirectory(DirectoryOf(fs::absolute(directory).lexically_normal()));
  }));
  return Report(found, bytes);
}

}  // namespace nacre
