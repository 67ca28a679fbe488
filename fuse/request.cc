#include "fuse/request.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

namespace nacre::fuse {

Request::Request(fuse_req_t request, Patience patience)
    : session_(static_cast<Session*>(fuse_req_userdata(request))->shared_from_this()),
      caller_(session_->callers().Of(request)) {
  answer_ = std::make_shared<Answer>(request, caller_.pid, patience);
  session_->RequestBegins();
}

Request::Request(Request&& other) noexcept
    : session_(std::move(other.session_)),
      answer_(std::move(other.answer_)),
      answered_(other.answered_),
      caller_(std::move(other.caller_)) {}

Request::~Request() {
  if (session_ == nullptr) return;  // moved from
  if (!answered_) Error(EIO);
  answer_->TaskEnds();
  session_->RequestEnds();
}

void Request::Error(int error) { Reply(fuse_reply_err, error); }

void Request::Entry(const StatusOr<client::Known>& known) {
  if (!known.ok()) return Done(known.status());
  fuse_entry_param entry = MakeEntry(*session_, *known);
  // The kernel has not counted a lookup whose answer it did not get.
  if (!Reply(fuse_reply_entry, &entry)) session_->nodes().Forget(entry.ino, 1);
}

void Request::NoEntry(Duration until) {
  fuse_entry_param entry{};
  entry.entry_timeout = SecondsTo(until);
  if (entry.entry_timeout <= 0) return Error(ENOENT);
  Reply(fuse_reply_entry, &entry);
}

bool Request::Attributes(const StatusOr<client::Known>& known) {
  if (!known.ok()) return Reply(fuse_reply_err, ToErrno(known.status()));
  struct stat attributes;
  FillStat(known->attr, &attributes);
  return Reply(fuse_reply_attr, &attributes, AttributesTimeout(*session_, *known));
}

void Request::Text(std::string_view text) { Reply(fuse_reply_buf, text.data(), text.size()); }

bool Request::Count(const StatusOr<size_t>& count) {
  return count.ok() ? Reply(fuse_reply_write, *count) : Reply(fuse_reply_err, ToErrno(count.status()));
}

Task<void> ForgetInode(Request& request, Fid fid) {
  std::optional<uint64_t> node = request.session().nodes().Find(fid);
  if (!node) co_return;
  OneShot<Unit> done = request.session().invalidator().Inode(*node, 0, UINT64_MAX);
  co_await done.Wait();
}

// As long as a kernel that hears of it now may keep an answer (client::Known). The clock is a little late,
// for which the promise has room (client/scope.h).
double SecondsTo(Duration until) {
  if (until == Duration(0)) return 0;
  return std::max(0.0, std::chrono::duration<double>(until - RealClock().Coarse()).count());
}

void FillStat(const proto::Attr& attr, struct stat* out) {
  *out = {};
  const proto::Fid& fid = attr.fid();
  out->st_ino = NodeTable::Ino({fid.sequence(), fid.object(), fid.version()});
  out->st_mode = attr.mode();
  out->st_nlink = attr.nlink();
  out->st_uid = attr.uid();
  out->st_gid = attr.gid();
  out->st_rdev = attr.rdev();
  out->st_size = static_cast<off_t>(attr.size());
  out->st_blksize = kBlockSize;
  out->st_blocks = static_cast<blkcnt_t>(attr.blocks());
  out->st_atim = {attr.atime().seconds(), attr.atime().nanos()};
  out->st_mtim = {attr.mtime().seconds(), attr.mtime().nanos()};
  out->st_ctim = {attr.ctime().seconds(), attr.ctime().nanos()};
}

double AttributesTimeout(Session& session, const client::Known& known) {
  return session.filesystem().IsCurrent(known.attr) ? SecondsTo(known.until) : 0;
}

fuse_entry_param MakeEntry(Session& session, const client::Known& known) {
  fuse_entry_param entry{};
  const proto::Fid& fid = known.attr.fid();
  entry.ino = session.nodes().Refer({fid.sequence(), fid.object(), fid.version()});
  entry.entry_timeout =
      SecondsTo(known.name_until);  // while a name is looked up the kernel lets nobody change it
  entry.attr_timeout = AttributesTimeout(session, known);
  FillStat(known.attr, &entry.attr);
  return entry;
}

}  // namespace nacre::fuse
