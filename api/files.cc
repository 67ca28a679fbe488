// nacre.h: files and buffers.
#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "api/call.h"
#include "api/devices.h"
#include "api/mount_path.h"
#include "api/objects.h"
#include "client/inode.h"
#include "rpc/convert.h"
#include "rpc/several_servers.h"

namespace nacre::api {
namespace {

constexpr int kOpenFlags = O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC | O_APPEND | O_CLOEXEC;
constexpr int kAttempts = 10;  // of making a file that others make and remove

// The umask cannot be read otherwise without changing it.
uint32_t Umask() {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> status(std::fopen("/proc/self/status", "re"), std::fclose);
  unsigned mask = 022;
  char line[256];
  while (status != nullptr && std::fgets(line, sizeof line, status.get()) != nullptr) {
    if (std::sscanf(line, "Umask: %o", &mask) == 1) break;
  }
  return mask;
}

// Where a name is, or is to be.
struct Place {
  Fid directory;
  std::string name;
};

// Walks from the root.
Task<StatusOr<Fid>> Resolve(client::FileSystem* filesystem, client::Caller caller, std::string path) {
  Fid fid = kRootFid;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    begin = end + 1;
    if (name.empty() || name == ".") continue;
    Duration absent_until{};
    CO_ASSIGN_OR_RETURN(client::Known found, co_await filesystem->Lookup(caller, fid, name, &absent_until));
    fid = FromProto(found.attr.fid());
  }
  co_return fid;
}

Status CheckFilesystem(Client& client, const MountPlace& place, const std::string& path) {
  const std::string& mds = client.connection().mds();
  if (ShareServer(place.mds, mds)) return OkStatus();
  return ErrnoError(EXDEV, absl::StrFormat("%s is on the filesystem of %s, the client is on that of %s", path,
                                           place.mds, mds));
}

StatusOr<Fid> FidOfPath(Client& client, const client::Caller& caller, const std::string& path) {
  Connection& connection = client.connection();
  if (!client.by_mount()) return connection.Run(Resolve(&client.filesystem(), caller, path));
  ASSIGN_OR_RETURN(const MountPlace place, FindOnMount(path));
  RETURN_IF_ERROR(CheckFilesystem(client, place, path));
  return place.fid;
}

StatusOr<Place> PlaceForNew(Client& client, const client::Caller& caller, const std::string& path) {
  ASSIGN_OR_RETURN(SplitPath split, SplitLastName(path));
  if (client.by_mount() && split.directory.empty()) split.directory = ".";
  Place place;
  ASSIGN_OR_RETURN(place.directory, FidOfPath(client, caller, split.directory));
  place.name = std::move(split.name);
  return place;
}

struct Opened {
  Fid fid;
  client::HandlePtr handle;
};

// Only these have bytes.
Status CheckRegular(client::FileHandle& handle) {
  std::lock_guard lock(handle.inode->mutex);
  const uint32_t mode = handle.inode->attr.mode();
  if (S_ISREG(mode)) return OkStatus();
  return S_ISDIR(mode) ? ErrnoError(EISDIR, "it is a directory")
                       : ErrnoError(EINVAL, "it is no regular file");
}

StatusOr<Opened> OpenFid(Client& client, const client::Caller& caller, const Fid& fid, int flags) {
  ASSIGN_OR_RETURN(client::HandlePtr handle,
                   client.connection().Run(client.filesystem().Open(caller, fid, flags & ~O_CREAT)));
  const Status regular = CheckRegular(*handle);
  if (regular.ok()) return Opened{fid, std::move(handle)};
  (void)client.connection().Run(client.filesystem().Release(std::move(handle)));  // nothing was written
  return regular;
}

StatusOr<Opened> OpenExisting(Client& client, const client::Caller& caller, const std::string& path,
                              int flags) {
  ASSIGN_OR_RETURN(const Fid fid, FidOfPath(client, caller, path));
  return OpenFid(client, caller, fid, flags);
}

StatusOr<Opened> MakeNew(Client& client, const client::Caller& caller, const std::string& path, int flags,
                         uint32_t mode) {
  ASSIGN_OR_RETURN(Place place, PlaceForNew(client, caller, path));
  const uint32_t type_and_mode = S_IFREG | (mode & 07777 & ~Umask());
  ASSIGN_OR_RETURN(client::Created created,
                   client.connection().Run(client.filesystem().Create(
                       caller, place.directory, std::move(place.name), type_and_mode, flags | O_EXCL)));
  return Opened{FromProto(created.known.attr.fid()), std::move(created.handle)};
}

StatusOr<Opened> OpenOrMake(Client& client, const client::Caller& caller, const std::string& path, int flags,
                            uint32_t mode) {
  if ((flags & O_CREAT) == 0) return OpenExisting(client, caller, path, flags);
  if ((flags & O_EXCL) != 0) return MakeNew(client, caller, path, flags, mode);
  for (int attempt = 0;; ++attempt) {
    StatusOr<Opened> opened = OpenExisting(client, caller, path, flags);
    if (opened.ok() || ToErrno(opened.status()) != ENOENT) return opened;
    opened = MakeNew(client, caller, path, flags, mode);
    if (opened.ok() || ToErrno(opened.status()) != EEXIST || attempt >= kAttempts) return opened;
  }
}

// Enters the opened file into the table. `path` is its name in the messages of errors.
Status NoteOpened(const std::shared_ptr<Client>& client, const char* path, StatusOr<Opened> opened,
                  nacre_file* file) {
  if (!opened.ok()) {
    return ErrnoError(ToErrno(opened.status()),
                      absl::StrFormat("%s: %s", path, std::string(opened.status().message())));
  }
  file->id =
      AllTables().files.Add(std::make_shared<File>(client, opened->fid, std::move(opened->handle), path));
  return OkStatus();
}

Status OpenFile(nacre_client handle, const char* path, int flags, uint32_t mode, nacre_file* file) {
  ASSIGN_OR_RETURN(std::shared_ptr<Client> client, FindClient(handle));
  if (path == nullptr || file == nullptr) return ErrnoError(EINVAL, "nacre_file_open: a null argument");
  if ((flags & ~kOpenFlags) != 0 || (flags & O_ACCMODE) == O_ACCMODE) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("%s: flags 0x%x: there are O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, "
                                      "O_EXCL, O_TRUNC and O_APPEND",
                                      path, flags));
  }
  flags &= ~O_CLOEXEC;
  return NoteOpened(client, path, OpenOrMake(*client, CallingUser(), path, flags, mode), file);
}

