#include "client/mds_calls.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "client/within.h"
#include "common/cancellation.h"
#include "rpc/convert.h"
#include "rpc/mutation.h"

namespace nacre::client {

MdsCalls::MdsCalls(const Environment& environment, const Options& options, const Entrance& entrance,
                   Session& session, MetadataQueue& queue, KeptPages& pages, KernelCache& kernel,
                   Background& background, const OwnChange::Here& here, Hooks hooks)
    : environment_(environment),
      options_(options),
      entrance_(entrance),
      session_(session),
      queue_(queue),
      pages_(pages),
      kernel_(kernel),
      background_(background),
      here_(here),
      hooks_(std::move(hooks)) {}

// --- asking ---

Task<MdsCalls::Reply> MdsCalls::Ask(const Caller& caller, proto::MetadataRequest request) {
  SetCaller(caller, &request);
  if (!session_.connected()) return AskWhenConnected(std::move(request));
  return AskAsSystem(std::move(request));
}

// The caller may give up as long as nothing has been sent.
Task<MdsCalls::Reply> MdsCalls::AskWhenConnected(proto::MetadataRequest request) {
  CO_RETURN_IF_ERROR(co_await session_.WaitForStream());
  co_return co_await AskAsSystem(std::move(request));
}

Task<MdsCalls::Reply> MdsCalls::AskAsSystem(proto::MetadataRequest request) {
  return AskIn(entrance_.epoch(), std::move(request));
}

Task<MdsCalls::Reply> MdsCalls::AskIn(uint64_t epoch, proto::MetadataRequest request) {
  const bool changes = IsMutation(request);
  if (changes) return AskForChange(epoch, std::move(request));
  if (queue_.Idle()) return session_.Call(epoch, std::move(request));
  return AskBehindQueue(epoch, std::move(request));
}

Task<MdsCalls::Reply> MdsCalls::AskBehindQueue(uint64_t epoch, proto::MetadataRequest request) {
  co_await queue_.Drain();
  co_return co_await session_.Call(epoch, std::move(request));
}

// --- changes ---

// Before the MDS carries it out: afterwards nobody announces changes of what may have lost its lease.
Task<void> MdsCalls::MakeKernelForget(OwnChange* change) {
  Duration until = change->PromisedNames();
  OwnChange::Kept kept = change->KeptByKernel(environment_.clock.Now());
  Caller system;
  for (auto& [directory, name] : kept.names) {
    auto found = co_await LookUp(system, directory, name);
    if (found.ok()) kept.files.push_back(FromProto(found->attr.fid()));
    if (!found.ok() && ToErrno(found.status()) != ENOENT) until = change->PromisedAll();
  }
  for (const Fid& fid : kept.files) kernel_.ForgetAttributes(fid);
  co_await SleepUntil(environment_.clock, until);
}

Task<MdsCalls::Reply> MdsCalls::AskForChange(uint64_t epoch, proto::MetadataRequest request) {
  OwnChange change(here_, request);
  if (!options_.plant_hasty) co_await MakeKernelForget(&change);
  std::vector<OneShot<Unit>> given_up;
  for (InodePtr& inode : change.WithData())
    given_up.push_back(background_.Start(hooks_.give_data_up(std::move(inode))));
  for (const OneShot<Unit>& end : given_up) CO_RETURN_IF_ERROR(co_await WaitUnlessCancelled(end));
  const std::vector<InodePtr> paged = change.Paged();
  for (const InodePtr& inode : paged) {
    co_await pages_.Keep(epoch, inode);
    std::lock_guard lock(inode->mutex);
    inode->pages.under.reset();  // the lease may cover the file again, and will not have done so all the time
  }
  std::vector<InodePtr> files = change.Leaving();
  if (!files.empty()) {
    co_await queue_.Drain();  // the MDS may have to make them first
    co_await here_.handles.Tell(epoch, std::move(files));
  }
  request.set_want_lease(options_.caching);
  Reply reply = co_await AskBehindQueue(epoch, std::move(request));
  if (reply.ok()) {
    TakeScopes(change.learning(), *reply);
    change.Answered(*reply);
  }
  // It may have been done, or be done yet; what it touches has no new leases until then.
  if (ToErrno(reply.status()) == EIO) EndScopes();
  co_return reply;
}

Task<Status> MdsCalls::SettleDirectory(InodePtr directory) {
  bool asked = false;
  for (int i = 0; i < kRaces && here_.early.MayAnswer(); ++i) {
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
  co_return co_await queue_.WaitForRoom();
}

// --- what is not known ---

Task<StatusOr<Known>> MdsCalls::LookUp(const Caller& caller, InodePtr directory, std::string name) {
  FillToken token = BeginFill(*directory);
  Learning learning = here_.leases.BeginLearning();
  proto::MetadataRequest request;
  *request.mutable_lookup()->mutable_parent() = ToProto(directory->fid);
  request.mutable_lookup()->set_name(name);
  request.mutable_lookup()->set_want_layout(true);
  request.mutable_lookup()->set_want_lease(options_.caching);
  auto reply = co_await Ask(caller, std::move(request));
  if (reply.ok()) TakeScopes(&learning, *reply);
  token.scope = here_.leases.For(learning, directory->fid);
  const bool fill = token.scope != nullptr;
  if (!reply.ok()) {
    if (fill && ToErrno(reply.status()) == ENOENT) FillName(*directory, token, name, Fid{});
    co_return reply.status();
  }
  if (fill) FillName(*directory, token, name, FromProto(reply->entry().attr().fid()));
  co_return here_.knowledge.LearnFound(learning, reply->entry());
}

Task<StatusOr<Known>> MdsCalls::Refresh(const Caller& caller, Fid fid, bool want_layout) {
  proto::MetadataRequest request;
  *request.mutable_getattr()->mutable_fid() = ToProto(fid);
  request.mutable_getattr()->set_want_layout(want_layout);
  request.mutable_getattr()->set_want_lease(options_.caching);
  Learning learning = here_.leases.BeginLearning();
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply, co_await Ask(caller, std::move(request)));
  TakeScopes(&learning, reply);
  const proto::AttrReply& answer = reply.attr();
  InodePtr inode = want_layout ? here_.inodes.Get(fid) : here_.inodes.Find(fid);
  if (inode == nullptr) co_return Known{answer.attr(), Duration(0)};
  Knowledge::Learn(*inode, answer.attr(), want_layout ? &answer.layout() : nullptr,
                   want_layout ? &answer.data() : nullptr);
  here_.leases.Cover(learning, *inode, answer.attr());
  co_return here_.knowledge.Answer(*inode);
}

Task<Status> MdsCalls::LoadFile(InodePtr inode) {
  auto content = co_await LoadContent(std::move(inode));
  co_return content.status();
}

Task<StatusOr<FileContent>> MdsCalls::LoadContent(InodePtr inode, uint64_t end) {
  {
    std::lock_guard lock(inode->mutex);
    if (inode->IsShared() && entrance_.LeasesGood() && !inode->Inline() && end <= inode->Size()) {
      if (auto content = inode->Content()) {
        content->size = inode->Size();
        co_return *std::move(content);
      }
    }
    if (here_.knowledge.Trusts(*inode) || inode->ContentLeased() || inode->data_scope != nullptr)
      if (auto content = inode->CurrentContent()) co_return *std::move(content);
  }
  Caller system;
  for (int attempt = 0; attempt <= kRaces; ++attempt) {
    auto known = co_await Refresh(system, inode->fid, true);
    if (!known.ok()) co_return known.status();
    std::lock_guard lock(inode->mutex);
    if (auto content = inode->CurrentContent()) {
      // The MDS does not know yet how far this client has written to a file that it shares.
      if (content->layout != nullptr) content->size = std::max(content->size, inode->pending.size);
      co_return *std::move(content);
    }
    // Newer attributes, without layout and data, may have overtaken these.
  }
  co_return ErrnoError(
      EIO, absl::StrFormat("file %s: the MDS sent neither data nor a layout", inode->fid.ToString()));
}

// --- leases ---

void MdsCalls::TakeScopes(Learning* learning, const proto::MetadataReply& reply) {
  std::vector<ScopePtr> ended = here_.leases.Take(learning, reply);
  if (learning->granted.empty()) return;
  for (ScopePtr& scope : ended) ReturnScope(nullptr, std::move(scope));
  ReturnDroppedScopes();
}

void MdsCalls::EndScopes() {
  for (auto& [directory, scope] : here_.leases.EndAll()) ReturnScope(std::move(directory), std::move(scope));
  ReturnDroppedScopes();
}

void MdsCalls::EndShared() {
  for (auto& [file, scope] : here_.leases.EndShared()) ReturnScope(std::move(file), std::move(scope));
}

void MdsCalls::ReturnDroppedScopes() {
  for (auto& [directory, scope] : here_.leases.TakeDropped())
    ReturnScope(std::move(directory), std::move(scope));
}

void MdsCalls::ReturnScope(InodePtr directory, ScopePtr scope) {
  const uint64_t lease = scope->lease();
  Learning present = here_.leases.BeginLearning();
  if (lease != 0) here_.leases.NoteGivenUp(lease);
  background_.Start(hooks_.give_back(std::move(directory), lease, std::move(scope), std::move(present)));
}

}  // namespace nacre::client
