// A FUSE filesystem that does nothing of its own: every request becomes the same system call on the directory
// below. bench/compare uses it as the ceiling of what any FUSE mount on that disk can score, so it takes what
// libfuse offers (splice, 1 MiB requests, readdirplus, several threads, one second of kernel caching) and
// checks nothing beyond the kernel's default_permissions. Usage: nacre-passthrough SOURCE MOUNTPOINT   (runs
// in the foreground until it is unmounted or gets SIGTERM)
#define FUSE_USE_VERSION 312
#include <dirent.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr double kCacheSeconds = 1.0;
constexpr size_t kMaxWrite = 1 << 20;

// An inode that the kernel knows: an O_PATH descriptor and the number of lookups it has to forget again.
struct Inode {
  int fd = -1;
  uint64_t lookups = 0;
  std::pair<dev_t, ino_t> key;
};

class InodeTable {
 public:
  explicit InodeTable(int root_fd) { root_.fd = root_fd; }

  Inode* Get(fuse_ino_t ino) { return ino == FUSE_ROOT_ID ? &root_ : reinterpret_cast<Inode*>(ino); }

  // Takes `fd` over.
  Inode* Remember(int fd, const struct stat& attr) {
    std::lock_guard lock(mutex_);
    auto& slot = inodes_[{attr.st_dev, attr.st_ino}];
    if (slot) {
      close(fd);
    } else {
      slot = std::make_unique<Inode>(Inode{fd, 0, {attr.st_dev, attr.st_ino}});
    }
    ++slot->lookups;
    return slot.get();
  }

  void Forget(fuse_ino_t ino, uint64_t lookups) {
    if (ino == FUSE_ROOT_ID) return;
    std::lock_guard lock(mutex_);
    Inode* inode = Get(ino);
    inode->lookups -= lookups;
    if (inode->lookups > 0) return;
    close(inode->fd);
    inodes_.erase(inode->key);
  }

 private:
  std::mutex mutex_;
  Inode root_;
  std::map<std::pair<dev_t, ino_t>, std::unique_ptr<Inode>> inodes_;
};

InodeTable* table;

int Fd(fuse_ino_t ino) { return table->Get(ino)->fd; }

