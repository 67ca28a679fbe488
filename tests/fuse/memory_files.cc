// MemoryFileSystem's open files: their data and their locks.
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "rpc/convert.h"
#include "tests/fuse/memory_filesystem.h"

namespace nacre::client {
namespace {

bool Overlap(const proto::LockRange& a, const proto::LockRange& b) {
  return FromProto(a.fid()) == FromProto(b.fid()) && a.flock() == b.flock() && a.start() <= b.end() &&
         b.start() <= a.end();
}

}  // namespace

Task<StatusOr<Created>> MemoryFileSystem::Create(const Caller& caller, Fid parent, std::string name,
                                                 uint32_t mode, int flags) {
  std::lock_guard lock(mutex_);
  CO_ASSIGN_OR_RETURN(NodePtr node, Insert(caller, parent, name, S_IFREG | (mode & 07777)));
  ++open_handles_;
  co_return Created{KnownOf(node), MemoryHandle::Make(node, flags)};
}

Task<StatusOr<HandlePtr>> MemoryFileSystem::Open(const Caller&, Fid fid, int flags) {
  std::lock_guard lock(mutex_);
  NodePtr node = NodeOf(fid);
  if (node == nullptr) co_return ErrnoError(ESTALE, fid.ToString());
  if (flags & O_TRUNC) {
    node->data.clear();
    node->attr.set_size(0);
    Touch(node);
  }
  ++open_handles_;
  co_return MemoryHandle::Make(node, flags);
}

Task<Status> MemoryFileSystem::Release(HandlePtr) {
  std::lock_guard lock(mutex_);
  --open_handles_;
  co_return OkStatus();
}

Task<Status> MemoryFileSystem::Flush(HandlePtr handle, uint64_t lock_owner) {
  co_await WaitWhile(&hold_flushes_);
  std::lock_guard lock(mutex_);
  locks_.remove_if([&](const proto::LockRange& held) {
    return !held.flock() && held.owner() == lock_owner &&
           FromProto(held.fid()) == FromProto(MemoryHandle::Of(handle).node->attr.fid());
  });
  GrantWaiters();
  co_return OkStatus();
}

Task<Status> MemoryFileSystem::Fsync(HandlePtr, bool) { co_return OkStatus(); }

// Resumes on another thread first, as an answer from a server would.
// FUSE does not ask for it.
Task<StatusOr<PiecesRead>> MemoryFileSystem::ReadInto(HandlePtr, std::vector<ReadPiece>, CancellationPtr) {
  co_return ErrnoError(ENOTSUP, "the tests' filesystem reads into no registered memory");
}

Task<StatusOr<ReadResult>> MemoryFileSystem::Read(HandlePtr handle, uint64_t offset, size_t size) {
  co_await Yield();
  {
    std::lock_guard lock(mutex_);
    ++reads_;
  }
  co_await WaitWhile(&hold_reads_);
  std::lock_guard lock(mutex_);
  const std::string& data = MemoryHandle::Of(handle).node->data;
  ReadResult result;
  if (offset >= data.size()) co_return result;
  auto copy = std::make_shared<std::string>(data.substr(offset, size));
  std::span<const std::byte> bytes = std::as_bytes(std::span(*copy));
  size_t half = bytes.size() / 2;  // in two pieces
  result.pieces = {bytes.first(half), bytes.subspan(half)};
  result.size = bytes.size();
  result.keep = copy;
  co_return result;
}

// Suspends before it looks at the data, which must therefore stay in place.
Task<StatusOr<size_t>> MemoryFileSystem::Write(HandlePtr handle, uint64_t offset,
                                               std::span<const std::span<const std::byte>> pieces) {
  co_await Yield();
  co_await WaitWhile(&hold_writes_);
  std::lock_guard lock(mutex_);
  std::string& data = MemoryHandle::Of(handle).node->data;
  if (MemoryHandle::Of(handle).flags & O_APPEND) offset = data.size();
  size_t written = 0;
  for (std::span<const std::byte> piece : pieces) {
    if (data.size() < offset + piece.size()) data.resize(offset + piece.size());
    std::memcpy(data.data() + offset, piece.data(), piece.size());
    offset += piece.size();
    written += piece.size();
  }
  MemoryHandle::Of(handle).node->attr.set_size(data.size());
  Touch(MemoryHandle::Of(handle).node);
  co_return written;
}

Task<StatusOr<size_t>> MemoryFileSystem::WriteBack(HandlePtr handle, uint64_t offset,
                                                   std::span<const std::span<const std::byte>> pieces) {
  HandlePtr plain = MemoryHandle::Make(MemoryHandle::Of(handle).node, O_WRONLY);
  co_return co_await Write(plain, offset, pieces);
}

Task<Status> MemoryFileSystem::Fallocate(HandlePtr handle, int mode, uint64_t offset, uint64_t length) {
  std::lock_guard lock(mutex_);
  std::string& data = MemoryHandle::Of(handle).node->data;
  if (mode & FALLOC_FL_PUNCH_HOLE) {
    for (uint64_t i = offset; i < std::min<uint64_t>(offset + length, data.size()); ++i) data[i] = 0;
  } else if (mode == 0 && data.size() < offset + length) {
    data.resize(offset + length);
    MemoryHandle::Of(handle).node->attr.set_size(data.size());
  } else if (mode != 0 && mode != FALLOC_FL_KEEP_SIZE) {
    co_return ErrnoError(EOPNOTSUPP, "fallocate mode");
  }
  Touch(MemoryHandle::Of(handle).node);
  co_return OkStatus();
}

Task<StatusOr<uint64_t>> MemoryFileSystem::Seek(HandlePtr handle, uint64_t offset, int whence) {
  std::lock_guard lock(mutex_);
  const std::string& data = MemoryHandle::Of(handle).node->data;
  if (offset >= data.size()) co_return ErrnoError(ENXIO, "behind the end");
  if (whence == SEEK_HOLE) {
    size_t at = data.find('\0', offset);
    co_return at == std::string::npos ? data.size() : at;
  }
  while (offset < data.size() && data[offset] == 0) ++offset;
  if (offset == data.size()) co_return ErrnoError(ENXIO, "no data");
  co_return offset;
}

Task<StatusOr<size_t>> MemoryFileSystem::CopyRange(HandlePtr from, uint64_t from_offset, HandlePtr to,
                                                   uint64_t to_offset, size_t size) {
  std::lock_guard lock(mutex_);
  if (from_offset >= MemoryHandle::Of(from).node->data.size()) co_return size_t{0};
  std::string copied = MemoryHandle::Of(from).node->data.substr(from_offset, size);
  std::string& data = MemoryHandle::Of(to).node->data;
  if (data.size() < to_offset + copied.size()) data.resize(to_offset + copied.size());
  data.replace(to_offset, copied.size(), copied);
  MemoryHandle::Of(to).node->attr.set_size(data.size());
  Touch(MemoryHandle::Of(to).node);
  co_return copied.size();
}

const proto::LockRange* MemoryFileSystem::Conflict(const proto::LockRange& lock) const {
  for (const proto::LockRange& held : locks_) {
    if (held.owner() == lock.owner() || !Overlap(held, lock)) continue;
    if (held.type() == F_WRLCK || lock.type() == F_WRLCK) return &held;
  }
  return nullptr;
}

// Whole ranges only: an owner's overlapping locks are replaced, not split.
void MemoryFileSystem::Apply(const proto::LockRange& lock) {
  locks_.remove_if(
      [&](const proto::LockRange& held) { return held.owner() == lock.owner() && Overlap(held, lock); });
  if (lock.type() != F_UNLCK) locks_.push_back(lock);
}

void MemoryFileSystem::GrantWaiters() {
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (Conflict(it->lock) != nullptr) {
      ++it;
      continue;
    }
    Apply(it->lock);
    it->turn.Set(OkStatus());
    it = waiters_.erase(it);
  }
}

Task<StatusOr<proto::LockRange>> MemoryFileSystem::GetLock(HandlePtr, proto::LockRange lock) {
  std::lock_guard guard(mutex_);
  if (const proto::LockRange* conflict = Conflict(lock)) co_return *conflict;
  lock.set_type(F_UNLCK);
  co_return lock;
}

Task<Status> MemoryFileSystem::SetLock(HandlePtr, proto::LockRange lock, bool wait, uint64_t wait_id) {
  OneShot<Status> turn;
  {
    std::lock_guard guard(mutex_);
    if (lock.type() == F_UNLCK || Conflict(lock) == nullptr) {
      Apply(lock);
      GrantWaiters();
      co_return OkStatus();
    }
    if (!wait) co_return ErrnoError(EAGAIN, "locked");
    waiters_.push_back({lock, wait_id, turn});
  }
  co_return co_await turn.Wait();
}

void MemoryFileSystem::CancelLock(HandlePtr, uint64_t wait_id) {
  std::lock_guard guard(mutex_);
  waiters_.remove_if([&](const Waiter& waiter) {
    if (waiter.id != wait_id) return false;
    waiter.turn.Set(ErrnoError(EINTR, "interrupted"));
    return true;
  });
}

}  // namespace nacre::client
