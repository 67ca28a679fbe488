// Opendir and readdir. Reading a whole directory under its lease makes its entries known: neither lookups nor
// listings need a request then.
#include <dirent.h>
#include <fcntl.h>

#include <algorithm>

#include "client/core.h"

namespace nacre::client {
namespace {

constexpr uint64_t kMostCounted = uint64_t{1} << 32;  // the MDS's cookies are hashes: none is so small

uint64_t DropsNow(Inode& directory) {
  std::lock_guard lock(directory.mutex);
  return directory.names.drops();
}

}  // namespace

Task<StatusOr<HandlePtr>> Core::Opendir(const Caller& caller, Fid fid) {
  co_return co_await Open(caller, fid, O_RDONLY | O_DIRECTORY);
}

Task<StatusOr<std::vector<DirEntry>>> Core::Readdir(const Caller& caller, HandlePtr directory,
                                                    uint64_t cookie, size_t limit, bool plus) {
  NACRE_ENTER(pass);
  CO_RETURN_IF_ERROR(entrance_.Check(*directory));
  Inode& inode = *directory->inode;
  Listing listing;
  uint64_t began = 0;
  const bool learns = options_.caching;
  if (cookie == 0 && learns) listing = knowledge_->List(inode);
  {
    const uint64_t now = inodes_->Now();
    (void)inodes_->Find(inode.fid);  // it is used
    std::lock_guard lock(inode.mutex);
    if (cookie == 0) directory->listing = listing;
    if (cookie == 0) directory->scan_began = now;
    began = directory->scan_began;
    if (cookie < kMostCounted) listing = directory->listing;
  }
  if (listing != nullptr) co_return knowledge_->Entries(inode, *listing, cookie, limit, plus);
  FillToken token = BeginFill(inode);
  Learning learning = leases_->BeginLearning();
  proto::MetadataRequest request;
  proto::Readdir* readdir = request.mutable_readdir();
  *readdir->mutable_fid() = ToProto(inode.fid);
  readdir->set_cookie(cookie);
  readdir->set_limit(static_cast<uint32_t>(limit));
  readdir->set_plus(plus || learns);
  readdir->set_want_lease(options_.caching);
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await mds_->Ask(caller, std::move(request)));
  mds_->TakeScopes(&learning, reply);
  token.scope = leases_->For(learning, inode.fid);
  if (cookie == 0) token.drops = DropsNow(inode);  // nothing of this scan is among the names yet

  std::vector<DirEntry> entries;
  entries.reserve(static_cast<size_t>(reply.readdir().entries_size()));
  bool kept = token.scope != nullptr;
  for (proto::DirEntry& found : *reply.mutable_readdir()->mutable_entries()) {
    DirEntry entry;
    entry.fid = FromProto(found.fid());
    entry.type = found.type();
    entry.cookie = found.cookie();
    entry.name = std::move(*found.mutable_name());
    if (found.has_attr()) {
      Known known = knowledge_->LearnListed(learning, found.attr(), began, &kept);
      if (plus) entry.known = std::move(known);
    }
    if (kept) kept = FillListed(inode, token, entry.name, entry.fid);
    entries.push_back(std::move(entry));
  }
  NoteScan(*directory, token, cookie, entries, kept, reply.readdir().end());
  co_return entries;
}

// After the last batch of an unbroken scan all names are known.
void Core::NoteScan(FileHandle& directory, FillToken token, uint64_t cookie,
                    const std::vector<DirEntry>& entries, bool kept, bool end) {
  Inode& inode = *directory.inode;
  std::lock_guard lock(inode.mutex);
  if (cookie == 0) {
    directory.scan_whole = true;
    directory.scan_drops = token.drops;  // names may have gone since: those of this batch, too
  } else if (cookie != directory.scan_cookie) {
    directory.scan_whole = false;
  }
  if (!kept) directory.scan_whole = false;
  if (token.scope != nullptr && inode.scope != token.scope) directory.scan_whole = false;
  if (inode.names.drops() != directory.scan_drops) directory.scan_whole = false;
  if (!entries.empty()) directory.scan_cookie = entries.back().cookie;
  if (directory.scan_whole && (end || entries.empty())) inode.names.SetComplete();
}

}  // namespace nacre::client
