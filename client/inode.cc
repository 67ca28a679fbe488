#include "client/inode.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/log.h"
#include "rpc/convert.h"

namespace nacre::client {

namespace {

// Bytes of an inode with what usually hangs on it: attributes, the layout, a place in the table. The test
// InodeTable.CountsWhatItTakes compares it with what malloc says.
constexpr int64_t kInodeBytes = sizeof(Inode) + 480;

}  // namespace

// Copies `size` bytes that begin `skip` bytes into the pieces.
void CopyOut(std::span<const std::span<const std::byte>> pieces, uint64_t skip, std::byte* to,
             uint64_t size) {
  for (std::span<const std::byte> piece : pieces) {
    if (skip >= piece.size()) {
      skip -= piece.size();
      continue;
    }
    uint64_t n = std::min<uint64_t>(piece.size() - skip, size);
    std::memcpy(to, piece.data() + skip, n);
    to += n;
    size -= n;
    skip = 0;
    if (size == 0) return;
  }
}

Inode::Inode(Fid id, std::shared_ptr<DataCache> cache, std::shared_ptr<MemoryBudget> memory)
    : fid(id), data_cache(std::move(cache)), budget(std::move(memory)) {
  budget->CountInodes(kInodeBytes);
}

Inode::~Inode() {
  data_cache->Drop(data, 0, UINT64_MAX, nullptr);
  budget->CountInodes(-kInodeBytes);
}

bool FileHandle::readable() const { return (flags & O_ACCMODE) != O_WRONLY; }
bool FileHandle::writable() const { return (flags & O_ACCMODE) != O_RDONLY; }

proto::Attr Inode::Effective() const {
  proto::Attr out = attr;
  out.set_size(Size());
  if (pending.mtime) {
    // Others may have written later to a file that is shared; a time from the future was set by somebody.
    const bool set = FromProto(attr.mtime()) > FromProto(attr.ctime());
    if (set || *pending.mtime > FromProto(attr.mtime())) *out.mutable_mtime() = ToProto(*pending.mtime);
    if (*pending.mtime > FromProto(out.ctime())) *out.mutable_ctime() = ToProto(*pending.mtime);
  }
  if (pending.kill_suid)
    out.set_mode(out.mode() & ~static_cast<uint32_t>(S_ISUID | ((out.mode() & S_IXGRP) ? S_ISGID : 0)));
  if (pending.cut) out.set_blocks((out.size() + 511) / 512);
  int64_t blocks = static_cast<int64_t>(out.blocks()) + pending.blocks_delta;
  out.set_blocks(static_cast<uint64_t>(std::max<int64_t>(blocks, 0)));
  if (dirty_blocks >
      0) {  // they will take space; overwritten ones are counted twice, so no more than the size can need
    constexpr uint64_t kSectors = kBlockSize / 512;
    uint64_t most = std::max((out.size() + kBlockSize - 1) / kBlockSize * kSectors, out.blocks());
    out.set_blocks(std::min(out.blocks() + dirty_blocks * kSectors, most));
  }
  return out;
}

bool Inode::Apply(const proto::Attr& newer) {
  if (attr_known && newer.change() < attr.change()) return false;
  attr = newer;
  attr_known = true;
  if (attr.nlink() > 0) {  // also of a file that a loss of power of the MDT has given its name back
    gone = false;
    overtold = overtold || kept_open;
    kept_open = false;
  }
  if (layout != nullptr && layout->generation() < attr.layout_generation()) layout.reset();
  return true;
}

std::optional<FileContent> Inode::Content() const {
  FileContent content;
  content.size = attr.size();
  content.change = attr.change();
  if (Inline()) content.inline_bytes = inline_bytes.get();
  if (!Inline()) content.layout = layout;
  if (!attr_known || (content.inline_bytes == nullptr && content.layout == nullptr)) return std::nullopt;
  return content;
}

std::optional<FileContent> Inode::CurrentContent() const {
  const bool held = data_scope != nullptr || pending.cut;
  return held || content_change == attr.change() ? Content() : std::nullopt;
}

void Inode::CountChange() {
  const bool current = content_change == attr.change();
  attr.set_change(attr.change() + 1);
  if (current) content_change = attr.change();
}

ScopePtr Inode::EndScope() {
  ended = std::move(scope);
  scope.reset();
  ended->End();
  return ended;
}

void Inode::NoteLeaving(const Scope& ending) {
  if (ending.lease() != 0) leaving.push_back({ending.lease(), ending.mode()});
}

uint64_t Inode::ForgetPages() {
  pages.some = false;
  pages.content = 0;
  const uint64_t lease = std::exchange(pages.lease, 0);
  if (lease == 0) return 0;
  ++pages.recalls;
  leaving.push_back({.lease = lease, .mode = proto::LEASE_READ, .forgotten = true});
  return lease;
}

void Inode::NoteAlone(uint64_t lease) {
  if (lease != 0 && IsCovered() && covered->writes() && covered->lease() == lease) alone_under = covered;
}

void Inode::LeaveCover() {
  covered.reset();
  alone_under.reset();
  made_under.reset();
  no_capability_under.reset();
  synced_under.reset();
}

void Inode::Forget() {
  names.Forget();
  ++version;
  pages.content = 0;
  attr_known = false;
  covered.reset();
  unsynced_whole = false;  // others may write
  // Data that is held back still has to be sent to these objects; the MDS refuses it if they are not the
  // file's.
  if (dirty_blocks == 0 && !pending.any()) layout.reset();
  if (!inline_unsent()) inline_bytes.reset();
}

void Inode::Reset() {
  pending = {};
  inline_dirty_begin = inline_dirty_end = 0;
  dirty_blocks = 0;
  listed_dirty = direct_dirty = rewritten = false;
  mutation = 0;
  unsynced.clear();
  opens = write_opens = told = told_writes = 0;
  kept_open = overtold = false;
  locks.clear();
  pages.some = false;
  pages.lease = pages.content = 0;
  pages.under.reset();
  ++pages.recalls;
  if (scope != nullptr) EndScope();
  opened_under.reset();
  LeaveCover();
  EndData();
  leaving.clear();
  Forget();
}

Status ContentLost(const Inode& inode) {
  return ErrnoError(EIO, absl::StrFormat("file %s: its content was lost while this operation waited",
                                         inode.fid.ToString()));
}

Status Inode::WriteInline(uint64_t offset, std::span<const std::span<const std::byte>> pieces, size_t size) {
  if (inline_bytes == nullptr) return ContentLost(*this);
  const uint64_t old_size = inline_bytes->size();
  std::string& bytes = inline_bytes.Grow(offset + size);
  uint64_t begin = std::min<uint64_t>(offset, old_size);  // a gap is written as zeros
  CopyOut(pieces, 0, reinterpret_cast<std::byte*>(bytes.data()) + offset, size);
  if (inline_dirty()) begin = std::min(begin, inline_dirty_begin);
  inline_dirty_end = std::max(inline_dirty() ? inline_dirty_end : 0, offset + size);
  inline_dirty_begin = begin;
  return OkStatus();
}

bool Inode::DropLink(const proto::Time& now, bool* keep_open) {
  const bool is_directory = S_ISDIR(attr.mode());
  attr.set_nlink(is_directory ? 0 : attr.nlink() - 1);
  *attr.mutable_ctime() = now;
  CountChange();
  if (is_directory || attr.nlink() > 0) return false;
  LeaveCover();
  EndData();
  kept_open = *keep_open = opens > 0;
  gone = !kept_open;
  return gone;
}

void Inode::NoteSent(const Pending& sent) {
  pending.blocks_delta += sent.blocks_delta;
  pending.sent_size = std::max(pending.sent_size, sent.sent_size);
}

void Inode::CutInline(uint64_t size, bool was_inline) {
  if (!attr.inline_data()) {
    inline_bytes.reset();
    inline_dirty_begin = inline_dirty_end = 0;
    return;
  }
  if (size == 0 || !was_inline || inline_bytes == nullptr || data_scope == nullptr) {
    inline_bytes = size == 0 ? std::make_shared<std::string>() : nullptr;
    inline_dirty_begin = inline_dirty_end = 0;
    return;
  }
  auto bytes = std::make_shared<std::string>(*inline_bytes);
  bytes->resize(size);
  inline_bytes = std::move(bytes);
  inline_dirty_end = std::min(inline_dirty_end, size);
}

void Inode::ForgetLayout(const LayoutPtr& old) {
  if (layout != old) return;
  layout.reset();
  attr_known = false;
}

void Inode::ApplyLayout(const proto::Layout& proto_layout) {
  if (layout != nullptr && layout->generation() >= proto_layout.generation()) return;
  auto made = LayoutMap::Make(proto_layout);
  if (made.ok()) {
    layout = *std::move(made);
  } else {
    LogError("file %s: the MDS sent a bad layout: %s", fid.ToString(), std::string(made.status().message()));
  }
}

bool HoldsData(Inode& inode) {
  std::lock_guard lock(inode.mutex);
  return inode.data_scope != nullptr;
}

bool HoldsBack(Inode& inode) {
  if (inode.data_cache->IsDirty(inode.data)) return true;
  std::lock_guard lock(inode.mutex);
  return inode.holds_back();
}

bool ReadsCached(Inode& inode) {
  std::lock_guard lock(inode.mutex);
  return inode.data_scope != nullptr || inode.ContentLeased();
}

void NoteError(Inode& inode, const Status& status) {
  std::lock_guard lock(inode.mutex);
  inode.errors.Note(status);
}

}  // namespace nacre::client
