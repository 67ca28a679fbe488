#include "client/knowledge.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>

#include "client/permission.h"
#include "rpc/convert.h"

namespace nacre::client {
namespace {

// With the directory's mutex held: whether what is known of its names is an answer for this caller.
bool MaySearch(const Inode& directory, const Caller& caller) {
  return S_ISDIR(directory.attr.mode()) && MayAccess(directory.attr, caller, kMayExecute);
}

// Returns the MDS's attributes, or ours where data of the file is held back here. The kernel must not keep
// them.
Known AsHeldBack(Inode& inode, const proto::Attr& attr) {
  std::lock_guard lock(inode.mutex);
  const bool held = inode.data_scope != nullptr || inode.IsShared();
  return {held ? inode.Effective() : attr, Duration(0)};
}

// Whether an answer may be older than what this client knew of the inode before it had to let it go. (What is
// known of one newer answers do not overwrite with older ones.)
bool IsOutdated(Inode& inode, const Learning& learning) {
  std::lock_guard lock(inode.mutex);
  return !inode.attr_known && inode.changed > learning.event;
}

}  // namespace

Knowledge::Knowledge(const Environment& environment, const Options& options, InodeTable& inodes,
                     HeldLeases& leases, const Entrance& entrance, const Session& session)
    : environment_(environment),
      options_(options),
      inodes_(inodes),
      leases_(leases),
      entrance_(entrance),
      session_(session) {}

// --- trust ---

bool Knowledge::Trusts(const Inode& inode) const { return inode.IsCovered() && entrance_.LeasesGood(); }

bool Knowledge::TrustsNames(const Inode& directory) const {
  return directory.scope != nullptr && directory.scope->good() && entrance_.LeasesGood();
}

// Returns until when the kernel may trust what it is told now of what this lease covers. Not beyond the end
// of the leases by the clock.
Duration Knowledge::PromiseUnder(Scope& scope) const {
  const Duration now = environment_.clock.Coarse();
  const Duration left = session_.leases_end() - now;
  return scope.Promise(now, options_.quiet, std::clamp<Duration>(left, 0ns, options_.kernel_cache));
}

// With the mutex of the directory held: the same of its names, present or absent.
Duration Knowledge::PromiseOfNames(const Inode& directory) const {
  if (!TrustsNames(directory) || directory.changing > 0) return Duration(0);
  return PromiseUnder(*directory.scope);
}

// --- answers ---

std::optional<Known> Knowledge::Stat(Inode& inode) const {
  std::lock_guard lock(inode.mutex);
  if (!Trusts(inode)) return std::nullopt;
  return AnswerLocked(inode);
}

Known Knowledge::Answer(Inode& inode) const {
  std::lock_guard lock(inode.mutex);
  return AnswerLocked(inode);
}

// The kernel runs a file with the setuid and setgid bits that it knows, and does not know that a write takes
// them.
Known Knowledge::AnswerLocked(const Inode& inode) const {
  const bool gives_rights = S_ISREG(inode.attr.mode()) && (inode.attr.mode() & (S_ISUID | S_ISGID)) != 0;
  Known known{inode.Effective(), Duration(0)};
  if (gives_rights || !Trusts(inode)) return known;
  known.until = known.name_until = PromiseUnder(*inode.covered);
  return known;
}

NameKnown Knowledge::Find(Inode& directory, const std::string& name, Duration* until) const {
  std::lock_guard lock(directory.mutex);
  *until = PromiseOfNames(directory);
  return TrustsNames(directory) ? directory.names.Find(name) : NameKnown{};
}

NameKnown Knowledge::Find(const Caller& caller, Inode& directory, const std::string& name,
                          Duration* until) const {
  *until = Duration(0);
  std::lock_guard lock(directory.mutex);
  if (!Trusts(directory) || !TrustsNames(directory) || !MaySearch(directory, caller)) return {};
  const NameKnown known =
      directory.changing == 0 ? FindAmongAll(directory, name) : directory.names.Find(name);
  if (known.answer != NameKnown::Answer::kUnknown) *until = PromiseOfNames(directory);
  return known;
}

void Knowledge::PromiseName(Inode& directory, const std::string& name, Known* known) const {
  Duration until{0};
  const NameKnown found = Find(directory, name, &until);
  if (found.fid && found.fid == FromProto(known->attr.fid())) known->name_until = until;
}

Listing Knowledge::List(Inode& directory) const {
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
    InodePtr inode = inodes_.Find(entry.fid);
    if (inode == nullptr) return nullptr;
    std::lock_guard lock(inode->mutex);
    if (!inode->attr_known) return nullptr;
    entry.type = IFTODT(inode->attr.mode());
  }
  return listing;
}

