// Changes of this client's own that the MDS carries out, where leases of directories are held: what they
// touch is not trusted meanwhile, and what their answers say is learned.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "client/core.h"
#include "common/cancellation.h"
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

// From before the request is sent until its answer is here: what it touches is not learned meanwhile. The
// answer itself says what it is afterwards, if no other change of this client has met this one there.
class Core::OwnChange {
 public:
  OwnChange(Core& core, const proto::MetadataRequest& request)
      : core_(core), learning_(core.leases_->BeginLearning()), renames_(request.has_rename()) {
    std::lock_guard order(core.behind_mutex_);  // what was answered before is in the queue by now
    if (Fid fid = ChangedInode(request)) Begin(fid);
    for (auto& [directory, name] : EntriesOf(request)) names_.emplace_back(Begin(directory), name);
    if (request.has_link()) linked_ = FromProto(request.link().fid());
    exchanges_ = request.has_rename() && (request.rename().flags() & RENAME_EXCHANGE) != 0;
    if (request.has_append()) appended_ = FromProto(request.append().fid());
    takes_out_ = TakesFilesOut(request);
    truncates_ = TruncatesByName(request);
    if (!takes_out_ && !truncates_) return;
    BeginNamed();
    // No file gets data under these leases from here on: behind_mutex_ is held.
    for (const auto& [directory, name] : names_)
      scopes_.push_back(core.leases_->LastOf(*directory, takes_out_));
    if (!takes_out_) return;
    if (!of_unknown_.empty()) core.leases_->BeginUnknownMove();
    moves_ = scopes_;
  }
  OwnChange(const OwnChange&) = delete;
  OwnChange& operator=(const OwnChange&) = delete;

  ~OwnChange() {
    EndNamed();
    for (size_t i = 0; i < names_.size(); ++i) EndName(i);
    const std::set<Fid> alone = MetNoOther();
    const uint64_t event = core_.inodes_->NextEvent();
    std::vector<OneShot<Unit>> waiters;
    for (const InodePtr& inode : inodes_) {
      std::lock_guard lock(inode->mutex);
      if (--inode->own_changes == 0)
        std::ranges::move(inode->own_change_waiters, std::back_inserter(waiters));
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
      if (ScopePtr scope = core_.leases_->Covering(learning_, attr)) LearnAttributes(event, scope, attr);
    }
    for (OneShot<Unit>& waiter : waiters) waiter.Set({});
  }

