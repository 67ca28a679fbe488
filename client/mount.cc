// Mounting, and what the session tells: the hooks. Unmounting: unmount.cc.
#include <algorithm>
#include <cerrno>

#include "client/core.h"
#include "client/reclaim.h"
#include "common/log.h"
#include "common/metrics.h"
#include "rpc/versions.h"

namespace nacre::client {
namespace {

constexpr Duration kMountPatience = 10s;  // for the first connection

}  // namespace

Task<StatusOr<std::unique_ptr<FileSystem>>> FileSystem::Mount(Environment environment, Options options) {
  auto core = std::make_unique<Core>(std::move(environment), std::move(options));
  Status started = co_await core->Start();
  if (!started.ok()) {
    co_await core->Abandon();
    co_return started;
  }
  co_return std::unique_ptr<FileSystem>(std::move(core));
}

Core::Core(Environment environment, Options options)
    : environment_(std::move(environment)),
      options_(std::move(options)),
      background_(environment_.executor),
      entrance_(environment_, options_, session_, [this] { pages_->ForgetAll(); }),
      locks_(environment_.clock, entrance_, background_,
             [this](uint64_t epoch, proto::MetadataRequest request) {
               return mds_->AskIn(epoch, std::move(request));
             }),
      dirty_(environment_, options_,
             {.crowded = [this] { background_.Start(write_behind_->SendOld(0ns)); },
              .due = [this] { background_.Start(write_behind_->SendOld(options_.write_behind / 2)); },
              .idle = [this] { background_.Start(targets_->ReturnGrants(entrance_.epoch())); }}) {}

Core::~Core() {
  queue_.reset();  // what waits there holds on to things in here (EarlyChange)
}

Task<Status> Core::Start() {
  CO_ASSIGN_OR_RETURN(cache_,
                      DataCache::Make(environment_.transport, options_.cache_bytes, options_.dirty_bytes));
  targets_ = std::make_unique<Targets>(
      environment_.transport, environment_.clock, options_.retry,
      [this](OstIndex ost, uint64_t losses) { losses_->OnOst(ost, losses); },
      MemberReads{options_.spread_reads_from, options_.plant_unwitnessed});
  io_ = std::make_unique<ObjectIo>(*targets_, options_.verify, [this](Fid fid, std::string message) {
    proto::MetadataRequest request;
    *request.mutable_report_problem()->mutable_fid() = ToProto(fid);
    request.mutable_report_problem()->set_message(std::move(message));
    background_.Start([](Core* core, uint64_t epoch, proto::MetadataRequest report) -> Task<void> {
      (void)co_await core->mds_->AskIn(epoch, std::move(report));
    }(this, session_->epoch(), std::move(request)));
  });
  const uint64_t known = options_.known_bytes;
  inodes_ = std::make_unique<InodeTable>(
      cache_, known != 0 ? known : MemoryBudget::LimitBeside(options_.cache_bytes));
  leases_ = std::make_unique<HeldLeases>(*inodes_, environment_.clock, options_.plant_late_grant);
  Session::Hooks hooks;
  hooks.push = [this](const proto::Push& push) { OnPush(push); };
  hooks.held = [this] { return Held(); };
  hooks.connected = [this](const proto::ConnectReply& reply, bool fresh, uint64_t epoch) {
    OnConnected(reply, fresh, epoch);
  };
  hooks.evicted = [this](uint64_t epoch) { OnEvicted(epoch); };
  hooks.report = [this](proto::KeepAlive* keep_alive) {
    for (std::string& path : targets_->Paths()) keep_alive->add_paths(std::move(path));
    for (proto::PathState& state : targets_->PathStates()) *keep_alive->add_path_states() = std::move(state);
    keep_alive->set_resident_bytes(ResidentBytes());
  };
  hooks.leases_confirmed = [this] { entrance_.OnLeasesConfirmed(); };
  hooks.kept_alive = [this](const proto::KeepAliveReply& reply) { early_->Allow(reply.names_behind()); };
  session_ = std::make_shared<Session>(environment_.executor, environment_.clock, environment_.random,
                                       environment_.metadata, options_.retry, options_.name,
                                       options_.replaces, std::move(hooks));
  knowledge_ = std::make_unique<Knowledge>(environment_, options_, *inodes_, *leases_, entrance_, *session_);
  reads_ = std::make_unique<CacheReads>(environment_, options_, cache_, *io_, entrance_, background_);
  pages_ = std::make_unique<KeptPages>(
      environment_, *inodes_, *leases_, *knowledge_, entrance_, background_, kernel_,
      [this](uint64_t epoch, proto::MetadataRequest request) {
        return mds_->AskIn(epoch, std::move(request));
      },
      [this](const InodePtr& inode) { return held_data_->TryTake(inode); });
  queue_ = std::make_unique<MetadataQueue>(
      session_, environment_.clock, [this](Task<void> task) { background_.Start(std::move(task)); },
      [this](bool allowed) { early_->Allow(allowed); });
  handles_ = std::make_unique<Handles>(entrance_, *cache_, *inodes_, *leases_, *session_, *queue_);
  early_ = std::make_unique<EarlyChanges>(
      environment_, room_, *inodes_, *leases_, entrance_, *session_, *queue_, *handles_, kernel_,
      EarlyChanges::Hooks{
          .give_back = [this](InodePtr directory,
                              ScopePtr scope) { mds_->ReturnScope(std::move(directory), std::move(scope)); },
          .discard = [this](Inode& inode) { data_->Discard(inode); }});
  mds_ = std::make_unique<MdsCalls>(
      environment_, options_, entrance_, *session_, *queue_, *pages_, kernel_, background_,
      OwnChange::Here{*inodes_, *leases_, *early_, *knowledge_, *handles_, own_data_},
      MdsCalls::Hooks{.give_data_up = [this](InodePtr file) { return held_data_->GiveUp(std::move(file)); },
                      .give_back =
                          [this](InodePtr directory, uint64_t lease, ScopePtr scope, Learning present) {
                            return returns_->Return(entrance_.epoch(), std::move(directory), lease,
                                                    std::move(scope), std::move(present),
                                                    MetadataQueue::Hurry::kNo);
                          }});
  durability_ = std::make_unique<Durability>(
      *targets_, *io_, *queue_, *session_,
      [this](const InodePtr& inode, OstIndex ost) { return losses_->NoteLost(inode, ost); });
  MakeDataParts();
  auto reply = co_await session_->Start(kMountPatience);
  co_return reply.status();
}

// Makes what handles the bytes of files, each part above those that it uses.
void Core::MakeDataParts() {
  data_ = std::make_unique<FileData>(cache_, *targets_, *io_, *durability_, room_, entrance_, background_);
  telling_ = std::make_unique<Telling>(environment_, options_, entrance_, *early_, *mds_, *queue_, room_,
                                       background_);
  moving_out_ = std::make_unique<MovingOut>(entrance_, *session_, *early_, *mds_, *queue_, *telling_, *data_,
                                            *targets_, room_, dirty_, background_);
  write_behind_ = std::make_unique<WriteBehind>(environment_, *inodes_, *data_, *telling_, *moving_out_,
                                                room_, dirty_, *queue_, background_);
  held_data_ = std::make_unique<HeldData>(
      environment_, options_, *inodes_, *leases_, own_data_, *early_, *mds_, *data_, *moving_out_,
      *write_behind_, kernel_, background_,
      [this](uint64_t epoch, InodePtr file, uint64_t lease, Learning present) {
        return returns_->ReturnPages(epoch, std::move(file), lease, std::move(present));
      });
  returns_ =
      std::make_unique<LeaseReturns>(environment_, options_, entrance_, *inodes_, *leases_, *early_, *mds_,
                                     *queue_, *handles_, *pages_, *held_data_, kernel_, background_);
  losses_ = std::make_unique<PowerLosses>(environment_, *inodes_, entrance_, *durability_, *pages_, *mds_,
                                          *data_, *moving_out_, *write_behind_, kernel_, background_);
}

void Core::OnConnected(const proto::ConnectReply& reply, bool fresh, uint64_t epoch) {
  if (fresh) targets_->Reset(reply.session(), epoch);
  TakeMap(reply.map());
  const bool lost = mdt_losses_.exchange(reply.losses()) != reply.losses();
  if (!fresh && lost) losses_->OnMdt(durability_->synced());
  room_.SetInlineLimit(reply.inline_limit());
  if (reply.version() < kSharedFiles) mds_->EndShared();
  early_->OnConnected(reply, fresh, epoch);
  room_.Promise(reply.promised_bytes());
}

void Core::OnPush(const proto::Push& push) {
  if (push.has_map()) return TakeMap(push.map());
  if (!push.has_revoke()) return;
  const proto::Revoke& revoke = push.revoke();
  returns_->Begin(session_->epoch(), FromProto(revoke.resource()), revoke.id(),
                  revoke.keep() == proto::LEASE_READ);
}

// Lists what this client holds, for the MDS after a lost stream.
std::vector<proto::Reclaim> Core::Held() {
  mds_->ReturnDroppedScopes();   // or the MDS would end them before the kernel has forgotten what they cover
  leases_->BeginReclaim();       // before anything is counted: a close that comes later is not in it
  std::vector<InodePtr> inodes;  // none: what is still here has gone with an earlier session
  if (entrance_.epoch() == session_->epoch()) inodes = inodes_->All();
  return ListHeld(inodes);
}

// An OSS that was started again is asked at once whether it has lost something.
void Core::TakeMap(const proto::ClusterMap& map) {
  for (OstIndex ost : targets_->SetMap(map)) {
    background_.Start([](Core* core, uint64_t epoch, OstIndex index) -> Task<void> {
      proto::ObjectRequest ping;
      ping.set_ost(index);
      ping.mutable_ping();
      (void)co_await core->io_->Send(epoch, std::move(ping));  // what it says is noted on the way
    }(this, session_->epoch(), ost));
  }
}

// A revocation that the MDS has asked for meanwhile may be under way.
Task<void> Core::Abandon() {
  if (session_ == nullptr) co_return;
  co_await session_->End(false);
  co_await background_.Drain();
  targets_->Close();
}

void Core::SetInvalidation(Invalidation invalidation) { kernel_.Set(std::move(invalidation)); }

Task<StatusOr<proto::LockRange>> Core::GetLock(HandlePtr handle, proto::LockRange lock) {
  return locks_.Get(std::move(handle), std::move(lock));
}

// Does not pass the gate: a wait may last for ever.
Task<Status> Core::SetLock(HandlePtr handle, proto::LockRange lock, bool wait, uint64_t wait_id) {
  return locks_.Set(std::move(handle), std::move(lock), wait, wait_id);
}

void Core::CancelLock(HandlePtr handle, uint64_t wait_id) { locks_.Cancel(std::move(handle), wait_id); }

KernelPages Core::PagesFor(const HandlePtr& handle) { return pages_->For(handle); }

Task<StatusOr<LockedPages>> Core::HoldPages(HandlePtr handle, uint64_t offset, size_t size, PageUse use) {
  return pages_->Hold(std::move(handle), offset, size, use);
}

bool Core::MayHavePages(const HandlePtr& handle) { return KeptPages::MayHave(handle); }

Seen Core::Look() {
  Seen seen;
  seen.paths = targets_->Paths();
  seen.cached_bytes = cache_->cached_bytes();
  seen.dirty_bytes = cache_->dirty_bytes();
  seen.inodes = inodes_->count();
  seen.known_bytes = inodes_->budget().bytes();
  seen.small_bytes = inodes_->budget().contents();
  seen.connected = session_->connected();
  seen.early_answered = early_->answered();
  seen.early_done = queue_->answered();
  seen.early_writes = early_->writes();
  seen.epoch = session_->epoch();
  return seen;
}

}  // namespace nacre::client