std::vector<DirEntry> Knowledge::Entries(Inode& directory, const std::vector<Listed>& listing,
                                         uint64_t cookie, size_t limit, bool plus) const {
  std::vector<DirEntry> entries;
  for (uint64_t i = cookie; i < listing.size() && entries.size() < limit; ++i) {
    DirEntry entry{listing[i].name, listing[i].fid, listing[i].type, i + 1, std::nullopt};
    Duration until{0};
    const NameKnown found = Find(directory, entry.name, &until);
    const bool present = found.answer == NameKnown::Answer::kPresent;
    if (found.answer == NameKnown::Answer::kAbsent || (present && found.fid != entry.fid)) continue;
    if (InodePtr inode = plus && present ? inodes_.Find(entry.fid) : nullptr) entry.known = Stat(*inode);
    if (entry.known) entry.known->until = entry.known->name_until = std::min(entry.known->until, until);
    entries.push_back(std::move(entry));
  }
  return entries;
}

bool Knowledge::IsCurrent(const proto::Attr& attr) const {
  InodePtr inode = inodes_.Find(FromProto(attr.fid()));
  if (inode == nullptr) return false;
  std::lock_guard lock(inode->mutex);
  return inode->attr_known && inode->attr.change() == attr.change();
}

// --- learning ---

void Knowledge::Learn(Inode& inode, const proto::Attr& attr, const proto::Layout* layout,
                      const std::string* data) {
  std::lock_guard lock(inode.mutex);
  if (!inode.Apply(attr)) return;
  const bool with_layout = layout != nullptr && layout->components_size() > 0;
  if (with_layout) inode.ApplyLayout(*layout);
  if (with_layout && !attr.inline_data()) inode.content_change = attr.change();
  if (inode.pending.cut || inode.outgrowing != nullptr) return;  // what is here is newer
  if (!attr.inline_data()) {
    // Dirty inline bytes stay for the MoveOut that this answer has overtaken: it takes them.
    if (!inode.inline_dirty()) inode.inline_bytes.reset();
  } else if (data != nullptr && data->size() == attr.size() &&
             (inode.inline_bytes == nullptr || inode.data_scope == nullptr)) {
    // Else what is here is at least as new: the answer may have met a write of ours on its way.
    inode.inline_bytes = std::make_shared<std::string>(*data);
    inode.content_change = attr.change();
  }
}

InodePtr Knowledge::Learn(const proto::Entry& entry) const {
  InodePtr inode = inodes_.Get(FromProto(entry.attr().fid()));
  Learn(*inode, entry.attr(), &entry.layout(), &entry.data());
  return inode;
}

Known Knowledge::LearnFound(const Learning& learning, const proto::Entry& entry) const {
  InodePtr inode = inodes_.Get(FromProto(entry.attr().fid()));
  if (IsOutdated(*inode, learning)) return {entry.attr(), Duration(0)};
  Learn(*inode, entry.attr(), &entry.layout(), &entry.data());
  leases_.Cover(learning, *inode, entry.attr());
  return AsHeldBack(*inode, entry.attr());
}

Known Knowledge::LearnListed(const Learning& learning, const proto::Attr& attr, uint64_t began,
                             bool* kept) const {
  const Known untrusted{attr, Duration(0)};
  if (!options_.caching) return untrusted;
  InodePtr inode = inodes_.GetListed(FromProto(attr.fid()), began);
  if (inode == nullptr) *kept = false;
  if (inode == nullptr || IsOutdated(*inode, learning)) return untrusted;
  Learn(*inode, attr);
  leases_.Cover(learning, *inode, attr);
  return AsHeldBack(*inode, attr);
}

}  // namespace nacre::client
