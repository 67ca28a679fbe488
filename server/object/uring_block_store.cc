#include "server/object/uring_block_store.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/log.h"
#include "server/object/disk_engine.h"

namespace nacre {
namespace {

constexpr uint64_t kFileBlocks =
    (uint64_t{1} << 40) / kBlockSize;  // ext4's files end at 16 TiB, others' earlier
constexpr uint64_t kMinBytes = 64 << 20;

Status PathError(int error, const std::string& path, std::string_view what) {
  return ErrnoError(error, absl::StrCat(AbslView(what), " ", path, ": ", strerror(error)));
}

class File {
 public:
  File() = default;
  explicit File(int fd) : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

struct Layout {
  std::vector<File> files;
  uint64_t block_count = 0;
  bool device = false;
  std::string path;
  uint64_t reserve_bytes = 0;
};

// Opened, and locked against other processes.
StatusOr<File> OpenFile(const std::string& path, const UringBlockStoreOptions& options, int more_flags,
                        bool* direct) {
  int flags = (options.read_only ? O_RDONLY : O_RDWR | more_flags) | O_CLOEXEC;
  int fd = -1;
  if (*direct) fd = open(path.c_str(), flags | O_DIRECT, 0600);
  if (fd < 0 && *direct && errno == EINVAL) {
    LogWarning("%s: the filesystem knows no O_DIRECT; data goes through the page cache", path);
    *direct = false;
  }
  if (fd < 0 && !*direct) fd = open(path.c_str(), flags, 0600);
  if (fd < 0) return PathError(errno, path, "opening");
  File file(fd);
  if (flock(fd, (options.read_only ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0) return file;
  if (errno != EWOULDBLOCK) return PathError(errno, path, "locking");
  return ErrnoError(EBUSY,
                    absl::StrCat(path, " is in use by another process; only one server may use an OST"));
}

StatusOr<Layout> OpenDevice(const std::string& path, const UringBlockStoreOptions& options) {
  Layout layout;
  layout.device = true;
  bool direct = options.use_direct;
  ASSIGN_OR_RETURN(File file, OpenFile(path, options, O_EXCL, &direct));
  uint64_t bytes = 0;
  if (ioctl(file.fd(), BLKGETSIZE64, &bytes) != 0) return PathError(errno, path, "size of");
  if (options.size_bytes > bytes) {
    return ErrnoError(
        EINVAL, absl::StrCat("size ", options.size_bytes, " for ", path, ", which has ", bytes, " bytes"));
  }
  layout.block_count = (options.size_bytes != 0 ? options.size_bytes : bytes) / kBlockSize;
  layout.files.push_back(std::move(file));
  return layout;
}

StatusOr<uint64_t> DirectorySize(const std::string& path, const UringBlockStoreOptions& options) {
  if (options.size_bytes != 0) return options.size_bytes;
  struct statvfs fs;
  if (statvfs(path.c_str(), &fs) != 0) return PathError(errno, path, "size of the filesystem of");
  uint64_t total = uint64_t{fs.f_blocks} * fs.f_frsize;
  if (total < options.reserve_bytes + kMinBytes) {
    return ErrnoError(ENOSPC, absl::StrCat("the filesystem of ", path, " has ", total,
                                           " bytes; an OST needs ", options.reserve_bytes + kMinBytes));
  }
  return total - options.reserve_bytes;
}

StatusOr<Layout> OpenDirectory(const std::string& path, const UringBlockStoreOptions& options) {
  Layout layout;
  layout.reserve_bytes = options.reserve_bytes;
  ASSIGN_OR_RETURN(uint64_t bytes, DirectorySize(path, options));
  layout.block_count = bytes / kBlockSize;
  bool direct = options.use_direct;
  for (uint64_t first = 0; first < layout.block_count; first += kFileBlocks) {
    std::string name = absl::StrCat(path, "/blocks.", first / kFileBlocks);
    ASSIGN_OR_RETURN(File file, OpenFile(name, options, O_CREAT, &direct));
    struct stat info;
    if (fstat(file.fd(), &info) != 0) return PathError(errno, name, "size of");
    uint64_t want = std::min(kFileBlocks, layout.block_count - first) * kBlockSize;
    if (!options.read_only && static_cast<uint64_t>(info.st_size) < want &&
        ftruncate(file.fd(), static_cast<off_t>(want)) != 0) {
      return PathError(errno, name, absl::StrFormat("growing to %d bytes", want));
    }
    // Through the page cache a start would see what a process of before has written, also where a flush of
    // that has failed and the disk never got it.
    if (!direct) (void)posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
    layout.files.push_back(std::move(file));
  }
  return layout;
}

class UringBlockStore : public BlockStore {
 public:
  UringBlockStore(Layout layout, std::unique_ptr<DiskEngine> engine)
      : layout_(std::move(layout)), engine_(std::move(engine)) {}

  uint64_t block_count() const override { return layout_.block_count; }

  Status CheckPlace() override {
    const std::string path = layout_.device ? layout_.path : layout_.path + "/blocks.0";
    struct stat opened, found;
    if (fstat(layout_.files.front().fd(), &opened) != 0) return PathError(errno, path, "looking at");
    if (::stat(path.c_str(), &found) != 0) return PathError(errno, path, "looking at");
    if (opened.st_dev == found.st_dev && opened.st_ino == found.st_ino) return OkStatus();
    return ErrnoError(ENOENT, absl::StrCat(path, " is another file than the one that is being served"));
  }

  Task<Status> Read(uint64_t block, std::span<const std::span<std::byte>> buffers) override {
    std::vector<iovec> iov;
    iov.reserve(buffers.size());
    for (auto buffer : buffers) iov.push_back({buffer.data(), buffer.size()});
    co_return co_await Transfer(DiskOperation::Kind::kRead, block, std::move(iov));
  }

  Task<Status> Write(uint64_t block, std::span<const std::span<const std::byte>> buffers) override {
    std::vector<iovec> iov;
    iov.reserve(buffers.size());
    for (auto buffer : buffers) iov.push_back({const_cast<std::byte*>(buffer.data()), buffer.size()});
    co_return co_await Transfer(DiskOperation::Kind::kWrite, block, std::move(iov));
  }

  Task<Status> Flush() override {
    std::vector<OneShot<Status>> flushes;
    for (const File& file : layout_.files) {
      auto operation = std::make_unique<DiskOperation>();
      operation->kind = DiskOperation::Kind::kSync;
      operation->fd = file.fd();
      flushes.push_back(Submit(std::move(operation)));
    }
    Status result = OkStatus();
    for (OneShot<Status>& flush : flushes) result.Update(co_await flush.Wait());
    co_return Named(result);
  }

  Task<Status> Preallocate(uint64_t block, uint64_t count) override {
    if (layout_.device) co_return OkStatus();
    if (available_blocks() < count) {
      co_return ErrnoError(
          ENOSPC, absl::StrCat("the filesystem under ", layout_.path, " is full: ", available_blocks(),
                               " blocks besides the reserve of ", layout_.reserve_bytes, " bytes"));
    }
    Status status = co_await Allocate(0, block, count);
    // A filesystem without fallocate: a full disk will only show when blocks are written.
    co_return ToErrno(status) == EOPNOTSUPP ? OkStatus() : status;
  }

  uint64_t available_blocks() const override {
    if (layout_.device) return layout_.block_count;
    struct statvfs fs;
    if (fstatvfs(layout_.files[0].fd(), &fs) != 0) return 0;
    uint64_t free = uint64_t{fs.f_bavail} * fs.f_frsize;
    return free > layout_.reserve_bytes ? (free - layout_.reserve_bytes) / kBlockSize : 0;
  }

  bool shares_disk() const override { return !layout_.device; }

  Task<Status> Discard(uint64_t block, uint64_t count) override {
    Status status = co_await Allocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, block, count);
    co_return ToErrno(status) == EOPNOTSUPP ? OkStatus() : status;
  }

 private:
  OneShot<Status> Submit(std::unique_ptr<DiskOperation> operation) {
    OneShot<Status> done = operation->done;
    engine_->Submit(std::move(operation));
    return done;
  }

  Status Named(const Status& status) const {
    if (status.ok()) return status;
    return ErrnoError(ToErrno(status), absl::StrCat(layout_.path, ": ", status.message()));
  }

  Status CheckRange(uint64_t block, uint64_t count) const {
    if (block <= layout_.block_count && count <= layout_.block_count - block) return OkStatus();
    return ErrnoError(EINVAL, absl::StrCat(count, " blocks at ", block, " of ", layout_.path, ", which has ",
                                           layout_.block_count));
  }

  // Cuts what crosses from one file into the next; nearly always one operation.
  Task<Status> Transfer(DiskOperation::Kind kind, uint64_t block, std::vector<iovec> buffers) {
    uint64_t bytes = 0;
    for (const iovec& buffer : buffers) bytes += buffer.iov_len;
    if (bytes == 0) co_return OkStatus();
    CO_RETURN_IF_ERROR(CheckRange(block, bytes / kBlockSize));
    size_t next = 0;
    while (next < buffers.size()) {
      uint64_t file = FileOf(block);
      uint64_t room = file_end(file) > block ? (file_end(file) - block) * kBlockSize : 0;
      auto operation = std::make_unique<DiskOperation>();
      operation->kind = kind;
      operation->fd = layout_.files[file].fd();
      operation->offset = (block - file * kFileBlocks) * kBlockSize;
      while (next < buffers.size() && room > 0) {
        iovec& buffer = buffers[next];
        size_t take = std::min<size_t>(buffer.iov_len, room);
        operation->buffers.push_back({buffer.iov_base, take});
        room -= take;
        block += take / kBlockSize;
        buffer.iov_base = static_cast<char*>(buffer.iov_base) + take;
        buffer.iov_len -= take;
        if (buffer.iov_len == 0) ++next;
      }
      OneShot<Status> done = Submit(std::move(operation));
      Status status = co_await done.Wait();
      if (!status.ok()) co_return Named(status);
    }
    co_return OkStatus();
  }

  Task<Status> Allocate(int mode, uint64_t block, uint64_t count) {
    CO_RETURN_IF_ERROR(CheckRange(block, count));
    while (count > 0) {
      uint64_t file = FileOf(block);
      uint64_t take = std::min(count, file_end(file) - block);
      auto operation = std::make_unique<DiskOperation>();
      operation->kind = DiskOperation::Kind::kAllocate;
      operation->fd = layout_.files[file].fd();
      operation->mode = mode;
      operation->offset = (block - file * kFileBlocks) * kBlockSize;
      operation->length = take * kBlockSize;
      OneShot<Status> done = Submit(std::move(operation));
      Status status = co_await done.Wait();
      if (!status.ok()) co_return Named(status);
      block += take;
      count -= take;
    }
    co_return OkStatus();
  }

  // A device is one file of any size.
  uint64_t FileOf(uint64_t block) const { return layout_.device ? 0 : block / kFileBlocks; }
  uint64_t file_end(uint64_t file) const {
    return layout_.device ? layout_.block_count : (file + 1) * kFileBlocks;
  }

  Layout layout_;
  std::unique_ptr<DiskEngine> engine_;
};

}  // namespace

StatusOr<std::unique_ptr<BlockStore>> OpenUringBlockStore(const std::string& path,
                                                          UringBlockStoreOptions options) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return PathError(errno, path, "opening");
  if (!S_ISDIR(info.st_mode) && !S_ISBLK(info.st_mode)) {
    return ErrnoError(EINVAL, absl::StrCat(path, " is neither a directory nor a block device"));
  }
  ASSIGN_OR_RETURN(Layout layout,
                   S_ISBLK(info.st_mode) ? OpenDevice(path, options) : OpenDirectory(path, options));
  layout.path = path;
  if (layout.block_count < kMinBytes / kBlockSize) {
    return ErrnoError(EINVAL, absl::StrCat("an OST of ", layout.block_count * kBlockSize, " bytes in ", path,
                                           ": at least ", kMinBytes, " are needed"));
  }
  std::unique_ptr<DiskEngine> engine;
  if (options.use_uring) {
    StatusOr<std::unique_ptr<DiskEngine>> uring = MakeUringEngine(options.executor);
    if (uring.ok()) engine = *std::move(uring);
    if (!uring.ok())
      LogWarning("%s: threads instead of io_uring: %s", path, std::string(uring.status().message()));
  }
  if (engine == nullptr) engine = MakeThreadEngine();
  return std::make_unique<UringBlockStore>(std::move(layout), std::move(engine));
}

}  // namespace nacre
