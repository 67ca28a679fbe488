// Directories: open, list (with and without attributes), sync, close.
//
// The kernel's offsets are the file system's cookies plus two: 1 stands behind ".", 2 behind "..".
#include <dirent.h>
#include <sys/stat.h>

#include <cerrno>

#include "fuse/request.h"

namespace nacre::fuse {
namespace {

constexpr uint64_t kBehindDots = 2;
constexpr size_t kEntryBytes = 48;  // of a usual name, as the kernel packs it
constexpr size_t kEntryPlusBytes = 48 + sizeof(fuse_entry_param);

// The entries that fit into the kernel's buffer.
class EntryBuffer {
 public:
  explicit EntryBuffer(size_t size) : data_(size) {}

  // False: it does not fit any more.
  bool Add(const std::string& name, uint64_t ino, uint32_t type, uint64_t offset) {
    struct stat attributes {};
    attributes.st_ino = ino;
    attributes.st_mode = DTTOIF(type);
    return Keep(fuse_add_direntry(nullptr, data_.data() + used_, data_.size() - used_, name.c_str(),
                                  &attributes, static_cast<off_t>(offset)));
  }
  bool AddPlus(const std::string& name, const fuse_entry_param& entry, uint64_t offset) {
    return Keep(fuse_add_direntry_plus(nullptr, data_.data() + used_, data_.size() - used_, name.c_str(),
                                       &entry, static_cast<off_t>(offset)));
  }
  std::string_view bytes() const { return {data_.data(), used_}; }

 private:
  bool Keep(size_t needed) {
    if (needed > data_.size() - used_) return false;
    used_ += needed;
    return true;
  }

  std::vector<char> data_;
  size_t used_ = 0;
};

// "." or ".." in either form; the kernel knows both and takes no lookup for them.
bool AddDot(EntryBuffer* buffer, bool plus, const char* name, const Fid& fid, uint64_t offset) {
  uint64_t ino = NodeTable::Ino(fid);
  if (!plus) return buffer->Add(name, ino, DT_DIR, offset);
  fuse_entry_param entry{};
  entry.attr.st_ino = ino;
  entry.attr.st_mode = S_IFDIR;
  return buffer->AddPlus(name, entry, offset);
}

bool AddEntry(Session& session, EntryBuffer* buffer, bool plus, const client::DirEntry& entry,
              std::vector<uint64_t>* looked_up) {
  uint64_t offset = entry.cookie + kBehindDots;
  if (!plus) return buffer->Add(entry.name, NodeTable::Ino(entry.fid), entry.type, offset);
  fuse_entry_param param{};
  if (entry.known) {
    param = MakeEntry(session, *entry.known);
  } else {  // no lookup
    param.attr.st_ino = NodeTable::Ino(entry.fid);
    param.attr.st_mode = DTTOIF(entry.type);
  }
  bool fits = buffer->AddPlus(entry.name, param, offset);
  if (fits && param.ino != 0) looked_up->push_back(param.ino);
  if (!fits && param.ino != 0) session.nodes().Forget(param.ino, 1);
  return fits;
}

Task<Status> AddDots(Request& request, EntryBuffer* buffer, bool plus, Fid fid, client::HandlePtr handle,
                     uint64_t offset) {
  if (offset == 0 && !AddDot(buffer, plus, ".", fid, 1)) co_return OkStatus();
  if (offset >= kBehindDots) co_return OkStatus();
  Fid parent = fid;
  if (fid != kRootFid) {
    CO_ASSIGN_OR_RETURN(client::Known known,
                        co_await request.filesystem().Getattr(request.caller(), fid, handle));
    const proto::Fid& up = known.attr.parent();
    parent = Fid{up.sequence(), up.object(), up.version()};
  }
  AddDot(buffer, plus, "..", parent, kBehindDots);
  co_return OkStatus();
}

Task<void> Readdir(Request request, Fid fid, client::HandlePtr handle, size_t size, uint64_t offset,
                   bool plus) {
  EntryBuffer buffer(size);
  Status status = co_await AddDots(request, &buffer, plus, fid, handle, offset);
  if (!status.ok()) co_return request.Done(status);
  uint64_t cookie = offset > kBehindDots ? offset - kBehindDots : 0;
  size_t limit = std::max<size_t>(1, size / (plus ? kEntryPlusBytes : kEntryBytes));
  StatusOr<std::vector<client::DirEntry>> entries =
      co_await request.filesystem().Readdir(request.caller(), handle, cookie, limit, plus);
  if (!entries.ok()) co_return request.Done(entries.status());
  std::vector<uint64_t> looked_up;
  for (const client::DirEntry& entry : *entries) {
    if (!AddEntry(request.session(), &buffer, plus, entry, &looked_up)) break;
  }
  std::string_view bytes = buffer.bytes();
  if (request.Reply(fuse_reply_buf, bytes.data(), bytes.size())) co_return;
  for (uint64_t node : looked_up) request.session().nodes().Forget(node, 1);  // the caller was interrupted
}

Task<void> Opendir(Request request, Fid fid, fuse_file_info info) {
  StatusOr<client::HandlePtr> handle = co_await request.filesystem().Opendir(request.caller(), fid);
  if (!handle.ok()) co_return request.Done(handle.status());
  auto file = std::make_unique<OpenFile>(fid, *handle);
  info.fh = reinterpret_cast<uint64_t>(file.get());
  if (request.Reply(fuse_reply_open, &info)) {
    (void)file.release();  // the kernel's now, until releasedir
  } else {
    Status ignored = co_await request.filesystem().Release(file->handle);
    (void)ignored;
  }
}

Task<void> Releasedir(Request request, client::HandlePtr handle) {
  request.Done(co_await request.filesystem().Release(std::move(handle)));
}

Task<void> Fsyncdir(Request request, client::HandlePtr handle, bool data_only) {
  request.Done(co_await request.filesystem().Fsync(std::move(handle), data_only));
}

}  // namespace

void AddDirectories(fuse_lowlevel_ops* ops) {
  ops->opendir = [](fuse_req_t raw, fuse_ino_t node, fuse_file_info* info) {
    Start(raw, Opendir, FidOf(raw, node), *info);
  };
  ops->readdir = [](fuse_req_t raw, fuse_ino_t node, size_t size, off_t offset, fuse_file_info* info) {
    Start(raw, Readdir, FidOf(raw, node), HandleOf(*info), size, static_cast<uint64_t>(offset), false);
  };
  ops->readdirplus = [](fuse_req_t raw, fuse_ino_t node, size_t size, off_t offset, fuse_file_info* info) {
    Start(raw, Readdir, FidOf(raw, node), HandleOf(*info), size, static_cast<uint64_t>(offset), true);
  };
  ops->releasedir = [](fuse_req_t raw, fuse_ino_t, fuse_file_info* info) {
    std::unique_ptr<OpenFile> file(&FileOf(*info));
    StartWith(Patience::kForEver, raw, Releasedir, file->handle);
  };
  ops->fsyncdir = [](fuse_req_t raw, fuse_ino_t, int data_only, fuse_file_info* info) {
    Start(raw, Fsyncdir, HandleOf(*info), data_only != 0);
  };
}

}  // namespace nacre::fuse
