#include "client/own_change.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "rpc/convert.h"
#include "rpc/mutation.h"

namespace nacre::client {
namespace {

// Whether a file that lay in a directory need not lie there, or there only, afterwards.
bool TakesFilesOut(const proto::MetadataRequest& request) {
  return request.has_unlink() || request.has_rename();
}

bool TruncatesByName(const proto::MetadataRequest& request) {
  return request.has_create() && (request.create().flags() & O_TRUNC) != 0;
}

// The entries that the mutation changes.
std::vector<std::pair<Fid, std::string>> EntriesOf(const proto::MetadataRequest& request) {
  std::vector<std::pair<Fid, std::string>> entries;
  auto add = [&entries](const proto::Fid& parent, const std::string& name) {
    entries.emplace_back(FromProto(parent), name);
  };
  if (request.has_mknod()) add(request.mknod().parent(), request.mknod().name());
  if (request.has_create()) add(request.create().parent(), request.create().name());
  if (request.has_unlink()) add(request.unlink().parent(), request.unlink().name());
  if (request.has_link()) add(request.link().parent(), request.link().name());
  if (request.has_rename()) {
    add(request.rename().parent(), request.rename().name());
    add(request.rename().new_parent(), request.rename().new_name());
  }
  return entries;
}

// The attributes in the answer, as they are after the mutation.
std::vector<proto::Attr> AttributesAfter(const proto::MetadataReply& reply) {
  std::vector<proto::Attr> attributes;
  if (reply.has_entry()) {
    const proto::Entry& entry = reply.entry();
    attributes = {entry.attr(), entry.parent(), entry.old_parent(), entry.replaced()};
  } else if (reply.has_attr()) {
    attributes = {reply.attr().attr(), reply.attr().parent()};
  } else if (reply.has_moved_out()) {
    attributes = {reply.moved_out().attr()};
  } else if (reply.has_append()) {
    attributes = {reply.append().attr()};
  }
  std::erase_if(attributes, [](const proto::Attr& attr) { return !FromProto(attr.fid()); });
  return attributes;
}

// Returns the inodes that the answer says were changed.
std::vector<Fid> ChangedBy(const proto::MetadataReply& reply) {
  std::vector<Fid> changed;
  if (reply.has_entry()) {
    changed = {FromProto(reply.entry().attr().fid()), FromProto(reply.entry().replaced().fid())};
  } else if (reply.has_attr()) {
    changed = {FromProto(reply.attr().attr().fid())};
  }
  std::erase(changed, Fid{});
  return changed;
}

}  // namespace

OwnChange::OwnChange(const Here& here, const proto::MetadataRequest& request)
    : here_(here), learning_(here.leases.BeginLearning()), renames_(request.has_rename()) {
  const EarlyChanges::Order order =
      here_.early.TakeOrder();  // what was answered before is in the queue by now
  if (Fid fid = ChangedInode(request)) Begin(fid);
  for (auto& [directory, name] : EntriesOf(request)) names_.emplace_back(Begin(directory), name);
  if (request.has_link()) linked_ = FromProto(request.link().fid());
  exchanges_ = request.has_rename() && (request.rename().flags() & RENAME_EXCHANGE) != 0;
  if (request.has_append()) appended_ = FromProto(request.append().fid());
  takes_out_ = TakesFilesOut(request);
  truncates_ = TruncatesByName(request);
  if (!takes_out_ && !truncates_) return;
  BeginNamed();
  // No file gets data under these leases from here on: the order is held.
  for (const auto& [directory, name] : names_) scopes_.push_back(here_.leases.LastOf(*directory, takes_out_));
  if (!takes_out_) return;
  if (!of_unknown_.empty()) here_.leases.BeginUnknownMove();
  moves_ = scopes_;
}

OwnChange::~OwnChange() {
  EndNamed();
  for (size_t i = 0; i < names_.size(); ++i) EndName(i);
  const std::set<Fid> alone = MetNoOther();
  const uint64_t event = here_.inodes.NextEvent();
  std::vector<OneShot<Unit>> waiters;
  for (const InodePtr& inode : inodes_) {
    std::lock_guard lock(inode->mutex);
    if (--inode->own_changes == 0) std::ranges::move(inode->own_change_waiters, std::back_inserter(waiters));
    if (inode->own_changes == 0) inode->own_change_waiters.clear();
    ++inode->version;
    --inode->changing;
    inode->changed = event;
    if (takes_out_ || linked_)
      inode->LeaveCover();
    else
      inode->covered.reset();
  }
  for (size_t i = 0; i < moves_.size(); ++i) EndMove(*names_[i].first, moves_[i]);
  for (const proto::Attr& attr : after_) {
    if (!alone.contains(FromProto(attr.fid()))) continue;
    if (ScopePtr scope = here_.leases.Covering(learning_, attr)) LearnAttributes(event, scope, attr);
  }
  for (OneShot<Unit>& waiter : waiters) waiter.Set({});
}

std::vector<InodePtr> OwnChange::Paged() {
  std::set<Fid> paged;
  if (linked_) paged.insert(linked_);
  for (size_t i = 0; i < moves_.size(); ++i) {
    const NameKnown known = Find(*names_[i].first, names_[i].second);
    if (known.fid) paged.insert(known.fid);
    if (known.answer != NameKnown::Answer::kUnknown || moves_[i] == nullptr) continue;
    for (const Fid& fid : moves_[i]->paged()) paged.insert(fid);  // any of them
  }
  std::vector<InodePtr> files;
  for (const Fid& fid : paged) {
    InodePtr inode = here_.inodes.Find(fid);
    if (inode == nullptr) continue;
    std::lock_guard lock(inode->mutex);
    if (inode->pages.under != nullptr) files.push_back(inode);
  }
  return files;
}

std::vector<InodePtr> OwnChange::WithData() {
  std::set<Fid> fids = {linked_, appended_};
  const bool others_move = here_.leases.unknown_moves() > (takes_out_ && !of_unknown_.empty() ? 1u : 0u);
  for (size_t i = 0; i < scopes_.size(); ++i) {
    const InodePtr& directory = names_[i].first;
    const NameKnown known = Find(*directory, names_[i].second);
    if (known.fid) fids.insert(known.fid);
    if (known.answer != NameKnown::Answer::kUnknown) continue;
    AddOwnDataIn(directory->fid, others_move, &fids);  // any of them
    if (scopes_[i] == nullptr) continue;
    for (const Fid& fid : scopes_[i]->with_data()) fids.insert(fid);
  }
  std::vector<InodePtr> files;
  for (const Fid& fid : fids) {
    InodePtr inode = fid ? here_.inodes.Find(fid) : nullptr;
    if (inode != nullptr && HoldsData(*inode)) files.push_back(std::move(inode));
  }
  return files;
}

std::vector<InodePtr> OwnChange::Leaving() {
  std::vector<InodePtr> untold;
  if (!linked_ && !takes_out_) return untold;
  untold = here_.handles.UntoldFiles();
  if (untold.empty()) return untold;
  std::set<Fid> named;
  if (linked_) named.insert(linked_);
  for (const auto& [directory, name] : names_) {
    if (!takes_out_) break;
    const NameKnown known = Find(*directory, name);
    if (known.answer == NameKnown::Answer::kUnknown) return untold;
    if (known.fid) named.insert(known.fid);
  }
  for (const Fid& fid : named) Begin(fid);  // so that nobody opens them meanwhile
  std::erase_if(untold, [&](const InodePtr& inode) { return !named.contains(inode->fid); });
  return untold;
}

OwnChange::Kept OwnChange::KeptByKernel(Duration now) {
  Kept kept;
  if (linked_) kept.files.push_back(linked_);
  for (size_t i = 0; i < moves_.size(); ++i) {
    if (moves_[i] == nullptr || moves_[i]->promised() <= now) continue;
    const NameKnown known = Find(*names_[i].first, names_[i].second);
    if (known.answer == NameKnown::Answer::kUnknown) kept.names.push_back(names_[i]);
    if (known.fid) kept.files.push_back(known.fid);
  }
  return kept;
}

Duration OwnChange::PromisedNames() {
  Duration until{0};
  auto goes = [&until](const ScopePtr& from, const ScopePtr& to) {
    if (from == nullptr || from == to) return;
    if (to != nullptr) to->PromiseUntil(from->promised());
    if (to == nullptr || !to->good()) until = std::max(until, from->promised());
  };
  if (moves_.size() < 2) return until;
  goes(moves_[0], moves_[1]);
  if (exchanges_) goes(moves_[1], moves_[0]);
  return until;
}

Duration OwnChange::PromisedAll() const {
  Duration until{0};
  for (const ScopePtr& scope : moves_) until = std::max(until, scope == nullptr ? until : scope->promised());
  return until;
}

void OwnChange::Answered(const proto::MetadataReply& reply) {
  for (const Fid& fid : ChangedBy(reply)) Begin(fid);
  after_ = AttributesAfter(reply);
  if (reply.has_entry()) named_ = FromProto(reply.entry().attr().fid());
  // Of two names of one file the first stays (rename(2)).
  const proto::Attr& moved = reply.entry().attr();
  const bool links = renames_ && !S_ISDIR(moved.mode()) && moved.nlink() > 1;
  says_names_ = !exchanges_ && !links;
}

void OwnChange::LearnAttributes(uint64_t event, const ScopePtr& scope, const proto::Attr& attr) {
  InodePtr inode = here_.inodes.Get(FromProto(attr.fid()));
  {
    std::lock_guard lock(inode->mutex);
    if (!scope->good() || !inode->Apply(attr)) return;
  }
  HeldLeases::CoverSince(event, scope, *inode, attr);
}

void OwnChange::AddOwnDataIn(const Fid& directory, bool any, std::set<Fid>* files) {
  for (const Fid& fid : here_.own_data.All()) {
    InodePtr inode = here_.inodes.Find(fid);
    if (inode == nullptr) continue;
    std::lock_guard inode_lock(inode->mutex);
    if (any || !inode->attr_known || FromProto(inode->attr.parent()) == directory) files->insert(fid);
  }
}

uint32_t OwnChange::Begun(const Inode& inode) const {
  return static_cast<uint32_t>(std::count_if(inodes_.begin(), inodes_.end(),
                                             [&](const InodePtr& one) { return one.get() == &inode; }));
}

bool OwnChange::IsAlone(const Inode& inode) const {
  return inode.own_changes == Begun(inode) && inode.changed <= learning_.event;
}

std::set<Fid> OwnChange::MetNoOther() const {
  std::set<Fid> alone;
  for (const InodePtr& inode : inodes_) {
    std::lock_guard lock(inode->mutex);
    if (IsAlone(*inode)) alone.insert(inode->fid);
  }
  return alone;
}

void OwnChange::EndName(size_t entry) {
  const auto& [directory, name] = names_[entry];
  const Fid meaning = renames_ && entry == 0 ? Fid{} : named_;  // zero: the name is gone
  const ScopePtr scope = here_.leases.For(learning_, directory->fid);
  std::lock_guard lock(directory->mutex);
  const bool certain = says_names_ && scope != nullptr && directory->scope == scope;
  if (certain && IsAlone(*directory)) {
    directory->names.Set(name, meaning);
  } else {
    directory->names.Distrust(name);
  }
}

void OwnChange::BeginNamed() {
  std::set<Fid> named;
  for (const auto& [directory, name] : names_) {
    const NameKnown known = Find(*directory, name);
    if (known.fid) named.insert(known.fid);
    if (known.answer == NameKnown::Answer::kUnknown) of_unknown_.push_back(directory->fid);
  }
  for (const Fid& fid : named) Begin(fid);
  for (const Fid& directory : of_unknown_) here_.early.BeginUnknown(directory);
}

void OwnChange::EndNamed() {
  if (of_unknown_.empty()) return;
  const EarlyChanges::Order order = here_.early.TakeOrder();
  if (takes_out_) here_.leases.EndUnknownMove();
  for (const Fid& directory : of_unknown_) here_.early.EndUnknown(directory);
}

void OwnChange::EndMove(Inode& directory, const ScopePtr& begun) {
  std::lock_guard lock(directory.mutex);
  --directory.moves;
  if (begun != nullptr) begun->EndMove();
  if (directory.scope != nullptr && directory.scope != begun) directory.scope->EndMove();  // came meanwhile
}

NameKnown OwnChange::Find(Inode& directory, const std::string& name) {
  std::lock_guard lock(directory.mutex);
  const bool others = directory.changing > Begun(directory);
  return others || !here_.knowledge.TrustsNames(directory) ? NameKnown{} : directory.names.Find(name);
}

InodePtr OwnChange::Begin(const Fid& fid) {
  InodePtr inode = here_.inodes.Get(fid);
  inodes_.push_back(inode);
  std::lock_guard lock(inode->mutex);
  ++inode->own_changes;
  ++inode->version;
  ++inode->changing;
  inode->covered.reset();  // it may get a second link
  return inode;
}

}  // namespace nacre::client
