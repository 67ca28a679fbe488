// READ leases of directories: asking for them, learning under them, and giving them back. With several
// clients, none of which has the filesystem lease, they are what lets a client answer without the MDS.
#include <linux/fs.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "client/core.h"
#include "common/log.h"
#include "rpc/mutation.h"

namespace nacre::client {
namespace {

void AddParent(const Fid& parent, const std::string& name,
               std::vector<std::pair<Fid, std::string>>* entries) {
  entries->emplace_back(parent, name);
}

// Whether a file that lay in a directory need not lie there, or there only, afterwards.
bool TakesFilesOut(const proto::MetadataRequest& request) {
  return request.has_unlink() || request.has_rename();
}

// The entries that the mutation changes.
std::vector<std::pair<Fid, std::string>> EntriesOf(const proto::MetadataRequest& request) {
  std::vector<std::pair<Fid, std::string>> entries;
  if (request.has_mknod()) AddParent(FromProto(request.mknod().parent()), request.mknod().name(), &entries);
  if (request.has_create())
    AddParent(FromProto(request.create().parent()), request.create().name(), &entries);
  if (request.has_unlink())
    AddParent(FromProto(request.unlink().parent()), request.unlink().name(), &entries);
  if (request.has_link()) AddParent(FromProto(request.link().parent()), request.link().name(), &entries);
  if (request.has_rename()) {
    AddParent(FromProto(request.rename().parent()), request.rename().name(), &entries);
    AddParent(FromProto(request.rename().new_parent()), request.rename().new_name(), &entries);
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
  }
  std::erase_if(attributes, [](const proto::Attr& attr) { return !FromProto(attr.fid()); });
  return attributes;
}

// What the answer says has changed beside.
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

// --- trust ---

bool Core::Trusts(const Inode& inode) const {
  return inode.attr_known && (cached() || (inode.IsCovered() && LeasesGood()));
}

bool Core::TrustsNames(const Inode& directory) const {
  return cached() || (directory.scope != nullptr && directory.scope->good() && LeasesGood());
}

bool Core::WantsScopes() const { return options_.caching && !cached(); }

// --- learning ---

Learning Core::BeginLearning() {
  ++learners_;
  Learning learning;
  learning.event = ++events_;
  learning.held = times_held_;
  learning.present = std::shared_ptr<void>(this, [](Core* core) { core->EndLearning(); });
  return learning;
}

// No grant of a lease that was given up can be on its way any more.
void Core::EndLearning() {
  if (--learners_ > 0) return;
  std::lock_guard lock(mutex_);
  if (learners_ == 0) given_up_.clear();
}

// The lease of the directory under which the answer may be learned: it was held when the request was sent, or
// came with the answer. (A request that was sent after another one may be carried out before it.)
ScopePtr Core::ScopeFor(const Learning& learning, const Fid& directory) {
  InodePtr inode = directory ? inodes_->Find(directory) : nullptr;
  if (inode == nullptr) return nullptr;
  std::lock_guard lock(inode->mutex);
  const ScopePtr& scope = inode->scope;
  if (scope == nullptr || !scope->good()) return nullptr;
  const bool came =
      std::find(learning.granted.begin(), learning.granted.end(), scope->lease) != learning.granted.end();
  return came || scope->since <= learning.event ? scope : nullptr;
}

// Takes over the leases that came with an answer. Those that are held already are not told again.
void Core::TakeScopes(Learning* learning, const proto::MetadataReply& reply) {
  if (reply.directory_leases().empty()) return;
  std::vector<ScopePtr> ended;  // at the MDS already
  for (const proto::Lease& lease : reply.directory_leases()) {
    InodePtr directory = inodes_->Get(FromProto(lease.resource()));
    learning->granted.push_back(lease.id());
    ScopePtr before = inodes_->KeepScope(lease.id());
    std::lock_guard lock(mutex_);
    // It may have been revoked before it came, or be on its way back; or a Reclaim that did not name it has
    // ended it.
    std::lock_guard inode_lock(directory->mutex);
    const bool gone = given_up_.contains(lease.id()) && !options_.plant_late_grant;
    if (gone || times_held_ != learning->held) continue;
    if (directory->scope != nullptr && directory->scope->lease == lease.id()) continue;
    if (directory->scope != nullptr) ended.push_back(directory->EndScope());
    if (before == nullptr) before = directory->ended;
    directory->scope =
        std::make_shared<Scope>(directory->fid, lease.id(), ++events_, environment_.clock.Now());
    if (before != nullptr) directory->scope->PromiseUntil(before->promised());
    directory->names.Forget();  // what was known before may be out of date
    directory->covered.reset();
  }
  for (ScopePtr& scope : ended) ReturnScope(nullptr, scope);  // what was opened under it has to be told
  ReturnDroppedScopes();
}

// The attributes are true as long as the lease that covers them is good.
void Core::Cover(const Learning& learning, Inode& inode, const proto::Attr& learned) {
  CoverSince(learning.event, ScopeCovering(learning, learned), inode, learned);
}

ScopePtr Core::ScopeCovering(const Learning& learning, const proto::Attr& learned) {
  if (S_ISDIR(learned.mode())) return ScopeFor(learning, FromProto(learned.fid()));
  return learned.nlink() == 1 ? ScopeFor(learning, FromProto(learned.parent())) : nullptr;
}

// Unless this client has changed the inode after `event`.
void Core::CoverSince(uint64_t event, ScopePtr scope, Inode& inode, const proto::Attr& learned) {
  if (scope == nullptr) return;
  std::lock_guard lock(inode.mutex);
  if (inode.own_changes > 0 || inode.changed > event) return;
  if (inode.attr_known && inode.attr.change() == learned.change()) inode.covered = std::move(scope);
}

// --- changes of this client's own, which the MDS carries out ---

// From before the request is sent until its answer is here: what it touches is not learned meanwhile. The
// answer itself says what it is afterwards, if no other change of this client has met this one there.
class Core::OwnChange {
 public:
  OwnChange(Core& core, const proto::MetadataRequest& request)
      : core_(core), learning_(core.BeginLearning()), renames_(request.has_rename()) {
    if (Fid fid = ChangedInode(request)) Begin(fid);
    for (auto& [directory, name] : EntriesOf(request)) names_.emplace_back(Begin(directory), name);
    if (request.has_link()) linked_ = FromProto(request.link().fid());
    exchanges_ = request.has_rename() && (request.rename().flags() & RENAME_EXCHANGE) != 0;
    takes_out_ = TakesFilesOut(request);
    if (!takes_out_) return;
    for (const auto& [directory, name] : names_) {
      std::lock_guard lock(directory->mutex);
      moves_.push_back(directory->scope != nullptr ? directory->scope : directory->ended);
      if (moves_.back() != nullptr) moves_.back()->BeginMove();
    }
  }
  OwnChange(const OwnChange&) = delete;
  OwnChange& operator=(const OwnChange&) = delete;

