#include "server/replication/primary.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>

#include "common/log.h"
#include "rpc/convert.h"

namespace nacre::replication {
namespace {

// How long a member that is there, by its promises, may take for one request.
constexpr Duration kWorkTime = 10s;
constexpr Duration kDeliverAgain = 20ms;

// A snapshot without the copies' own records, which are behind all others.
class MdtSnapshot : public KvSnapshot {
 public:
  explicit MdtSnapshot(std::unique_ptr<KvSnapshot> all) : all_(std::move(all)) {}

  StatusOr<std::vector<KvEntry>> Read(std::string_view from, size_t max_bytes) override {
    ASSIGN_OR_RETURN(std::vector<KvEntry> entries, all_->Read(from, max_bytes));
    std::erase_if(entries, [](const KvEntry& entry) { return entry.key >= kOwnPrefix; });
    return entries;
  }

 private:
  const std::unique_ptr<KvSnapshot> all_;
};

std::string_view EndOfMdt(std::string_view to) {
  return to.empty() || to > std::string_view(kOwnPrefix) ? std::string_view(kOwnPrefix) : to;
}

Status Deposed() { return absl::UnavailableError("this MDS is not the primary any more"); }

}  // namespace

proto::ApplyGroup MessageOf(const Group& group) {
  proto::ApplyGroup message;
  *message.mutable_previous() = group.previous.Message();
  *message.mutable_position() = group.position.Message();
  message.mutable_changes()->Reserve(static_cast<int>(group.ops.size()));
  for (const KvBatch::Op& op : group.ops) {
    proto::StoreChange* change = message.add_changes();
    change->set_key(op.key);
    change->set_value(op.value);
    change->set_erase(op.erase);
  }
  return message;
}

Primary::Primary(const MemberEnvironment& environment, const MemberOptions& options, StoreCopy& copy,
                 Neighbours& neighbours, std::shared_ptr<InSync> in_sync)
    : executor_(environment.executor),
      clock_(environment.clock),
      random_(environment.random),
      options_(options),
      copy_(copy),
      neighbours_(neighbours),
      in_sync_(std::move(in_sync)),
      pipeline_(
          copy.store(), environment.clock,
          [this](Pipeline::Changes changes) { return Write(std::move(changes)); },
          [this](Task<void> task) {
            auto keep = [](std::shared_ptr<Primary>, Task<void> task) -> Task<void> {
              co_await std::move(task);
            };
            Spawn(executor_, keep(shared_from_this(), std::move(task)));
          }),
      coordinator_heard_(environment.clock.Now()) {}

Task<Status> Primary::Start() {
  CO_RETURN_IF_ERROR(co_await copy_.NoteWhole(in_sync_->filesystem()));
  GroupPtr first = copy_.FirstOf(in_sync_->epoch());
  sent_ = first->position;
  CO_RETURN_IF_ERROR(co_await copy_.Apply(std::move(first)));
  Spawn(executor_, LookForOthers(shared_from_this()));
  co_return OkStatus();
}

Task<void> Primary::Resign() {
  const Pause pause = co_await AwaitPause();
  const std::vector<std::string> names = in_sync_->names();
  const bool deposed = in_sync_->ended();
  in_sync_->End(Deposed());
  if (deposed) co_return;
  for (const std::string& name : names) {
    proto::CopyRequest request = NewRequest(name);
    request.mutable_beacon()->set_resign(true);
    auto told = co_await neighbours_.Exchange(std::move(request), options_.answer);
    if (!told.ok()) LogInfo("the MDS %s was not told that this one ends: %s", name, told.status().message());
  }
}

// --- reading ---

StatusOr<std::string> Primary::Get(std::string_view key) { return pipeline_.view().Get(key); }

StatusOr<std::vector<KvEntry>> Primary::Scan(std::string_view from, std::string_view to, size_t limit) {
  return pipeline_.view().Scan(from, EndOfMdt(to), limit);
}

StatusOr<KvEntry> Primary::Last(std::string_view from, std::string_view to) {
  return pipeline_.view().Last(from, EndOfMdt(to));
}

StatusOr<std::unique_ptr<KvSnapshot>> Primary::Snapshot() {
  ASSIGN_OR_RETURN(std::unique_ptr<KvSnapshot> all, copy_.store().Snapshot());
  return std::make_unique<MdtSnapshot>(std::move(all));
}

// --- writing ---

proto::CopyRequest Primary::NewRequest(const std::string& to) const {
  proto::CopyRequest request;
  request.set_filesystem(in_sync_->filesystem());
  request.set_from(options_.name);
  request.set_to(to);
  request.set_epoch(in_sync_->epoch());
  return request;
}

Task<Status> Primary::Commit(KvBatch batch) {
  if (in_sync_->ended()) co_return Deposed();
  co_return co_await pipeline_.Change(std::move(batch));
}

Task<StatusOr<Pipeline::Store>> Primary::Write(Pipeline::Changes changes) {
  AsyncMutex::Guard turn = co_await turn_.Lock();
  if (in_sync_->ended()) co_return Deposed();
  auto group = std::make_shared<Group>();
  group->previous = sent_;
  group->position = sent_ = {in_sync_->epoch(), group->previous.sequence + 1};
  group->ops = std::move(changes.ops);
  group->bytes = changes.bytes;
  const bool alone = in_sync_->names().empty();
  co_await Send(group);
  AsyncMutex::Guard storing = co_await storing_.Lock();
  // The others may have it or not: whoever is primary next knows. Nobody is told that it is done.
  if (in_sync_->ended()) co_return Deposed();
  Pipeline::Store store;
  if (alone) {  // no group would be on its way meanwhile; changes made meanwhile are better one group
    CO_RETURN_IF_ERROR(co_await Store(std::move(group), std::move(storing)));
  } else {
    store = [this, group = std::move(group), storing = std::move(storing)]() mutable {
      return Store(std::move(group), std::move(storing));
    };
  }
  co_return store;
}

Task<void> Primary::Send(GroupPtr group) {
  MakeRequest make = [this, group](std::string to) {
    proto::CopyRequest request = NewRequest(to);
    *request.mutable_apply() = MessageOf(*group);
    return request;
  };
  if (!options_.plant_early_ack) co_return co_await DeliverToAll(std::move(make));
  auto late = [](std::shared_ptr<Primary> self, MakeRequest make) -> Task<void> {
    co_await self->DeliverToAll(std::move(make));
  };
  Spawn(executor_, late(shared_from_this(), std::move(make)));
}

Task<Status> Primary::Store(GroupPtr group, AsyncMutex::Guard storing) {
  Status status = co_await copy_.Apply(std::move(group));
  // Others have what this store has not: it cannot go on as their primary.
  if (!status.ok()) in_sync_->End(status);
  storing.Release();
  co_return status;
}

Task<Primary::Pause> Primary::AwaitPause() {
  Pause pause;
  pause.turn = co_await turn_.Lock();
  pause.storing = co_await storing_.Lock();
  co_return pause;
}

Status Primary::Check(const StatusOr<proto::CopyReply>& reply) {
  RETURN_IF_ERROR(reply.status());
  if (reply->epoch() > in_sync_->epoch()) {
    Status deposed =
        absl::FailedPreconditionError(absl::StrFormat("there is a primary in epoch %d", reply->epoch()));
    in_sync_->End(deposed);
    return deposed;
  }
  return nacre::FromProto(reply->status());
}

// Until the member has done it, or is out of the set.
Task<Unit> Primary::Deliver(std::string name, MakeRequest make) {
  const Duration begin = clock_.Now();
  while (!in_sync_->ended() && in_sync_->Contains(name)) {
    proto::CopyRequest attempt = make(name);
    const Status done = Check(co_await neighbours_.Exchange(std::move(attempt), options_.answer));
    if (done.ok() || in_sync_->ended()) break;
    if (!IsRetryable(done) || clock_.Now() - begin > kWorkTime) {
      std::string why(done.message());
      co_await in_sync_->TryRemove(name, std::move(why));
    }
    if (in_sync_->Contains(name)) co_await clock_.Sleep(kDeliverAgain);
  }
  co_return Unit{};
}

// Ends when each member that was in sync has answered, is out of the set, or the set has ended: a member that
// is silent is taken out, and where the coordinator cannot be asked for that this primary's promises run out,
// which ends the set. A primary whose coordinator is away for good waits for good: it must neither
// acknowledge nor fail.
Task<void> Primary::DeliverToAll(MakeRequest make) {
  const std::vector<std::string> names = in_sync_->names();
  std::vector<Task<Unit>> deliveries;
  for (const std::string& name : names) deliveries.push_back(Deliver(name, make));
  (void)co_await WhenAll(std::move(deliveries));
}

Task<Status> Primary::Sync() {
  const uint64_t call = ++syncs_asked_;
  AsyncMutex::Guard guard = co_await sync_.Lock();
  if (synced_ >= call) co_return OkStatus();  // a round that has begun since
  const uint64_t calls = syncs_asked_;
  CO_RETURN_IF_ERROR(co_await SyncAll());
  synced_ = calls;
  co_return OkStatus();
}

Task<Status> Primary::SyncAll() {
  CO_RETURN_IF_ERROR(co_await pipeline_.AwaitKept());
  if (in_sync_->ended()) co_return Deposed();
  auto others = [](Primary* self) -> Task<Status> {
    MakeRequest make = [self](std::string to) {
      proto::CopyRequest request = self->NewRequest(to);
      request.mutable_sync();
      return request;
    };
    co_await self->DeliverToAll(std::move(make));
    co_return OkStatus();
  };
  std::vector<Task<Status>> syncs;
  syncs.push_back(copy_.Sync());
  syncs.push_back(others(this));
  const std::vector<Status> done = co_await WhenAll(std::move(syncs));
  CO_RETURN_IF_ERROR(done[0]);
  co_return in_sync_->ended() ? Deposed() : OkStatus();
}

// --- what is said of it ---

Task<proto::CopyReply> Primary::Handle(proto::CopyRequest request) {
  proto::CopyReply reply;
  *reply.mutable_position() = copy_.position().Message();
  reply.set_epoch(in_sync_->epoch());
  Status status;
  if (!request.has_ask()) {
    if (request.epoch() > in_sync_->epoch()) {
      in_sync_->End(absl::FailedPreconditionError(
          absl::StrFormat("%s is the primary now, in epoch %d", request.from(), request.epoch())));
      status = absl::UnavailableError("this MDS has just learned that it is not the primary any more");
    } else {
      status = ErrnoError(ESTALE, absl::StrFormat("this MDS is the primary, in epoch %d", in_sync_->epoch()));
    }
  }
  *reply.mutable_status() = nacre::ToProto(status);
  co_return reply;
}

proto::MdtCopies Primary::Describe() const {
  proto::MdtCopies copies;
  copies.set_epoch(in_sync_->epoch());
  copies.set_primary(options_.name);
  copies.set_sequence(copy_.position().sequence);
  std::map<std::string, proto::MdtCopyState> states;
  proto::MdtCopyState& self = states[options_.name];
  self.set_in_sync(true);
  self.set_sequence(copy_.position().sequence);
  self.set_state("primary");
  std::lock_guard lock(mutex_);
  for (const auto& [name, link] : links_) {
    proto::MdtCopyState& state = states[name];
    state.set_in_sync(in_sync_->Contains(name));
    state.set_sequence(link->position.sequence);
    const Duration silent = clock_.Now() - link->answered;
    state.set_milliseconds_since_answer(
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(silent).count()));
    state.set_state(state.in_sync() ? "in sync" : link->state);
  }
  for (auto& [name, state] : states) {
    state.set_name(name);
    state.set_address(neighbours_.address(name));
    *copies.add_members() = std::move(state);
  }
  return copies;
}

}  // namespace nacre::replication
