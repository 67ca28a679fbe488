#include "fuse/request.h"

#include <sys/stat.h>

#include <cerrno>

namespace nacre::fuse {

Request::Request(fuse_req_t request)
    : request_(request),
      session_(static_cast<Session*>(fuse_req_userdata(request))->shared_from_this()),
      caller_(session_->callers().Of(request)) {
  session_->RequestBegins();
}

Request::Request(Request&& other) noexcept
    : request_(std::exchange(other.request_, nullptr)),
      session_(std::move(other.session_)),
      caller_(std::move(other.caller_)) {}

Request::~Request() {
  if (session_ == nullptr) return;  // moved from
  if (request_ != nullptr) fuse_reply_err(request_, EIO);
  session_->RequestEnds();
}

void Request::Error(int error) { fuse_reply_err(Take(), error); }

void Request::Entry(const StatusOr<client::Known>& known) {
  if (!known.ok()) return Done(known.status());
  fuse_entry_param entry = MakeEntry(*session_, *known);
  // Refused when the caller was interrupted: then the kernel has not counted the lookup.
  if (fuse_reply_entry(Take(), &entry) != 0) session_->nodes().Forget(entry.ino, 1);
}

void Request::NoEntry(Duration valid) {
  if (valid <= Duration(0)) return Error(ENOENT);
  fuse_entry_param entry{};
  entry.entry_timeout = Seconds(valid);
  fuse_reply_entry(Take(), &entry);
}

void Request::Attributes(const StatusOr<client::Known>& known) {
  if (!known.ok()) return Done(known.status());
  struct stat attributes;
  FillStat(known->attr, &attributes);
  fuse_reply_attr(Take(), &attributes, Seconds(known->valid));
}

void Request::Text(std::string_view text) { fuse_reply_buf(Take(), text.data(), text.size()); }

void Request::Count(const StatusOr<size_t>& count) {
  if (!count.ok()) return Done(count.status());
  fuse_reply_write(Take(), *count);
}

double Seconds(Duration duration) {
  return duration <= Duration(0) ? 0 : std::chrono::duration<double>(duration).count();
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

fuse_entry_param MakeEntry(Session& session, const client::Known& known) {
  fuse_entry_param entry{};
  const proto::Fid& fid = known.attr.fid();
  entry.ino = session.nodes().Refer({fid.sequence(), fid.object(), fid.version()});
  entry.attr_timeout = entry.entry_timeout = Seconds(known.valid);
  FillStat(known.attr, &entry.attr);
  return entry;
}

}  // namespace nacre::fuse
