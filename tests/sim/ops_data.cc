// The operations on open files.

#include <fcntl.h>
#include <linux/falloc.h>

#include <algorithm>
#include <cerrno>

#include "rpc/convert.h"
#include "tests/sim/workload.h"

namespace nacre::sim {
namespace {

struct FileContext {
  Workload* workload;
  ClientState* client;
  OpenFile file;
  Model& model;
  Random& random;
  client::FileSystem& filesystem;

  FileContext(Workload* workload, ClientState* client, OpenFile file)
      : workload(workload),
        client(client),
        file(std::move(file)),
        model(workload->model()),
        random(workload->random()),
        filesystem(*client->filesystem) {}

  ModelInode& inode() const { return model.inode(file.inode); }
  FileModel& content() const { return model.file(file.inode); }
  // Another worker may have closed it meanwhile.
  bool IsOpen() const {
    return std::ranges::any_of(client->files,
                               [&](const OpenFile& open) { return open.handle == file.handle; });
  }
  bool writable() const { return (file.flags & O_ACCMODE) != O_RDONLY; }
  Claim Bytes(bool exclusive, uint64_t begin = 0, uint64_t end = ~uint64_t{0}) const {
    return {absl::StrFormat("f%d", file.inode), exclusive, begin, end};
  }
  Claim Handle(bool exclusive) const {
    return {absl::StrFormat("h%d", reinterpret_cast<uintptr_t>(file.handle.get())), exclusive};
  }