  ~OwnChange() {
    for (size_t i = 0; i < names_.size(); ++i) EndName(i);
    const std::set<Fid> alone = MetNoOther();
    const uint64_t event = ++core_.events_;
    for (const InodePtr& inode : inodes_) {
      std::lock_guard lock(inode->mutex);
      --inode->own_changes;
      ++inode->version;
      --inode->changing;
      inode->changed = event;
      inode->covered.reset();
    }
    for (const ScopePtr& scope : moves_) {
      if (scope != nullptr) scope->EndMove();
    }
    for (const proto::Attr& attr : after_) {
      if (!alone.contains(FromProto(attr.fid()))) continue;
      if (ScopePtr scope = core_.ScopeCovering(learning_, attr)) LearnAttributes(event, scope, attr);
    }
  }

  // Files with handles that the MDS has to be told of first: afterwards their lease may protect them no more.
  std::vector<InodePtr> Leaving() {
    std::vector<InodePtr> untold;
    if (!linked_ && !takes_out_) return untold;
    untold = core_.UntoldFiles();
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
    for (const Fid& fid : ChangedBy(reply)) Begin(fid);
    after_ = AttributesAfter(reply);
    if (reply.has_entry()) named_ = FromProto(reply.entry().attr().fid());
    // Of two names of one file the first stays (rename(2)).
    const proto::Attr& moved = reply.entry().attr();
    const bool links = renames_ && !S_ISDIR(moved.mode()) && moved.nlink() > 1;
    says_names_ = !exchanges_ && !links;
  }

 private:
  // Not if the lease has ended: this client may have the filesystem's by now, and take what is known for
  // true.
  void LearnAttributes(uint64_t event, const ScopePtr& scope, const proto::Attr& attr) {
    InodePtr inode = core_.inodes_->Get(FromProto(attr.fid()));
    {
      std::lock_guard lock(inode->mutex);
      if (!scope->good() || !inode->Apply(attr)) return;
    }
    core_.CoverSince(event, scope, *inode, attr);
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
    const ScopePtr scope = core_.ScopeFor(learning_, directory->fid);
    std::lock_guard lock(directory->mutex);
    const bool certain = says_names_ && scope != nullptr && directory->scope == scope;
    if (certain && IsAlone(*directory)) {
      directory->names.Set(name, meaning);
    } else {
      directory->names.Distrust(name);
    }
  }

