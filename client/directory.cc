// Opendir and readdir. Reading a whole directory under the lease makes its entries known: lookups need no
// request then.
#include <fcntl.h>

#include "client/core.h"

namespace nacre::client {
namespace {

constexpr size_t kKeptEntries = 100'000;  // of one directory

}  // namespace

Task<StatusOr<HandlePtr>> Core::Opendir(const Caller& caller, Fid fid) {
  co_return co_await Open(caller, fid, O_RDONLY | O_DIRECTORY);
}

Task<StatusOr<std::vector<DirEntry>>> Core::Readdir(const Caller& caller, HandlePtr directory,
                                                    uint64_t cookie, size_t limit, bool plus) {
  NACRE_ENTER(pass);
  CO_RETURN_IF_ERROR(CheckHandle(*directory));
  Inode& inode = *directory->inode;
  FillToken token = BeginFill(inode);
  proto::MetadataRequest request;
  proto::Readdir* readdir = request.mutable_readdir();
  *readdir->mutable_fid() = ToProto(inode.fid);
  readdir->set_cookie(cookie);
  readdir->set_limit(static_cast<uint32_t>(limit));
  readdir->set_plus(plus || cached());
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await Ask(caller, std::move(request)));

  std::vector<DirEntry> entries;
  entries.reserve(static_cast<size_t>(reply.readdir().entries_size()));
  bool kept = cached();
  for (proto::DirEntry& found : *reply.mutable_readdir()->mutable_entries()) {
    DirEntry entry;
    entry.fid = FromProto(found.fid());
    entry.type = found.type();
    entry.cookie = found.cookie();
    entry.name = std::move(*found.mutable_name());
    if (found.has_attr()) {
      Known known = Learn(found.attr());
      if (plus) entry.known = std::move(known);
    }
    if (kept) kept = FillName(*inodes_, inode, token, entry.name, entry.fid);
    entries.push_back(std::move(entry));
  }
  if (cached()) NoteScan(*directory, cookie, entries, kept, reply.readdir().end());
  if (!cached()) {
    std::lock_guard lock(inode.mutex);
    directory->scan_whole = false;
  }
  co_return entries;
}

// After the last batch of an unbroken scan all names are known.
void Core::NoteScan(FileHandle& directory, uint64_t cookie, const std::vector<DirEntry>& entries, bool kept,
                    bool end) {
  Inode& inode = *directory.inode;
  std::lock_guard lock(inode.mutex);
  if (cookie == 0) {
    directory.scan_whole = true;
    directory.scan_drops = inode.drops;
  } else if (cookie != directory.scan_cookie) {
    directory.scan_whole = false;
  }
  if (!kept && !entries.empty()) directory.scan_whole = false;
  if (inode.drops != directory.scan_drops || inode.entries.size() > kKeptEntries)
    directory.scan_whole = false;
  if (!entries.empty()) directory.scan_cookie = entries.back().cookie;
  if (directory.scan_whole && (end || entries.empty())) inode.complete = true;
}

}  // namespace nacre::client