Status OpenDescriptor(nacre_client handle, int fd, nacre_file* file) {
  ASSIGN_OR_RETURN(std::shared_ptr<Client> client, FindClient(handle));
  if (file == nullptr) return ErrnoError(EINVAL, "nacre_file_from_fd: a null argument");
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return ErrnoError(errno, absl::StrFormat("descriptor %d: %s", fd, std::strerror(errno)));
  if ((flags & O_PATH) != 0)
    return ErrnoError(EBADF,
                      absl::StrFormat("descriptor %d is open with O_PATH: not for reading or writing", fd));
  const std::string path = absl::StrFormat("/proc/self/fd/%d", fd);
  ASSIGN_OR_RETURN(const MountPlace place, FindOnMount(path));
  RETURN_IF_ERROR(CheckFilesystem(*client, place, path));
  const int kept = flags & (O_ACCMODE | O_APPEND);
  return NoteOpened(client, path.c_str(), OpenFid(*client, CallingUser(), place.fid, kept), file);
}

Status FileSize(nacre_file handle, uint64_t* size) {
  ASSIGN_OR_RETURN(std::shared_ptr<File> file, FindFile(handle));
  if (size == nullptr) return ErrnoError(EINVAL, "nacre_file_size: a null argument");
  Client& client = *file->client();
  ASSIGN_OR_RETURN(client::Known known, client.connection().Run(client.filesystem().Getattr(
                                            CallingUser(), file->fid(), file->handle())));
  *size = known.attr.size();
  return OkStatus();
}