  // Files of which the kernel may have pages under a lease that does not cover them afterwards.
  std::vector<InodePtr> Paged() {
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
      InodePtr inode = core_.inodes_->Find(fid);
      if (inode == nullptr) continue;
      std::lock_guard lock(inode->mutex);
      if (inode->pages.under != nullptr) files.push_back(inode);
    }
    return files;
  }

  // Files whose data may be here that lose the lease under which it is, or get an end from the MDS.
  std::vector<InodePtr> WithData() {
    std::set<Fid> fids = {linked_, appended_};
    const bool others_move = core_.leases_->unknown_moves() > (takes_out_ && !of_unknown_.empty() ? 1u : 0u);
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
      InodePtr inode = fid ? core_.inodes_->Find(fid) : nullptr;
      if (inode != nullptr && HoldsData(*inode)) files.push_back(std::move(inode));
    }
    return files;
  }

  // Files with handles that the MDS has to be told of first: afterwards their lease may protect them no more.
  std::vector<InodePtr> Leaving() {
    std::vector<InodePtr> untold;
    if (!linked_ && !takes_out_) return untold;
    untold = core_.handles_->UntoldFiles();
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

  // Files whose attributes the kernel may keep under a lease that does not cover them afterwards; and names
  // of which it is not known what they mean.
  struct Kept {
    std::vector<Fid> files;
    std::vector<std::pair<InodePtr, std::string>> names;
  };
  Kept KeptByKernel(Duration now) {
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

  // The kernel keeps a renamed name for as long as it was promised under the lease of the directory where it
  // was. Until when that is, if it is covered by no lease where it will be.
  Duration PromisedNames() {
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

  // The last moment for which anything was promised that the change may concern.
  Duration PromisedAll() const {
    Duration until{0};
    for (const ScopePtr& scope : moves_)
      until = std::max(until, scope == nullptr ? until : scope->promised());
    return until;
  }

  void Answered(const proto::MetadataReply& reply) {
    core_.TakeScopes(&learning_, reply);
    for (const Fid& fid : ChangedBy(reply)) Begin(fid);
    after_ = AttributesAfter(reply);
    if (reply.has_entry()) named_ = FromProto(reply.entry().attr().fid());
    // Of two names of one file the first stays (rename(2)).
    const proto::Attr& moved = reply.entry().attr();
    const bool links = renames_ && !S_ISDIR(moved.mode()) && moved.nlink() > 1;
    says_names_ = !exchanges_ && !links;
  }

 private:
  // Not if the lease has ended.
  void LearnAttributes(uint64_t event, const ScopePtr& scope, const proto::Attr& attr) {
    InodePtr inode = core_.inodes_->Get(FromProto(attr.fid()));
    {
      std::lock_guard lock(inode->mutex);
      if (!scope->good() || !inode->Apply(attr)) return;
    }
    HeldLeases::CoverSince(event, scope, *inode, attr);
  }

  // Adds the files with data under leases of their own that an entry of this directory may mean, as far as is
  // known here. `any`: changes are under way that may bring one there.
  void AddOwnDataIn(const Fid& directory, bool any, std::set<Fid>* files) {
    for (const Fid& fid : core_.own_data_.All()) {
      InodePtr inode = core_.inodes_->Find(fid);
      if (inode == nullptr) continue;
      std::lock_guard inode_lock(inode->mutex);
      if (any || !inode->attr_known || FromProto(inode->attr.parent()) == directory) files->insert(fid);
    }
  }

  // How often this change has begun at the inode.
  uint32_t Begun(const Inode& inode) const {
    return static_cast<uint32_t>(std::count_if(inodes_.begin(), inodes_.end(),
                                               [&](const InodePtr& one) { return one.get() == &inode; }));
  }

  // With the mutex of the inode held: whether no other change of it was under way since this one began.
  bool IsAlone(const Inode& inode) const {
    return inode.own_changes == Begun(inode) && inode.changed <= learning_.event;
  }

  std::set<Fid> MetNoOther() const {
    std::set<Fid> alone;
    for (const InodePtr& inode : inodes_) {
      std::lock_guard lock(inode->mutex);
      if (IsAlone(*inode)) alone.insert(inode->fid);
    }
    return alone;
  }

  void EndName(size_t entry) {
    const auto& [directory, name] = names_[entry];
    const Fid meaning = renames_ && entry == 0 ? Fid{} : named_;  // zero: the name is gone
    const ScopePtr scope = core_.leases_->For(learning_, directory->fid);
    std::lock_guard lock(directory->mutex);
    const bool certain = says_names_ && scope != nullptr && directory->scope == scope;
    if (certain && IsAlone(*directory)) {
      directory->names.Set(name, meaning);
    } else {
      directory->names.Distrust(name);
    }
  }

  // Marks the inodes that the names mean, which change with them, so that no change of these is answered
  // early meanwhile; where it is not known what a name means, none in that directory is, and none of a file
  // with a lease of its own. behind_mutex_ is held.
  void BeginNamed() {
    std::set<Fid> named;
    for (const auto& [directory, name] : names_) {
      const NameKnown known = Find(*directory, name);
      if (known.fid) named.insert(known.fid);
      if (known.answer == NameKnown::Answer::kUnknown) of_unknown_.push_back(directory->fid);
    }
    for (const Fid& fid : named) Begin(fid);
    for (const Fid& directory : of_unknown_) core_.changing_unknown_.insert(directory);
  }

  void EndNamed() {
    if (of_unknown_.empty()) return;
    std::lock_guard order(core_.behind_mutex_);
    if (takes_out_) core_.leases_->EndUnknownMove();
    for (const Fid& directory : of_unknown_)
      core_.changing_unknown_.erase(core_.changing_unknown_.find(directory));
  }

  // `begun`: what LastOf has returned.
  static void EndMove(Inode& directory, const ScopePtr& begun) {
    std::lock_guard lock(directory.mutex);
    --directory.moves;
    if (begun != nullptr) begun->EndMove();
    if (directory.scope != nullptr && directory.scope != begun) directory.scope->EndMove();  // came meanwhile
  }

  // Finds what the name means, unless another change of this client may be about to say otherwise.
  NameKnown Find(Inode& directory, const std::string& name) {
    std::lock_guard lock(directory.mutex);
    const bool others = directory.changing > Begun(directory);
    return others || !core_.knowledge_->TrustsNames(directory) ? NameKnown{} : directory.names.Find(name);
  }

  InodePtr Begin(const Fid& fid) {
    InodePtr inode = core_.inodes_->Get(fid);
    inodes_.push_back(inode);
    std::lock_guard lock(inode->mutex);
    ++inode->own_changes;
    ++inode->version;
    ++inode->changing;
    inode->covered.reset();  // it may get a second link
    return inode;
  }

  Core& core_;
  Learning learning_;
  const bool renames_;
  std::vector<proto::Attr> after_;  // what the answer says
  bool says_names_ = false;         // and what the names mean
  Fid named_;                       // the one that was made; zero: one was removed
  std::vector<InodePtr> inodes_;
  std::vector<std::pair<InodePtr, std::string>> names_;
  // Of names_, if files may leave these or lose their bytes; null: there was no lease.
  std::vector<ScopePtr> scopes_;
  std::vector<ScopePtr> moves_;  // the same, if files may leave
  Fid linked_, appended_;
  bool takes_out_ = false;
  bool truncates_ = false;
  bool exchanges_ = false;
  std::vector<Fid> of_unknown_;  // in Core::changing_unknown_
};

// Before the MDS carries it out: afterwards nobody announces changes of what may have lost its lease.
Task<void> Core::MakeKernelForget(OwnChange* change) {
  Duration until = change->PromisedNames();
  OwnChange::Kept kept = change->KeptByKernel(environment_.clock.Now());
  Caller system;
  for (auto& [directory, name] : kept.names) {
    auto found = co_await LookUpAtMds(system, directory, name);
    if (found.ok()) kept.files.push_back(FromProto(found->attr.fid()));
    if (!found.ok() && ToErrno(found.status()) != ENOENT) until = change->PromisedAll();
  }
  for (const Fid& fid : kept.files) kernel_.ForgetAttributes(fid);
  co_await AwaitForgotten(until);
}

Task<Core::Reply> Core::AskForChange(uint64_t epoch, proto::MetadataRequest request) {
  OwnChange change(*this, request);
  if (!options_.plant_hasty) co_await MakeKernelForget(&change);
  std::vector<OneShot<Unit>> given_up;
  for (InodePtr& inode : change.WithData())
    given_up.push_back(background_.Start(GiveDataUp(std::move(inode))));
  for (const OneShot<Unit>& end : given_up) CO_RETURN_IF_ERROR(co_await WaitUnlessCancelled(end));
  const std::vector<InodePtr> paged = change.Paged();
  for (const InodePtr& inode : paged) {
    co_await KeepPages(epoch, inode);
    std::lock_guard lock(inode->mutex);
    inode->pages.under.reset();  // the lease may cover the file again, and will not have done so all the time
  }
  std::vector<InodePtr> files = change.Leaving();
  if (!files.empty()) {
    co_await queue_->Drain();  // the MDS may have to make them first
    co_await handles_->Tell(epoch, std::move(files));
  }
  request.set_want_lease(options_.caching);
  Reply reply = co_await AskBehindQueue(epoch, std::move(request));
  if (reply.ok()) change.Answered(*reply);
  // It may have been done, or be done yet; what it touches has no new leases until then.
  if (ToErrno(reply.status()) == EIO) EndScopes();
  co_return reply;
}

// Before a change in the directory is tried early: under WRITE those of this client that the MDS is doing
// there are waited for, and what they have left untrue is asked for. Else several threads that begin in a
// directory at once would go on asking the MDS for ever, each in the others' way.
Task<Status> Core::SettleDirectory(InodePtr directory) {
  bool asked = false;
  for (int i = 0; i < kRaces && MayAnswerEarly(); ++i) {
    OneShot<Unit> ended;
    bool wait = false;
    {
      std::lock_guard lock(directory->mutex);
      const ScopePtr& scope = directory->scope;
      if (scope == nullptr || !scope->good() || !scope->writes()) break;
      wait = directory->own_changes > 0;
      if (!wait && (directory->IsCovered() || asked)) break;
      if (wait) directory->own_change_waiters.push_back(ended);
    }
    if (wait) CO_RETURN_IF_ERROR(co_await WaitUnlessCancelled(ended));
    if (wait) continue;
    asked = true;
    Caller system;
    (void)co_await Refresh(system, directory->fid, false);  // the change itself has the error
  }
  co_return co_await queue_->WaitForRoom();
}

}  // namespace nacre::client
