// POSIX and BSD locks. A wait ends when the caller gets a signal, of whatever kind, as it does everywhere.
#include <fcntl.h>
#include <sys/file.h>

#include <atomic>
#include <cerrno>

#include "fuse/request.h"

namespace nacre::fuse {
namespace {

uint64_t NextWaitId() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

proto::LockRange MakeRange(const OpenFile& file, uint64_t owner) {
  proto::LockRange lock;
  lock.mutable_fid()->set_sequence(file.fid.sequence);
  lock.mutable_fid()->set_object(file.fid.object);
  lock.mutable_fid()->set_version(file.fid.version);
  lock.set_owner(owner);
  lock.set_end(INT64_MAX);
  return lock;
}

proto::LockRange PosixRange(const OpenFile& file, uint64_t owner, const struct flock& from) {
  proto::LockRange lock = MakeRange(file, owner);
  lock.set_type(static_cast<uint32_t>(from.l_type));
  lock.set_start(static_cast<uint64_t>(from.l_start));
  if (from.l_len > 0) lock.set_end(static_cast<uint64_t>(from.l_start + from.l_len - 1));
  lock.set_pid(static_cast<uint32_t>(from.l_pid));
  return lock;
}

Task<void> GetLock(Request request, client::HandlePtr handle, proto::LockRange wanted) {
  StatusOr<proto::LockRange> conflict =
      co_await request.filesystem().GetLock(std::move(handle), std::move(wanted));
  if (!conflict.ok()) co_return request.Done(conflict.status());
  struct flock out {};
  out.l_type = static_cast<short>(conflict->type());
  out.l_whence = SEEK_SET;
  out.l_start = static_cast<off_t>(conflict->start());
  bool to_the_end = conflict->end() >= static_cast<uint64_t>(INT64_MAX);
  out.l_len = to_the_end ? 0 : static_cast<off_t>(conflict->end() - conflict->start() + 1);
  out.l_pid = static_cast<pid_t>(conflict->pid());
  request.Reply(fuse_reply_lock, &out);
}

Task<void> SetLock(Request request, client::HandlePtr handle, proto::LockRange lock, bool wait) {
  client::FileSystem& filesystem = request.filesystem();
  const uint64_t wait_id = wait ? NextWaitId() : 0;
  if (wait)
    request.answer()->OnSignal([&filesystem, handle, wait_id] { filesystem.CancelLock(handle, wait_id); });
  Status status = co_await filesystem.SetLock(handle, lock, wait, wait_id);
  if (request.Reply(fuse_reply_err, ToErrno(status)) || !status.ok() || lock.type() == F_UNLCK) co_return;
  lock.set_type(
      F_UNLCK);  // the caller has been let go, and has perhaps closed the file before it got the lock
  (void)co_await filesystem.SetLock(handle, lock, false, 0);
}

void Flock(fuse_req_t raw, fuse_ino_t, fuse_file_info* info, int operation) {
  OpenFile& file = FileOf(*info);
  proto::LockRange lock = MakeRange(file, info->lock_owner);
  lock.set_flock(true);
  switch (operation & (LOCK_SH | LOCK_EX | LOCK_UN)) {
    case LOCK_SH:
      lock.set_type(F_RDLCK);
      break;
    case LOCK_EX:
      lock.set_type(F_WRLCK);
      break;
    case LOCK_UN:
      lock.set_type(F_UNLCK);
      break;
    default:
      fuse_reply_err(raw, EINVAL);
      return;
  }
  file.flocked = true;
  bool wait = (operation & LOCK_NB) == 0 && lock.type() != F_UNLCK;
  Start(raw, SetLock, file.handle, std::move(lock), wait);
}

void SetPosixLock(fuse_req_t raw, fuse_ino_t, fuse_file_info* info, struct flock* lock, int wait) {
  OpenFile& file = FileOf(*info);
  bool unlock = lock->l_type == F_UNLCK;
  if (!unlock) {
    std::lock_guard guard(file.mutex);
    file.lock_owners.insert(info->lock_owner);
  }
  Start(raw, SetLock, file.handle, PosixRange(file, info->lock_owner, *lock), wait != 0 && !unlock);
}

}  // namespace

std::vector<proto::LockRange> UnlocksAtRelease(OpenFile& file, const fuse_file_info& info) {
  std::vector<proto::LockRange> unlocks;
  auto add = [&](uint64_t owner, bool flock) {
    proto::LockRange lock = MakeRange(file, owner);
    lock.set_type(F_UNLCK);
    lock.set_flock(flock);
    unlocks.push_back(std::move(lock));
  };
  if (file.flocked && info.flock_release) add(info.lock_owner, true);
  std::lock_guard guard(file.mutex);
  for (uint64_t owner : file.lock_owners) add(owner, false);
  return unlocks;
}

void AddLocks(fuse_lowlevel_ops* ops) {
  ops->getlk = [](fuse_req_t raw, fuse_ino_t, fuse_file_info* info, struct flock* lock) {
    OpenFile& file = FileOf(*info);
    Start(raw, GetLock, file.handle, PosixRange(file, info->lock_owner, *lock));
  };
  ops->setlk = SetPosixLock;
  ops->flock = Flock;
}

}  // namespace nacre::fuse
