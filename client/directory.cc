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
  const bool learns = WantsScopes();
  if (cookie == 0 && learns) listing = ListKnown(inode);
  {
    const uint64_t now = inodes_->Now();
    (void)inodes_->Find(inode.fid);  // it is used
    std::lock_guard lock(inode.mutex);
    if (cookie == 0) directory->listing = listing;
    if (cookie == 0) directory->scan_began = now;
    began = directory->scan_began;
    if (cookie < kMostCounted) listing = directory->listing;
  }
  if (listing != nullptr) co_return ListOn(inode, *listing, cookie, limit, plus);
  FillToken token = BeginFill(inode);
  Learning learning = leases_->BeginLearning();
  proto::MetadataRequest request;
  proto::Readdir* readdir = request.mutable_readdir();
  *readdir->mutable_fid() = ToProto(inode.fid);
  readdir->set_cookie(cookie);
  readdir->set_limit(static_cast<uint32_t>(limit));
  readdir->set_plus(plus || learns);
  readdir->set_want_lease(WantsScopes());
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await Ask(caller, std::move(request)));
  TakeScopes(&learning, reply);
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
      Known known = LearnListed(learning, found.attr(), began, &kept);
      if (plus) entry.known = std::move(known);
    }
    if (kept) kept = FillListed(inode, token, entry.name, entry.fid);
    entries.push_back(std::move(entry));
  }
  NoteScan(*directory, token, cookie, entries, kept, reply.readdir().end());
  co_return entries;
}

// A directory of which everything is known, as it is now. The handle keeps to this list whatever changes; its
// cookies count the entries. Null: ask the MDS.
Listing Core::ListKnown(Inode& directory) {
  auto listing = std::make_shared<std::vector<Listed>>();
  {
    std::lock_guard lock(directory.mutex);
    if (!Trusts(directory) || !TrustsNames(directory)) return nullptr;
    if (!directory.names.complete() || directory.changing > 0) return nullptr;
    listing->reserve(directory.attr.size());
    for (const auto& [name, fid] : directory.names) {
      if (fid) listing->push_back({name, fid});
    }
    if (listing->size() != directory.attr.size()) return nullptr;
  }
  std::sort(listing->begin(), listing->end(), [](auto& a, auto& b) { return a.name < b.name; });
  for (Listed& entry : *listing) {
    InodePtr inode = inodes_->Find(entry.fid);
    if (inode == nullptr) return nullptr;
    std::lock_guard lock(inode->mutex);
    if (!inode->attr_known) return nullptr;
    entry.type = IFTODT(inode->attr.mode());
  }
  return listing;
}

NameKnown Core::FindTrusted(Inode& directory, const std::string& name, Duration* valid) {
  std::lock_guard lock(directory.mutex);
  *valid = PromiseOfNames(directory);
  return TrustsNames(directory) ? directory.names.Find(name) : NameKnown{};
}

// Names that have gone since are left out: with attributes the kernel would take them for present. Those of
// which nothing is known any more (the lease was away meanwhile) come without attributes.
std::vector<DirEntry> Core::ListOn(Inode& directory, const std::vector<Listed>& listing, uint64_t cookie,
                                   size_t limit, bool plus) {
  std::vector<DirEntry> entries;
  for (uint64_t i = cookie; i < listing.size() && entries.size() < limit; ++i) {
    DirEntry entry{listing[i].name, listing[i].fid, listing[i].type, i + 1, std::nullopt};
    Duration valid{0};
    const NameKnown found = FindTrusted(directory, entry.name, &valid);
    const bool present = found.answer == NameKnown::Answer::kPresent;
    if (found.answer == NameKnown::Answer::kAbsent || (present && found.fid != entry.fid)) continue;
    InodePtr inode = plus && present ? inodes_->Find(entry.fid) : nullptr;
    if (inode != nullptr) {
      std::lock_guard lock(inode->mutex);
      if (Trusts(*inode)) entry.known = MakeKnownLocked(*inode);
      if (entry.known) entry.known->valid = std::min(entry.known->valid, valid);
    }
    entries.push_back(std::move(entry));
  }
  return entries;
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
