// Lookup, getattr, readlink, statfs, and what is learned from the MDS's answers.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "client/core.h"
#include "client/permission.h"
#include "common/limits.h"

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
  return {inode.data_scope != nullptr ? inode.Effective() : attr, Duration(0)};
}

}  // namespace

// How long the kernel may trust what it is told now of what this lease covers. Not beyond the end of the
// leases by the clock.
Duration Core::PromiseUnder(Scope& scope) const {
  const Duration now = environment_.clock.Coarse();
  const Duration left = session_->leases_end() - now;
  return scope.Promise(now, options_.quiet, std::clamp<Duration>(left, 0ns, options_.kernel_cache));
}

// With the mutex of the directory held: the same of its names, present or absent.
Duration Core::PromiseOfNames(const Inode& directory) const {
  if (!TrustsNames(directory) || directory.changing > 0) return Duration(0);
  return PromiseUnder(*directory.scope);
}

// The kernel runs a file with the setuid and setgid bits that it knows, and does not know that a write takes
// them.
Known Core::MakeKnown(Inode& inode) {
  std::lock_guard lock(inode.mutex);
  return MakeKnownLocked(inode);
}

Known Core::MakeKnownLocked(Inode& inode) const {
  const bool gives_rights = S_ISREG(inode.attr.mode()) && (inode.attr.mode() & (S_ISUID | S_ISGID)) != 0;
  Known known{inode.Effective(), Duration(0)};
  if (gives_rights || !Trusts(inode)) return known;
  known.valid = PromiseUnder(*inode.covered);
  return known;
}

bool Core::IsCurrent(const proto::Attr& attr) {
  InodePtr inode = inodes_->Find(FromProto(attr.fid()));
  if (inode == nullptr) return false;
  std::lock_guard lock(inode->mutex);
  return inode->attr_known && inode->attr.change() == attr.change();
}

// Whether the answer to a request may be older than what this client knew of the inode before it had to let
// it go. (What is known of one newer answers do not overwrite with older ones.)
bool Core::IsOutdated(Inode& inode, const Learning& learning) {
  std::lock_guard lock(inode.mutex);
  return !inode.attr_known && inode.changed > learning.event;
}

Known Core::LearnListed(const Learning& learning, const proto::Attr& attr, uint64_t began, bool* kept) {
  const Known untrusted{attr, Duration(0)};
  if (!WantsScopes()) return untrusted;
  InodePtr inode = inodes_->GetListed(FromProto(attr.fid()), began);
  if (inode == nullptr) *kept = false;
  if (inode == nullptr || IsOutdated(*inode, learning)) return untrusted;
  LearnFile(*inode, attr, nullptr, nullptr);
  leases_->Cover(learning, *inode, attr);
  return AsHeldBack(*inode, attr);
}

void Core::LearnFile(Inode& inode, const proto::Attr& attr, const proto::Layout* layout,
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

InodePtr Core::LearnEntry(const proto::Entry& entry) {
  InodePtr inode = inodes_->Get(FromProto(entry.attr().fid()));
  LearnFile(*inode, entry.attr(), &entry.layout(), &entry.data());
  return inode;
}

Task<StatusOr<Known>> Core::Lookup(const Caller& caller, Fid parent, std::string name,
                                   Duration* negative_valid) {
  *negative_valid = Duration(0);
  NACRE_ENTER(pass);
  if (name.size() > kMaxName) {
    co_return ErrnoError(ENAMETOOLONG,
                         absl::StrFormat("a name of %d bytes; %d are the most", name.size(), kMaxName));
  }
  if (!WantsScopes()) {
    proto::MetadataRequest request;
    *request.mutable_lookup()->mutable_parent() = ToProto(parent);
    request.mutable_lookup()->set_name(name);
    CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await Ask(caller, std::move(request)));
    co_return Known{reply.entry().attr(), Duration(0)};
  }

  InodePtr directory = inodes_->Get(parent);
  NameKnown known;
  Duration valid{0};
  {
    std::lock_guard lock(directory->mutex);
    const bool known_names = Trusts(*directory) && TrustsNames(*directory);
    if (known_names && MaySearch(*directory, caller)) known = FindKnown(*directory, name);
    if (known.answer != NameKnown::Answer::kUnknown) valid = PromiseOfNames(*directory);
  }
  if (InodePtr inode = known.fid ? inodes_->Find(known.fid) : nullptr) {
    std::lock_guard lock(inode->mutex);
    if (Trusts(*inode)) {
      Known answer = MakeKnownLocked(*inode);
      answer.valid = std::min(answer.valid, valid);
      co_return answer;
    }
  }
  *negative_valid = valid;
  if (known.answer == NameKnown::Answer::kAbsent)
    co_return ErrnoError(ENOENT, absl::StrFormat("no entry '%s'", name));
  co_return co_await LookUpAtMds(caller, directory, name);
}

// With the mutex of a directory held whose names are true.
NameKnown Core::FindKnown(const Inode& directory, const std::string& name) const {
  return directory.changing == 0 ? FindAmongAll(directory, name) : directory.names.Find(name);
}