  uint64_t Length() const {
    switch (random.Below(12)) {
      case 0:
        return 1 + random.Below(10);
      case 1:
      case 2:
      case 3:
        return 1 + random.Below(6000);
      case 4:
      case 5:
        return kBlockSize * (1 + random.Below(4));
      case 6:
      case 7:
        return 1 + random.Below(20'000);
      case 8:
        return 64 << 10;
      case 9:
        return 1 + random.Below(150'000);
      default:
        return 1 + random.Below(500);
    }
  }

  uint64_t Offset() const {
    const uint64_t size = content().size();
    switch (random.Below(6)) {
      case 0:
        return 0;
      case 1:
        return size;
      case 2:
        return kBlockSize * random.Below(size / kBlockSize + 4);
      case 3:
        return random.Below(workload->options().max_bytes / 2);
      default:
        return random.Below(size + 1);
    }
  }
};

void Begin(FileContext& at, Operation& operation, FileChange change) {
  BeginChange(*at.workload, *at.client, at.file.inode, operation, std::move(change));
}

void Done(FileContext& at, Operation& operation, WallTime start) {
  EndChange(*at.workload, *at.client, at.file.inode, operation, start);
}

Task<bool> ReadRange(FileContext at, uint64_t offset, uint64_t length) {
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {at.Handle(false), at.Bytes(false, offset, offset + length)};
  if (!operation.Take(std::move(claims))) co_return false;
  const std::string what = absl::StrFormat("read %s %d+%d", at.model.PathOf(at.file.inode), offset, length);
  const Fid fid = at.inode().fid;
  const bool mapped = at.random.OneIn(4);
  auto read = co_await at.client->kernel->Read(at.file.handle, fid, offset, length, mapped);
  if (!operation.Expect(what, read.status(), 0)) co_return true;
  std::string wrong = at.content().CheckRead(offset, length, *read);
  if (!wrong.empty()) operation.Wrong(what + ": " + wrong);
  co_return true;
}

Task<bool> Read(FileContext at) {
  const uint64_t offset = at.Offset(), length = at.Length();
  return ReadRange(at, offset, length);
}

Task<bool> Write(FileContext at) {
  if (!at.writable()) co_return false;
  const bool append = (at.file.flags & O_APPEND) != 0;
  const uint64_t size = at.content().size();
  const uint64_t length = at.Length();
  const uint64_t offset = append ? size : at.Offset();
  if (offset + length > at.workload->options().max_bytes) co_return false;
  const bool in_place = !append && offset + length <= size;
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {at.Handle(false)};
  claims.push_back(in_place ? at.Bytes(true, offset, offset + length) : at.Bytes(true));
  if (!operation.Take(std::move(claims))) co_return false;
  const std::string what = absl::StrFormat("%s %s %d+%d", append ? "append" : "write",
                                           at.model.PathOf(at.file.inode), offset, length);
  FileChange change;
  change.offset = offset;
  change.length = length;
  change.data = Pattern(operation.id(), offset, length);
  change.append = append;
  const nacre::sim::Bytes data = change.data;
  const uint64_t cut = at.random.Below(length + 1);
  std::vector<std::span<const std::byte>> pieces = {std::span(data).subspan(0, cut),
                                                    std::span(data).subspan(cut)};
  const WallTime start = at.workload->world().clock().Wall();
  Begin(at, operation, std::move(change));
  const Fid fid = at.inode().fid;
  auto written = co_await at.client->kernel->Write(at.file.handle, fid, append ? 0 : offset, pieces);
  if (!operation.Expect(what, written.status(), 0)) co_return true;
  if (*written != length) operation.Wrong(absl::StrFormat("%s: only %d bytes", what, *written));
  Done(at, operation, start);
  co_return true;
}

Task<bool> Truncate(FileContext at) {
  if (!at.writable()) co_return false;
  const uint64_t old_size = at.content().size();
  const uint64_t size =
      at.random.OneIn(4) ? 0 : at.random.Below(std::min(old_size * 2 + 5000, uint64_t{200'000}));
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {at.Handle(false), at.Bytes(true)};
  if (!operation.Take(std::move(claims))) co_return false;
  const std::string what = absl::StrFormat("truncate %s %d", at.model.PathOf(at.file.inode), size);
  FileChange change;
  change.kind = FileChange::kTruncate;
  change.offset = size;
  const WallTime start = at.workload->world().clock().Wall();
  Begin(at, operation, std::move(change));
  client::SetAttributes set;
  set.size = size;
  const Fid fid = at.inode().fid;
  client::HandlePtr handle = at.file.handle;
  auto changed = co_await at.filesystem.Setattr(Root(), fid, set, handle);
  co_await at.client->kernel->Changed(fid);
  if (!operation.Expect(what, changed.status(), 0)) co_return true;
  if (changed->attr.size() != size)
    operation.Wrong(absl::StrFormat("%s answers %d", what, changed->attr.size()));
  Done(at, operation, start);
  co_return true;
}

Task<bool> Fallocate(FileContext at) {
  if (!at.writable()) co_return false;
  const uint64_t offset = at.Offset(), length = at.Length();
  if (offset + length > at.workload->options().max_bytes) co_return false;
  const uint64_t choice = at.random.Below(3);
  const int mode = choice == 0   ? FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
                   : choice == 1 ? FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE
                                 : 0;
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {at.Handle(false), at.Bytes(true)};
  if (!operation.Take(std::move(claims))) co_return false;
  const std::string what =
      absl::StrFormat("fallocate 0x%x %s %d+%d", mode, at.model.PathOf(at.file.inode), offset, length);
  FileChange change;
  const uint64_t old_size = at.content().size();
  const bool changes = mode != 0 || offset + length > old_size;
  change.kind = mode == 0 ? FileChange::kTruncate : FileChange::kZero;
  change.offset = mode == 0 ? std::max(old_size, offset + length) : offset;
  change.length = mode == 0 ? 0 : length;
  const WallTime start = at.workload->world().clock().Wall();
  if (changes) Begin(at, operation, std::move(change));
  const Fid fid = at.inode().fid;
  Status status = co_await at.filesystem.Fallocate(at.file.handle, mode, offset, length);
  co_await at.client->kernel->Changed(fid);
  if (!operation.Expect(what, status, 0)) co_return true;
  if (changes) Done(at, operation, start);
  if (!changes) at.inode().mtime.known = false;
  co_return true;
}

Task<bool> Fsync(FileContext at) {
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {at.Handle(false)};
  if (!operation.Take(std::move(claims))) co_return false;
  const std::string what = "fsync " + at.model.PathOf(at.file.inode);
  const std::vector<uint64_t> before = at.content().Acknowledged();
  const bool data_only = at.random.OneIn(2);
  Status status = co_await at.filesystem.Fsync(at.file.handle, data_only);
  if (at.workload->flush_may_fail() && ToErrno(status) == EIO) {
    (void)operation.Expect(what, status, EIO);
    co_return true;
  }
  if (!operation.Expect(what, status, 0)) co_return true;
  if (at.client->failing) co_return true;  // an fsync before it may have told of the loss, as it does once
  at.workload->NotePromise(Promise::kSynced);
  at.inode().synced = true;
  if (!data_only && at.inode().times_held_by == at.client->index) at.inode().times_held_by.reset();
  const int client = at.client->index;
  at.content().MakeDurable([&before, client](const FileChange& change) {
    // Another client's write is durable only if it has been sent: without a lease it is at once.
    return std::find(before.begin(), before.end(), change.operation) != before.end() &&
           (change.client == client || !change.lazy);
  });
  co_return true;
}

// `links`: their number, too, which others change.
Task<bool> FileGetattr(FileContext at, bool links = false) {
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {at.Handle(false), at.Bytes(false)};
  if (links) claims.push_back(AttributeClaim(at.file.inode, false));
  if (!operation.Take(std::move(claims))) co_return false;
  const std::string what = "fstat " + at.model.PathOf(at.file.inode);
  const Fid fid = at.inode().fid;
  auto attr = co_await at.client->kernel->Stat(at.file.handle, fid);
  if (!operation.Expect(what, attr.status(), 0)) co_return true;
  if (attr->size() != at.content().size()) {
    operation.Wrong(absl::StrFormat("%s: size %d instead of %d", what, attr->size(), at.content().size()));
  }
  if (links && attr->nlink() != at.inode().nlink)
    operation.Wrong(absl::StrFormat("%s: %d links instead of %d", what, attr->nlink(), at.inode().nlink));
  co_return true;
}

Task<bool> Close(FileContext at) {
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {at.Handle(true)};
  if (!operation.Take(std::move(claims))) co_return false;
  const std::string what = "close " + at.model.PathOf(at.file.inode);
  at.client->kernel->Closed(at.file.handle);
  Status status = co_await at.filesystem.Flush(at.file.handle, 0);
  if (status.ok()) status = co_await at.filesystem.Release(at.file.handle);
  if (!operation.Expect(what, status, 0)) co_return true;
  at.workload->NotePromise(Promise::kClosed);
  std::erase_if(at.client->files, [&](const OpenFile& file) { return file.handle == at.file.handle; });
  at.model.Closed(at.file.inode);
  co_return true;
}

void Load(FileContext at) {
  Operation operation(*at.workload, *at.client);
  std::vector<Claim> claims = {at.Bytes(false)};
  if (!operation.Take(std::move(claims))) return;
  const std::string what = "load " + at.model.PathOf(at.file.inode);
  if (!operation.Expect(what, OkStatus(), 0)) return;
  const uint64_t size = at.content().size();
  auto resident = at.client->kernel->Resident(at.inode().fid);
  for (auto& [index, page] : resident) {
    const uint64_t offset = index * kBlockSize;
    page.resize(std::min(kBlockSize, size - std::min(size, offset)));
    const std::string wrong = at.content().CheckRead(offset, kBlockSize, page);
    if (!wrong.empty()) operation.Wrong(what + ": " + wrong);
  }
}

}  // namespace

void LoadResident(Workload* workload, ClientState* client) {
  for (const OpenFile& file : client->files) Load(FileContext(workload, client, file));
}

Task<bool> ReadData(Workload* workload, ClientState* client) {
  FileContext at(workload, client, client->files[workload->random().Below(client->files.size())]);
  return at.random.OneIn(2) ? Read(at) : FileGetattr(at);
}

Task<bool> ByteOperation(Workload* workload, ClientState* client) {
  std::vector<OpenFile> files;
  for (const OpenFile& file : client->files)
    if ((file.flags & O_DIRECT) != 0) files.push_back(file);
  if (files.empty()) files = client->files;
  FileContext at(workload, client, files[workload->random().Below(files.size())]);
  return at.random.OneIn(2) ? Write(at) : ReadRange(at, 0, workload->options().max_bytes);
}

void BeginChange(Workload& workload, ClientState& client, InodeId inode, Operation& operation,
                 FileChange change) {
  change.operation = operation.id();
  change.client = client.index;
  workload.model().file(inode).Begin(std::move(change));
}

void EndChange(Workload& workload, ClientState& client, InodeId inode, Operation& operation, WallTime start) {
  World& world = workload.world();
  FileModel& content = workload.model().file(inode);
  const bool early = client.filesystem->Look().early_writes != operation.began().early_writes;
  content.Acknowledge(operation.id(), world.clock().Now(), early, workload.done());
  if (early) workload.model().WroteEarly(client.index, inode);
  std::optional<int>& times_held_by = workload.model().inode(inode).times_held_by;
  times_held_by.reset();
  if (early) times_held_by = client.index;
  // Older writes have been sent by write-behind; but a client that was frozen has sent nothing meanwhile.
  const Duration old = client.failing ? Duration::min() : world.clock().Now() - 12s;
  content.MakeDurable([old](const FileChange& change) { return change.at < old; });
  TimeBounds& mtime = workload.model().inode(inode).mtime;
  const WallTime end = world.clock().Wall();
  mtime.low = mtime.known ? std::max(mtime.low, start) : start;
  mtime.high = mtime.known ? std::max(mtime.high, end) : end;
  mtime.known = workload.options().exact_times;
}

namespace {

// Others may look at the file between two of these.
Task<bool> WriteOften(FileContext at) {
  for (uint64_t left = 1 + at.random.Below(8); left > 0 && at.IsOpen(); --left) {
    const bool written = co_await Write(at);
    if (!written || at.client->failing) break;
    co_await at.workload->world().clock().Sleep(std::chrono::microseconds(at.random.Below(3000)));
  }
  if (at.IsOpen() && !at.client->failing) (void)co_await FileGetattr(at, /*links=*/true);
  co_return true;
}

}  // namespace

Task<bool> DataOperation(Workload* workload, ClientState* client) {
  FileContext at(workload, client, client->files[workload->random().Below(client->files.size())]);
  if (workload->options().in_rows && at.writable() && at.random.OneIn(2)) return WriteOften(at);
  switch (at.random.Below(22)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
      return Read(at);
    case 6:
      return Truncate(at);
    case 7:
    case 8:
      return Fallocate(at);
    case 9:
    case 10:
      return Fsync(at);
    case 11:
    case 12:
      return FileGetattr(at);
    case 13:
      return Close(at);
    default:
      return Write(at);
  }
}

}  // namespace nacre::sim
