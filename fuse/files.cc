// Files as such: create, open, close, sync, space, holes.
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>

#include "common/log.h"
#include "fuse/request.h"

namespace nacre::fuse {
namespace {

// libfuse 3.14 has no field for FOPEN_PARALLEL_DIRECT_WRITES, so answers to open and create are put together
// here.
fuse_open_out MakeOpen(Request& request, OpenFile* file, int flags) {
  client::KernelPages pages = request.filesystem().PagesFor(file->handle);
  // Where such files cannot be mapped shared, at least those that are only read are not opened past the
  // pages: what fills a page takes a lease first, as it does for mappings elsewhere.
  const bool reads = (flags & (O_ACCMODE | O_DIRECT | O_TRUNC | O_CREAT)) == O_RDONLY;
  if (pages == client::KernelPages::kNone && reads && !request.session().init_reply().direct_files_map())
    pages = client::KernelPages::kNew;
  file->cached = pages != client::KernelPages::kNone;
  fuse_open_out out{};
  out.fh = reinterpret_cast<uint64_t>(file);
  if (!file->cached) out.open_flags = FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES;
  if (pages == client::KernelPages::kKept) out.open_flags = FOPEN_KEEP_CACHE;
  return out;
}

void SplitTime(double seconds, uint64_t* whole, uint32_t* nanos) {
  *whole = static_cast<uint64_t>(seconds);
  *nanos = static_cast<uint32_t>((seconds - static_cast<double>(*whole)) * 1e9);
}

fuse_entry_out PackEntry(const fuse_entry_param& entry) {
  fuse_entry_out out{};
  out.nodeid = entry.ino;
  out.generation = entry.generation;
  SplitTime(entry.entry_timeout, &out.entry_valid, &out.entry_valid_nsec);
  SplitTime(entry.attr_timeout, &out.attr_valid, &out.attr_valid_nsec);
  const struct stat& from = entry.attr;
  fuse_attr& to = out.attr;
  to.ino = from.st_ino;
  to.size = static_cast<uint64_t>(from.st_size);
  to.blocks = static_cast<uint64_t>(from.st_blocks);
  to.atime = static_cast<uint64_t>(from.st_atim.tv_sec);
  to.atimensec = static_cast<uint32_t>(from.st_atim.tv_nsec);
  to.mtime = static_cast<uint64_t>(from.st_mtim.tv_sec);
  to.mtimensec = static_cast<uint32_t>(from.st_mtim.tv_nsec);
  to.ctime = static_cast<uint64_t>(from.st_ctim.tv_sec);
  to.ctimensec = static_cast<uint32_t>(from.st_ctim.tv_nsec);
  to.mode = from.st_mode;
  to.nlink = static_cast<uint32_t>(from.st_nlink);
  to.uid = from.st_uid;
  to.gid = from.st_gid;
  to.rdev = static_cast<uint32_t>(from.st_rdev);
  to.blksize = static_cast<uint32_t>(from.st_blksize);
  return out;
}

Task<void> ReleaseUnwanted(Request& request, client::HandlePtr handle) {
  Status ignored = co_await request.filesystem().Release(std::move(handle));
  (void)ignored;  // nothing was written through it
}

Task<void> Create(Request request, Fid parent, std::string name, uint32_t mode, int flags) {
  StatusOr<client::Created> created =
      co_await request.filesystem().Create(request.caller(), parent, std::move(name), mode, flags);
  if (!created.ok()) co_return request.Done(created.status());
  fuse_entry_param entry = MakeEntry(request.session(), created->known);
  const proto::Fid& fid = created->known.attr.fid();
  Fid own{fid.sequence(), fid.object(), fid.version()};
  auto file = std::make_unique<OpenFile>(own, created->handle);
  struct {
    fuse_entry_out entry;
    fuse_open_out open;
  } out{PackEntry(entry), MakeOpen(request, file.get(), flags | O_CREAT)};
  if (request.Reply(fuse_reply_buf, reinterpret_cast<const char*>(&out), sizeof out)) {
    file.release();  // the kernel's now, until release
    co_return;
  }
  request.session().nodes().Forget(entry.ino, 1);  // the caller was interrupted
  co_await ReleaseUnwanted(request, file->handle);
}

Task<void> Open(Request request, Fid fid, int flags) {
  StatusOr<client::HandlePtr> handle = co_await request.filesystem().Open(request.caller(), fid, flags);
  if (!handle.ok()) co_return request.Done(handle.status());
  auto file = std::make_unique<OpenFile>(fid, *handle);
  fuse_open_out out = MakeOpen(request, file.get(), flags);
  if (request.Reply(fuse_reply_buf, reinterpret_cast<const char*>(&out), sizeof out)) {
    file.release();
  } else {
    if ((flags & O_TRUNC) != 0) co_await ForgetInode(request, fid);
    co_await ReleaseUnwanted(request, file->handle);
  }
}

Task<void> Release(Request request, client::HandlePtr handle, std::vector<proto::LockRange> unlocks) {
  for (const proto::LockRange& unlock : unlocks) {
    Status unlocked = co_await request.filesystem().SetLock(handle, unlock, false, 0);
    if (!unlocked.ok()) LogWarning("a lock could not be given back: %s", std::string(unlocked.message()));
  }
  request.Done(co_await request.filesystem().Release(std::move(handle)));
}

Task<void> Flush(Request request, client::HandlePtr handle, uint64_t lock_owner) {
  request.Done(co_await request.filesystem().Flush(std::move(handle), lock_owner));
}

Task<void> Fsync(Request request, client::HandlePtr handle, bool data_only) {
  request.Done(co_await request.filesystem().Fsync(std::move(handle), data_only));
}

Task<void> Fallocate(Request request, Fid fid, client::HandlePtr handle, int mode, uint64_t offset,
                     uint64_t length) {
  Status status = co_await request.filesystem().Fallocate(std::move(handle), mode, offset, length);
  if (!request.Reply(fuse_reply_err, ToErrno(status))) co_await ForgetInode(request, fid);
}

Task<void> Seek(Request request, client::HandlePtr handle, uint64_t offset, int whence) {
  StatusOr<uint64_t> found = co_await request.filesystem().Seek(std::move(handle), offset, whence);
  if (!found.ok()) co_return request.Done(found.status());
  request.Reply(fuse_reply_lseek, static_cast<off_t>(*found));
}

Task<void> CopyRange(Request request, client::HandlePtr from, uint64_t from_offset, Fid fid,
                     client::HandlePtr to, uint64_t to_offset, size_t size) {
  StatusOr<size_t> copied =
      co_await request.filesystem().CopyRange(std::move(from), from_offset, std::move(to), to_offset, size);
  if (!request.Count(copied)) co_await ForgetInode(request, fid);
}

}  // namespace

void AddFiles(fuse_lowlevel_ops* ops) {
  ops->create = [](fuse_req_t raw, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* info) {
    Start(raw, Create, FidOf(raw, parent), std::string(name), mode, info->flags);
  };
  ops->open = [](fuse_req_t raw, fuse_ino_t node, fuse_file_info* info) {
    Start(raw, Open, FidOf(raw, node), info->flags);
  };
  ops->release = [](fuse_req_t raw, fuse_ino_t, fuse_file_info* info) {
    std::unique_ptr<OpenFile> file(&FileOf(*info));
    StartWith(Patience::kForEver, raw, Release, file->handle, UnlocksAtRelease(*file, *info));
  };
  ops->flush = [](fuse_req_t raw, fuse_ino_t, fuse_file_info* info) {
    OpenFile& file = FileOf(*info);
    {
      std::lock_guard lock(file.mutex);
      file.lock_owners.erase(info->lock_owner);
    }
    StartWith(Patience::kUntilExit, raw, Flush, file.handle, info->lock_owner);
  };
  ops->fsync = [](fuse_req_t raw, fuse_ino_t, int data_only, fuse_file_info* info) {
    Start(raw, Fsync, HandleOf(*info), data_only != 0);
  };
  ops->fallocate = [](fuse_req_t raw, fuse_ino_t node, int mode, off_t offset, off_t length,
                      fuse_file_info* info) {
    Start(raw, Fallocate, FidOf(raw, node), HandleOf(*info), mode, static_cast<uint64_t>(offset),
          static_cast<uint64_t>(length));
  };
  ops->lseek = [](fuse_req_t raw, fuse_ino_t, off_t offset, int whence, fuse_file_info* info) {
    Start(raw, Seek, HandleOf(*info), static_cast<uint64_t>(offset), whence);
  };
  ops->copy_file_range = [](fuse_req_t raw, fuse_ino_t, off_t from_offset, fuse_file_info* from,
                            fuse_ino_t node, off_t to_offset, fuse_file_info* to, size_t size, int) {
    Start(raw, CopyRange, HandleOf(*from), static_cast<uint64_t>(from_offset), FidOf(raw, node),
          HandleOf(*to), static_cast<uint64_t>(to_offset), size);
  };
}

}  // namespace nacre::fuse