// The path of an O_PATH descriptor, for the calls that take no such descriptor.
std::string ProcPath(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

void ReplyErrno(fuse_req_t req, int rc) { fuse_reply_err(req, rc < 0 ? errno : 0); }

int FillEntry(fuse_ino_t parent, const char* name, fuse_entry_param* entry) {
  *entry = {};
  int fd = openat(Fd(parent), name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return errno;
  if (fstatat(fd, "", &entry->attr, AT_EMPTY_PATH) < 0) {
    int error = errno;
    close(fd);
    return error;
  }
  entry->ino = reinterpret_cast<fuse_ino_t>(table->Remember(fd, entry->attr));
  entry->attr_timeout = entry->entry_timeout = kCacheSeconds;
  return 0;
}

void ReplyEntry(fuse_req_t req, fuse_ino_t parent, const char* name) {
  fuse_entry_param entry;
  int error = FillEntry(parent, name, &entry);
  if (error) {
    fuse_reply_err(req, error);
  } else {
    fuse_reply_entry(req, &entry);
  }
}

// Gives what was just made to the caller: it belonged to this process.
void Own(fuse_req_t req, fuse_ino_t parent, const char* name) {
  const fuse_ctx* caller = fuse_req_ctx(req);
  if (caller->uid == 0 && caller->gid == 0) return;
  if (fchownat(Fd(parent), name, caller->uid, caller->gid, AT_SYMLINK_NOFOLLOW) < 0) perror("fchownat");
}

void ReplyMade(fuse_req_t req, fuse_ino_t parent, const char* name, int rc) {
  if (rc < 0) return ReplyErrno(req, rc);
  Own(req, parent, name);
  ReplyEntry(req, parent, name);
}

void Init(void*, fuse_conn_info* conn) {
  conn->want |= conn->capable & (FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
  conn->max_write = kMaxWrite;
  conn->max_background = 64;
}

void Lookup(fuse_req_t req, fuse_ino_t parent, const char* name) { ReplyEntry(req, parent, name); }

void Forget(fuse_req_t req, fuse_ino_t ino, uint64_t lookups) {
  table->Forget(ino, lookups);
  fuse_reply_none(req);
}

void ForgetMulti(fuse_req_t req, size_t count, fuse_forget_data* forgets) {
  for (size_t i = 0; i < count; ++i) table->Forget(forgets[i].ino, forgets[i].nlookup);
  fuse_reply_none(req);
}

void Getattr(fuse_req_t req, fuse_ino_t ino, fuse_file_info*) {
  struct stat attr;
  if (fstatat(Fd(ino), "", &attr, AT_EMPTY_PATH) < 0) return ReplyErrno(req, -1);
  fuse_reply_attr(req, &attr, kCacheSeconds);
}

timespec WantedTime(int to_set, int set_bit, int now_bit, timespec value) {
  if (to_set & now_bit) return {0, UTIME_NOW};
  if (to_set & set_bit) return value;
  return {0, UTIME_OMIT};
}

int ApplyAttr(int fd, const struct stat& want, int to_set) {
  std::string path = ProcPath(fd);
  if ((to_set & FUSE_SET_ATTR_MODE) && chmod(path.c_str(), want.st_mode) < 0) return -1;
  if (to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) {
    uid_t uid = to_set & FUSE_SET_ATTR_UID ? want.st_uid : static_cast<uid_t>(-1);
    gid_t gid = to_set & FUSE_SET_ATTR_GID ? want.st_gid : static_cast<gid_t>(-1);
    if (fchownat(fd, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) < 0) return -1;
  }
  if ((to_set & FUSE_SET_ATTR_SIZE) && truncate(path.c_str(), want.st_size) < 0) return -1;
  if (!(to_set &
        (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_ATIME_NOW | FUSE_SET_ATTR_MTIME_NOW)))
    return 0;
  timespec times[2] = {WantedTime(to_set, FUSE_SET_ATTR_ATIME, FUSE_SET_ATTR_ATIME_NOW, want.st_atim),
                       WantedTime(to_set, FUSE_SET_ATTR_MTIME, FUSE_SET_ATTR_MTIME_NOW, want.st_mtim)};
  return utimensat(AT_FDCWD, path.c_str(), times, 0);
}

void Setattr(fuse_req_t req, fuse_ino_t ino, struct stat* want, int to_set, fuse_file_info* file) {
  if (ApplyAttr(Fd(ino), *want, to_set) < 0) return ReplyErrno(req, -1);
  Getattr(req, ino, file);
}

void Mknod(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode, dev_t device) {
  ReplyMade(req, parent, name, mknodat(Fd(parent), name, mode, device));
}

void Mkdir(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode) {
  ReplyMade(req, parent, name, mkdirat(Fd(parent), name, mode));
}

void Symlink(fuse_req_t req, const char* target, fuse_ino_t parent, const char* name) {
  ReplyMade(req, parent, name, symlinkat(target, Fd(parent), name));
}

void Link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char* name) {
  if (linkat(AT_FDCWD, ProcPath(Fd(ino)).c_str(), Fd(parent), name, AT_SYMLINK_FOLLOW) < 0)
    return ReplyErrno(req, -1);
  ReplyEntry(req, parent, name);
}

void Readlink(fuse_req_t req, fuse_ino_t ino) {
  char target[4097];
  ssize_t length = readlinkat(Fd(ino), "", target, sizeof(target) - 1);
  if (length < 0) return ReplyErrno(req, -1);
  target[length] = '\0';
  fuse_reply_readlink(req, target);
}

void Unlink(fuse_req_t req, fuse_ino_t parent, const char* name) {
  ReplyErrno(req, unlinkat(Fd(parent), name, 0));
}

void Rmdir(fuse_req_t req, fuse_ino_t parent, const char* name) {
  ReplyErrno(req, unlinkat(Fd(parent), name, AT_REMOVEDIR));
}

void Rename(fuse_req_t req, fuse_ino_t parent, const char* name, fuse_ino_t to, const char* new_name,
            unsigned flags) {
  ReplyErrno(req, renameat2(Fd(parent), name, Fd(to), new_name, flags));
}

void Create(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* file) {
  int fd = openat(Fd(parent), name, (file->flags | O_CREAT | O_CLOEXEC) & ~O_NOFOLLOW, mode);
  if (fd < 0) return ReplyErrno(req, -1);
  Own(req, parent, name);
  fuse_entry_param entry;
  int error = FillEntry(parent, name, &entry);
  if (error) {
    close(fd);
    fuse_reply_err(req, error);
    return;
  }
  file->fh = fd;
  fuse_reply_create(req, &entry, file);
}

void Open(fuse_req_t req, fuse_ino_t ino, fuse_file_info* file) {
  int fd = open(ProcPath(Fd(ino)).c_str(), (file->flags | O_CLOEXEC) & ~O_NOFOLLOW);
  if (fd < 0) return ReplyErrno(req, -1);
  file->fh = fd;
  file->keep_cache = (file->flags & O_ACCMODE) == O_RDONLY;
  file->noflush = (file->flags & O_ACCMODE) == O_RDONLY;
  fuse_reply_open(req, file);
}

void Release(fuse_req_t req, fuse_ino_t, fuse_file_info* file) {
  ReplyErrno(req, close(static_cast<int>(file->fh)));
}

void Fsync(fuse_req_t req, fuse_ino_t, int data_only, fuse_file_info* file) {
  int fd = static_cast<int>(file->fh);
  ReplyErrno(req, data_only ? fdatasync(fd) : fsync(fd));
}

void Read(fuse_req_t req, fuse_ino_t, size_t size, off_t offset, fuse_file_info* file) {
  fuse_bufvec data = FUSE_BUFVEC_INIT(size);
  data.buf[0].flags = static_cast<fuse_buf_flags>(FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK);
  data.buf[0].fd = static_cast<int>(file->fh);
  data.buf[0].pos = offset;
  fuse_reply_data(req, &data, FUSE_BUF_SPLICE_MOVE);
}

// O_DIRECT below wants aligned memory, and libfuse 3.14 hands out the data right behind the request's header.
ssize_t WriteAligned(int fd, fuse_bufvec* in, off_t offset) {
  static thread_local std::unique_ptr<void, decltype(&free)> aligned(aligned_alloc(4096, kMaxWrite), &free);
  fuse_bufvec copy = FUSE_BUFVEC_INIT(fuse_buf_size(in));
  copy.buf[0].mem = aligned.get();
  ssize_t size = fuse_buf_copy(&copy, in, static_cast<fuse_buf_copy_flags>(0));
  if (size < 0) return size;
  ssize_t written = pwrite(fd, aligned.get(), size, offset);
  return written < 0 ? -errno : written;
}

ssize_t WriteSpliced(int fd, fuse_bufvec* in, off_t offset) {
  fuse_bufvec out = FUSE_BUFVEC_INIT(fuse_buf_size(in));
  out.buf[0].flags = static_cast<fuse_buf_flags>(FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK);
  out.buf[0].fd = fd;
  out.buf[0].pos = offset;
  return fuse_buf_copy(&out, in, static_cast<fuse_buf_copy_flags>(0));
}

void WriteBuf(fuse_req_t req, fuse_ino_t, fuse_bufvec* in, off_t offset, fuse_file_info* file) {
  int fd = static_cast<int>(file->fh);
  ssize_t written = (file->flags & O_DIRECT) ? WriteAligned(fd, in, offset) : WriteSpliced(fd, in, offset);
  if (written < 0) {
    fuse_reply_err(req, static_cast<int>(-written));
  } else {
    fuse_reply_write(req, written);
  }
}

void Fallocate(fuse_req_t req, fuse_ino_t, int mode, off_t offset, off_t length, fuse_file_info* file) {
  ReplyErrno(req, fallocate(static_cast<int>(file->fh), mode, offset, length));
}

void Lseek(fuse_req_t req, fuse_ino_t, off_t offset, int whence, fuse_file_info* file) {
  off_t result = lseek(static_cast<int>(file->fh), offset, whence);
  if (result < 0) return ReplyErrno(req, -1);
  fuse_reply_lseek(req, result);
}

void Statfs(fuse_req_t req, fuse_ino_t ino) {
  struct statvfs figures;
  if (fstatvfs(Fd(ino), &figures) < 0) return ReplyErrno(req, -1);
  fuse_reply_statfs(req, &figures);
}

void Opendir(fuse_req_t req, fuse_ino_t ino, fuse_file_info* file) {
  int fd = openat(Fd(ino), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* directory = fd < 0 ? nullptr : fdopendir(fd);
  if (!directory) return ReplyErrno(req, -1);
  file->fh = reinterpret_cast<uint64_t>(directory);
  fuse_reply_open(req, file);
}

void Releasedir(fuse_req_t req, fuse_ino_t, fuse_file_info* file) {
  ReplyErrno(req, closedir(reinterpret_cast<DIR*>(file->fh)));
}

bool IsDots(const char* name) { return !strcmp(name, ".") || !strcmp(name, ".."); }

// Bytes that the entry takes in `to`; more than `room` when it does not fit. "." and ".." are not looked up:
// nobody forgets them.
size_t AddPlus(fuse_req_t req, fuse_ino_t parent, const dirent& found, char* to, size_t room) {
  size_t needed = fuse_add_direntry_plus(req, nullptr, 0, found.d_name, nullptr, 0);
  if (needed > room) return needed;
  fuse_entry_param entry = {};
  if (IsDots(found.d_name) || FillEntry(parent, found.d_name, &entry)) {
    entry.attr.st_ino = found.d_ino;
    entry.attr.st_mode = DTTOIF(found.d_type);
  }
  return fuse_add_direntry_plus(req, to, room, found.d_name, &entry, found.d_off);
}

size_t AddPlain(fuse_req_t req, const dirent& found, char* to, size_t room) {
  struct stat attr = {};
  attr.st_ino = found.d_ino;
  attr.st_mode = DTTOIF(found.d_type);
  return fuse_add_direntry(req, to, room, found.d_name, &attr, found.d_off);
}

void ReadEntries(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, DIR* directory, bool plus) {
  if (telldir(directory) != offset) seekdir(directory, offset);
  std::vector<char> reply(size);
  size_t used = 0;
  while (const dirent* found = readdir(directory)) {
    size_t room = size - used;
    size_t taken =
        plus ? AddPlus(req, ino, *found, &reply[used], room) : AddPlain(req, *found, &reply[used], room);
    if (taken > room) break;
    used += taken;
  }
  fuse_reply_buf(req, reply.data(), used);
}

void Readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info* file) {
  ReadEntries(req, ino, size, offset, reinterpret_cast<DIR*>(file->fh), false);
}

void Readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info* file) {
  ReadEntries(req, ino, size, offset, reinterpret_cast<DIR*>(file->fh), true);
}

constexpr fuse_lowlevel_ops kOperations = {
    .init = Init,
    .lookup = Lookup,
    .forget = Forget,
    .getattr = Getattr,
    .setattr = Setattr,
    .readlink = Readlink,
    .mknod = Mknod,
    .mkdir = Mkdir,
    .unlink = Unlink,
    .rmdir = Rmdir,
    .symlink = Symlink,
    .rename = Rename,
    .link = Link,
    .open = Open,
    .read = Read,
    .release = Release,
    .fsync = Fsync,
    .opendir = Opendir,
    .readdir = Readdir,
    .releasedir = Releasedir,
    .statfs = Statfs,
    .create = Create,
    .write_buf = WriteBuf,
    .forget_multi = ForgetMulti,
    .fallocate = Fallocate,
    .readdirplus = Readdirplus,
    .lseek = Lseek,
};

int Serve(const char* source, const char* mountpoint) {
  int root_fd = open(source, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root_fd < 0) {
    fprintf(stderr, "nacre-passthrough: %s: %s\n", source, strerror(errno));
    return 1;
  }
  InodeTable inodes(root_fd);
  table = &inodes;

  std::string program = "nacre-passthrough", option = "-o";
  std::string options = "default_permissions,allow_other,fsname=nacre-passthrough";
  char* argv[] = {program.data(), option.data(), options.data()};
  fuse_args args = FUSE_ARGS_INIT(3, argv);
  fuse_session* session = fuse_session_new(&args, &kOperations, sizeof(kOperations), nullptr);
  if (!session || fuse_set_signal_handlers(session) || fuse_session_mount(session, mountpoint)) return 1;
  fuse_loop_config* loop = fuse_loop_cfg_create();
  int rc = fuse_session_loop_mt(session, loop);
  fuse_loop_cfg_destroy(loop);
  fuse_session_unmount(session);
  fuse_remove_signal_handlers(session);
  fuse_session_destroy(session);
  fuse_opt_free_args(&args);
  return rc < 0 ? 1 : 0;
}

// A descriptor is kept for each inode that the kernel knows: as many as the kernel allows (fs.nr_open's
// default), or what an ordinary user may raise his own limit to.
void RaiseDescriptorLimit() {
  constexpr rlim_t kMost = 1 << 20;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  rlimit raised{std::max(limit.rlim_max, kMost), std::max(limit.rlim_max, kMost)};
  if (setrlimit(RLIMIT_NOFILE, &raised) == 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: nacre-passthrough SOURCE MOUNTPOINT\n");
    return 2;
  }
  RaiseDescriptorLimit();
  umask(0);
  return Serve(argv[1], argv[2]);
}