  // Finds what the name means, unless another change of this client may be about to say otherwise.
  NameKnown Find(Inode& directory, const std::string& name) {
    std::lock_guard lock(directory.mutex);
    const bool others = directory.changing > Begun(directory);
    return others || !core_.TrustsNames(directory) ? NameKnown{} : directory.names.Find(name);
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
  const Learning learning_;
  const bool renames_;
  std::vector<proto::Attr> after_;  // what the answer says
  bool says_names_ = false;         // and what the names mean
  Fid named_;                       // the one that was made; zero: one was removed
  std::vector<InodePtr> inodes_;
  std::vector<std::pair<InodePtr, std::string>> names_;
  std::vector<ScopePtr> moves_;  // of names_, if files may leave these; null: there was no lease
  Fid linked_;
  bool takes_out_ = false;
  bool exchanges_ = false;
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
  for (const Fid& fid : kept.files) ForgetAttributes(fid);
  co_await AwaitForgotten(until);
}

Task<Core::Reply> Core::AskForChange(uint64_t epoch, proto::MetadataRequest request) {
  OwnChange change(*this, request);
  if (!options_.plant_hasty) co_await MakeKernelForget(&change);
  std::vector<InodePtr> files = change.Leaving();
  if (!files.empty()) co_await TellOpens(epoch, std::move(files));
  Reply reply = co_await AskBehindQueue(epoch, std::move(request));
  if (reply.ok()) change.Answered(*reply);
  // It may have been done, or be done yet; what it touches has no new leases until then.
  if (ToErrno(reply.status()) == EIO) EndScopes();
  co_return reply;
}

// --- handles that the MDS does not know (open.cc) ---

// Its mutex is held.
bool Core::IsUntold(const Inode& inode) const {
  return inode.opened_under != nullptr && inode.opens > inode.told;
}

std::vector<InodePtr> Core::UntoldFiles() {
  std::set<Fid> fids;
  {
    std::lock_guard lock(mutex_);
    fids = untold_;
  }
  std::vector<InodePtr> files;
  for (const Fid& fid : fids) {
    if (InodePtr inode = inodes_->Find(fid)) files.push_back(std::move(inode));
  }
  return files;
}

// The inode's mutex is held. Names its told handles outside of a whole Reclaim.
void Core::NameOpens(Inode& inode, proto::OpenFile* open) {
  inode.overtold = true;
  *open->mutable_fid() = ToProto(inode.fid);
  open->set_count(inode.told);
  open->set_write(inode.write_opens > 0);
}

// Returns when the MDS knows of the handles of these files, or has lost the stream: then the Reclaim that
// follows tells it.
Task<void> Core::TellOpens(uint64_t epoch, std::vector<InodePtr> files) {
  constexpr int kMost = 4000;  // in one message
  const uint64_t held = times_held_;
  for (size_t i = 0; i < files.size() && epoch == epoch_;) {
    proto::MetadataRequest request;
    proto::Reclaim* part = request.mutable_reclaim();
    for (; i < files.size() && part->opens_size() < kMost; ++i) {
      std::lock_guard lock(files[i]->mutex);
      if (!IsUntold(*files[i])) continue;
      files[i]->told = files[i]->opens;  // from here on a Reclaim names them, too
      NameOpens(*files[i], part->add_opens());
    }
    if (part->opens_size() == 0) co_return;
    (void)co_await session_->CallOnce(epoch, std::move(request),
                                      [this, held] { return times_held_ == held; });
  }
}

Task<void> Core::TellOpensUnder(uint64_t epoch, uint64_t lease) {
  std::vector<InodePtr> files;
  for (InodePtr& inode : UntoldFiles()) {
    std::lock_guard lock(inode->mutex);
    if (IsUntold(*inode) && inode->opened_under->lease == lease) files.push_back(inode);
  }
  if (!files.empty() && !options_.plant_untold) co_await TellOpens(epoch, std::move(files));
}

// --- giving back ---

// All of them: what was learned under them need not be true any more, or nobody asks for it.
void Core::EndScopes() {
  std::vector<std::pair<InodePtr, ScopePtr>> ended;
  for (const InodePtr& inode : inodes_->All()) {
    std::lock_guard lock(inode->mutex);
    inode->covered.reset();
    if (inode->scope == nullptr) continue;
    inode->leaving.push_back(inode->scope->lease);
    ended.emplace_back(inode, inode->EndScope());
  }
  for (auto& [directory, scope] : ended) ReturnScope(std::move(directory), std::move(scope));
  ReturnDroppedScopes();
}

// Those of directories that were let go for want of memory.
void Core::ReturnDroppedScopes() {
  for (ScopePtr& scope : inodes_->TakeDroppedScopes()) {
    InodePtr directory = inodes_->Get(scope->directory);
    {
      std::lock_guard lock(directory->mutex);
      directory->leaving.push_back(scope->lease);
      if (directory->scope == nullptr) directory->ended = scope;
    }
    ReturnScope(std::move(directory), std::move(scope));
  }
}

void Core::ReturnScope(InodePtr directory, ScopePtr scope) {
  const uint64_t lease = scope->lease;
  Learning present = BeginLearning();
  {
    std::lock_guard lock(mutex_);
    given_up_.insert(lease);
  }
  Background(ReturnRead(epoch_, std::move(directory), lease, std::move(scope), std::move(present)));
}

}  // namespace nacre::client