Status SyncFile(nacre_file handle) {
  ASSIGN_OR_RETURN(std::shared_ptr<File> file, FindFile(handle));
  Client& client = *file->client();
  return client.connection().Run(client.filesystem().Fsync(file->handle(), false));
}

Status CloseFile(nacre_file handle) {
  RETURN_IF_ERROR(FindFile(handle).status());
  const std::shared_ptr<File> file = AllTables().files.Take(handle.id);
  if (file == nullptr) return ErrnoError(EBADF, "the file is being closed by another thread");
  Client& client = *file->client();
  return client.connection().Run(client.filesystem().Flush(file->handle(), 0));
}

Status RegisterBuffer(nacre_client handle, void* address, size_t size, nacre_buffer* buffer) {
  ASSIGN_OR_RETURN(std::shared_ptr<Client> client, FindClient(handle));
  if (buffer == nullptr) return ErrnoError(EINVAL, "nacre_buffer_register: a null argument");
  ASSIGN_OR_RETURN(std::shared_ptr<Buffer> registered, RegisterMemory(std::move(client), address, size));
  buffer->id = AllTables().buffers.Add(std::move(registered));
  return OkStatus();
}

Status ReleaseBuffer(nacre_buffer handle) {
  RETURN_IF_ERROR(FindBuffer(handle).status());
  const std::shared_ptr<Buffer> buffer = AllTables().buffers.Take(handle.id);
  if (buffer == nullptr) return ErrnoError(EBADF, "the buffer is being released by another thread");
  buffer->Release();
  return OkStatus();
}

Status DescribeBuffer(nacre_buffer handle, nacre_buffer_info* out) {
  ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, FindBuffer(handle));
  if (out == nullptr) return ErrnoError(EINVAL, "nacre_buffer_get_info: a null argument");
  nacre_buffer_info info{};
  RETURN_IF_ERROR(ReadStruct(out, out->struct_size, &info));
  info.address = buffer->region()->data();
  info.size = buffer->region()->size();
  info.memory = buffer->traits().memory;
  const std::shared_ptr<gpu::Device>& device = buffer->traits().device;
  info.gpu = device == nullptr ? -1 : device->info().ordinal;
  WriteStruct(info, out->struct_size, out);
  return OkStatus();
}

}  // namespace
}  // namespace nacre::api

using nacre::api::Answer;

extern "C" {

int nacre_file_open(nacre_client client, const char* path, int flags, uint32_t mode, nacre_file* file) {
  return Answer(nacre::api::OpenFile(client, path, flags, mode, file));
}

int nacre_file_from_fd(nacre_client client, int fd, nacre_file* file) {
  return Answer(nacre::api::OpenDescriptor(client, fd, file));
}

int nacre_file_size(nacre_file file, uint64_t* size) { return Answer(nacre::api::FileSize(file, size)); }

int nacre_file_sync(nacre_file file) { return Answer(nacre::api::SyncFile(file)); }

int nacre_file_close(nacre_file file) { return Answer(nacre::api::CloseFile(file)); }

int nacre_buffer_register(nacre_client client, void* address, size_t size, nacre_buffer* buffer) {
  return Answer(nacre::api::RegisterBuffer(client, address, size, buffer));
}

int nacre_buffer_release(nacre_buffer buffer) { return Answer(nacre::api::ReleaseBuffer(buffer)); }

int nacre_buffer_get_info(nacre_buffer buffer, nacre_buffer_info* info) {
  return Answer(nacre::api::DescribeBuffer(buffer, info));
}

}  // extern "C"