Task<StatusOr<Known>> Core::LookUpAtMds(const Caller& caller, InodePtr directory, std::string name) {
  FillToken token = BeginFill(*directory);
  Learning learning = leases_->BeginLearning();
  proto::MetadataRequest request;
  *request.mutable_lookup()->mutable_parent() = ToProto(directory->fid);
  request.mutable_lookup()->set_name(name);
  request.mutable_lookup()->set_want_layout(true);
  request.mutable_lookup()->set_want_lease(WantsScopes());
  auto reply = co_await Ask(caller, std::move(request));
  if (reply.ok()) TakeScopes(&learning, *reply);
  token.scope = leases_->For(learning, directory->fid);
  const bool fill = token.scope != nullptr;
  if (!reply.ok()) {
    if (fill && ToErrno(reply.status()) == ENOENT) FillName(*directory, token, name, Fid{});
    co_return reply.status();
  }
  const proto::Entry& entry = reply->entry();
  InodePtr inode = inodes_->Get(FromProto(entry.attr().fid()));
  if (fill) FillName(*directory, token, name, inode->fid);
  if (IsOutdated(*inode, learning)) co_return Known{entry.attr(), Duration(0)};
  LearnFile(*inode, entry.attr(), &entry.layout(), &entry.data());
  leases_->Cover(learning, *inode, entry.attr());
  co_return AsHeldBack(*inode, entry.attr());
}

Task<StatusOr<Known>> Core::Refresh(const Caller& caller, Fid fid, bool want_layout) {
  proto::MetadataRequest request;
  *request.mutable_getattr()->mutable_fid() = ToProto(fid);
  request.mutable_getattr()->set_want_layout(want_layout);
  request.mutable_getattr()->set_want_lease(WantsScopes());
  Learning learning = leases_->BeginLearning();
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await Ask(caller, std::move(request)));
  TakeScopes(&learning, reply);
  const proto::AttrReply& answer = reply.attr();
  InodePtr inode = want_layout ? inodes_->Get(fid) : inodes_->Find(fid);
  if (inode == nullptr) co_return Known{answer.attr(), Duration(0)};
  LearnFile(*inode, answer.attr(), want_layout ? &answer.layout() : nullptr,
            want_layout ? &answer.data() : nullptr);
  leases_->Cover(learning, *inode, answer.attr());
  co_return MakeKnown(*inode);
}

Task<StatusOr<Known>> Core::Getattr(const Caller& caller, Fid fid, HandlePtr handle) {
  NACRE_ENTER(pass);
  if (handle != nullptr) CO_RETURN_IF_ERROR(entrance_.Check(*handle));
  if (InodePtr inode = handle != nullptr ? handle->inode : inodes_->Find(fid)) {
    std::lock_guard lock(inode->mutex);
    if (Trusts(*inode)) co_return MakeKnownLocked(*inode);
  }
  co_return co_await Refresh(caller, fid, false);
}

// With the mutex of the inode held. Bytes are the file's content only if they came with the attributes that
// are known, or are worked on here.
std::optional<FileContent> Core::ContentOf(const Inode& inode) {
  const bool held = inode.data_scope != nullptr || inode.pending.cut;
  const bool current = held || inode.content_change == inode.attr.change();
  return current ? inode.Content() : std::nullopt;
}

Task<Status> Core::LoadFile(InodePtr inode) {
  auto content = co_await LoadContent(std::move(inode));
  co_return content.status();
}

Task<StatusOr<FileContent>> Core::LoadContent(InodePtr inode) {
  {
    std::lock_guard lock(inode->mutex);
    if (Trusts(*inode) || inode->ContentLeased() || inode->data_scope != nullptr)
      if (auto content = ContentOf(*inode)) co_return *std::move(content);
  }
  Caller system;
  for (int attempt = 0; attempt <= kRaces; ++attempt) {
    auto known = co_await Refresh(system, inode->fid, true);
    if (!known.ok()) co_return known.status();
    std::lock_guard lock(inode->mutex);
    if (auto content = ContentOf(*inode)) co_return *std::move(content);
    // Newer attributes, without layout and data, may have overtaken these.
  }
  co_return ErrnoError(
      EIO, absl::StrFormat("file %s: the MDS sent neither data nor a layout", inode->fid.ToString()));
}

Task<StatusOr<std::string>> Core::Readlink(const Caller& caller, Fid fid) {
  NACRE_ENTER(pass);
  proto::MetadataRequest request;
  *request.mutable_readlink()->mutable_fid() = ToProto(fid);
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await Ask(caller, std::move(request)));
  co_return reply.readlink().target();
}

Task<StatusOr<proto::StatfsReply>> Core::Statfs(const Caller& caller) {
  NACRE_ENTER(pass);
  proto::MetadataRequest request;
  request.mutable_statfs();
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await Ask(caller, std::move(request)));
  co_return reply.statfs();
}

}  // namespace nacre::client
