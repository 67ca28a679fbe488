#include "server/replication/follower.h"

#include <absl/strings/str_format.h>

#include <cerrno>

#include "common/lease_time.h"
#include "common/log.h"
#include "rpc/convert.h"
#include "rpc/versions.h"
#include "server/replication/alone.h"

namespace nacre::replication {
namespace {

constexpr Duration kLookAgain = 500ms;

GroupPtr GroupOf(proto::CopyRequest request) {
  auto group = std::make_shared<Group>();
  proto::ApplyGroup& message = *request.mutable_apply();
  group->previous = Position::Of(message.previous());
  group->position = Position::Of(message.position());
  group->ops.reserve(static_cast<size_t>(message.changes_size()));
  for (proto::StoreChange& change : *message.mutable_changes()) {
    group->bytes += change.key().size() + change.value().size();
    group->ops.push_back(
        {std::move(*change.mutable_key()), std::move(*change.mutable_value()), change.erase()});
  }
  return group;
}

}  // namespace

Follower::Follower(MemberEnvironment environment, const MemberOptions& options, StoreCopy& copy, Judge& judge,
                   Neighbours& neighbours, bool own_mdt)
    : environment_(environment),
      options_(options),
      copy_(copy),
      judge_(judge),
      neighbours_(neighbours),
      own_mdt_(own_mdt),
      instance_(environment.random.Next()),
      promised_until_(environment.clock.Now() + WithDrift(options.promise)) {}

// --- what it is told ---

Task<proto::CopyReply> Follower::Handle(proto::CopyRequest request) {
  Status status = CheckSender(request);
  if (status.ok()) status = co_await Carry(std::move(request));
  proto::CopyReply reply;
  *reply.mutable_position() = copy_.position().Message();
  reply.set_may_lack(copy_.may_lack());
  reply.set_instance(instance_);
  reply.set_version(kServerVersions.newest);
  {
    std::lock_guard lock(mutex_);
    reply.set_epoch(epoch_);
  }
  *reply.mutable_status() = nacre::ToProto(status);
  co_return reply;
}

Status Follower::CheckSender(const proto::CopyRequest& request) {
  if (request.to() != options_.name) {
    return absl::NotFoundError(absl::StrFormat("this is the MDS %s, not %s", options_.name, request.to()));
  }
  const VersionRange spoken = RangeOf(request.version(), 0, kUnnumberedServerVersion);
  const std::string they = absl::StrCat("the MDS ", request.from());
  const std::string we = absl::StrCat("the MDS ", options_.name);
  RETURN_IF_ERROR(CommonVersion(spoken, kServerVersions, they, we).status());
  const std::string mine = copy_.filesystem();
  if (own_mdt_) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the store of the MDS %s has an MDT of its own. If it is not needed, empty its directory and run "
        "nacre-mds --format --copy",
        options_.name));
  }
  if (!mine.empty() && !request.filesystem().empty() && mine != request.filesystem()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the store of the MDS %s belongs to the filesystem %s, not to %s", options_.name,
                        mine, request.filesystem()));
  }
  if (request.has_ask()) return OkStatus();
  std::lock_guard lock(mutex_);
  if (request.epoch() < epoch_) {
    return ErrnoError(ESTALE, absl::StrFormat("the MDS %s was primary in epoch %d; it is %d now",
                                              request.from(), request.epoch(), epoch_));
  }
  if (state_ != State::kFollowing) return absl::UnavailableError("this MDS tries to become primary");
  if (request.beacon().resign() && request.epoch() != epoch_) {
    return absl::UnavailableError("this MDS does not follow the one that resigns");
  }
  epoch_ = request.epoch();
  primary_ = request.from();
  return OkStatus();
}

Task<Status> Follower::Carry(proto::CopyRequest request) {
  switch (request.op_case()) {
    case proto::CopyRequest::kAsk:
      co_return OkStatus();
    case proto::CopyRequest::kBeacon:
      co_return Promise(request);
    case proto::CopyRequest::kApply:
      co_return co_await ApplyGroup(std::move(request));
    case proto::CopyRequest::kSync: {
      if (!request.sync().whole()) co_return co_await copy_.Sync();
      AsyncMutex::Guard work = co_await work_.Lock();
      CO_RETURN_IF_ERROR(CheckFollowing());
      if (request.sync().instance() != instance_) {
        co_return absl::FailedPreconditionError("this MDS has been started again meanwhile");
      }
      std::string filesystem = request.filesystem();
      co_return co_await copy_.NoteWhole(std::move(filesystem));
    }
    case proto::CopyRequest::kInstall: {
      AsyncMutex::Guard work = co_await work_.Lock();
      CO_RETURN_IF_ERROR(CheckFollowing());
      std::string filesystem = request.filesystem();
      proto::InstallPart part = std::move(*request.mutable_install());
      co_return co_await copy_.Install(std::move(part), std::move(filesystem));
    }
    default:
      co_return ErrnoError(EPROTO, "a request between copies of the MDT that this program does not know");
  }
}

Status Follower::CheckFollowing() const {
  std::lock_guard lock(mutex_);
  if (state_ == State::kFollowing) return OkStatus();
  return absl::UnavailableError("this MDS follows nobody any more");
}

Task<Status> Follower::ApplyGroup(proto::CopyRequest request) {
  AsyncMutex::Guard work = co_await work_.Lock();
  CO_RETURN_IF_ERROR(CheckFollowing());
  GroupPtr group = GroupOf(std::move(request));
  Position position = copy_.position();
  if (options_.plant_epochless) position.epoch = group->previous.epoch;
  if (position == group->position) co_return OkStatus();
  if (position == group->previous) co_return co_await copy_.Apply(std::move(group));
  co_return absl::FailedPreconditionError(absl::StrFormat("changes behind %s, and this store has %s",
                                                          group->previous.ToString(), position.ToString()));
}

Status Follower::Promise(const proto::CopyRequest& request) {
  const Duration length = std::chrono::milliseconds(request.beacon().promise_ms());
  std::lock_guard lock(mutex_);
  if (state_ != State::kFollowing) return absl::UnavailableError("this MDS tries to become primary");
  promised_until_ = environment_.clock.Now();
  if (!request.beacon().resign()) promised_until_ += WithDrift(length);
  return OkStatus();
}

// --- becoming primary ---

Duration Follower::PromisedFor() const {
  std::lock_guard lock(mutex_);
  return promised_until_ - environment_.clock.Now();
}

bool Follower::stopped() const {
  std::lock_guard lock(mutex_);
  return state_ == State::kStopped;
}

void Follower::Stop() {
  std::lock_guard lock(mutex_);
  state_ = State::kStopped;
}

std::string Follower::primary() const {
  std::lock_guard lock(mutex_);
  return primary_;
}

Task<Status> Follower::CheckFilesystem(const Judge::Known& known) {
  const std::string mine = copy_.filesystem();
  if (known.revision == 0 || mine == known.record.filesystem) co_return OkStatus();
  CO_ASSIGN_OR_RETURN(const bool empty, copy_.Empty());
  if (mine.empty() && !own_mdt_) co_return OkStatus();
  // It was about to form a filesystem, and another one has been first.
  if (empty) co_return co_await copy_.NoteFilesystem("");
  co_return absl::FailedPreconditionError(absl::StrFormat(
      "this MDT belongs to %s; the filesystem in the coordinator is %s. Give another prefix, or begin with "
      "an empty directory (nacre-mds --format --copy)",
      mine.empty() ? "no filesystem of several MDSes" : mine, known.record.filesystem));
}

Task<StatusOr<Judge::Known>> Follower::AwaitTurn() {
  std::string last_error;
  for (bool first = true; !stopped();) {
    const Duration promised = PromisedFor();
    if (!first && promised > Duration{0}) {
      co_await environment_.clock.Sleep(std::min(promised, options_.beacon));
      continue;
    }
    StatusOr<Judge::Known> known = co_await judge_.Read();
    if (known.ok()) {
      first = false;
      CO_RETURN_IF_ERROR(co_await CheckFilesystem(*known));
      const bool may_try = co_await MayTry(*known);
      if (may_try) known = co_await TakeOver(*known);
      if (may_try && known.ok() && known->revision != 0) co_return known;
    }
    std::string error(known.status().message());
    if (!known.ok() && error != last_error) LogWarning("coordinator: %s; trying again", error);
    last_error = std::move(error);
    co_await environment_.clock.Sleep(kLookAgain);
  }
  co_return absl::UnavailableError("this MDS is stopping");
}

Task<bool> Follower::MayTry(const Judge::Known& known) {
  const MdtRecord& record = known.record;
  if (known.revision == 0) co_return options_.may_form && !copy_.made_blank();
  {
    std::lock_guard lock(mutex_);
    if (record.epoch >= epoch_) {
      epoch_ = record.epoch;
      primary_ = record.primary;
    }
  }
  // A store that was replaced has nothing of what the record says that it has.
  if (!record.in_sync.contains(options_.name) || copy_.filesystem() != record.filesystem) co_return false;
  if (record.in_sync.size() == 1) co_return true;  // nobody else can be, whatever was promised
  if (PromisedFor() > Duration{0}) co_return false;
  if (!copy_.may_lack() || options_.accept_loss) co_return true;
  co_return co_await HasMost(record);
}

// Whether every other member of the set has answered, and may have lost changes too, but has no more left.
Task<bool> Follower::HasMost(const MdtRecord& record) {
  (void)co_await neighbours_.Refresh();
  const Position mine = copy_.position();
  for (const std::string& name : record.in_sync) {
    if (name == options_.name) continue;
    proto::CopyRequest request;
    request.set_filesystem(record.filesystem);
    request.set_from(options_.name);
    request.set_to(name);
    request.mutable_ask();
    auto reply = co_await neighbours_.Exchange(std::move(request), options_.answer);
    if (!reply.ok() || reply->status().error() != 0 || !reply->may_lack()) co_return false;
    const Position theirs = Position::Of(reply->position());
    if (theirs > mine || (theirs == mine && name < options_.name)) co_return false;
  }
  co_return true;
}

// The id of a new filesystem is in the store before it is in the coordinator, so whoever finds it there knows
// whether it is its own.
Task<StatusOr<MdtRecord>> Follower::AsPrimary(const Judge::Known& known) {
  MdtRecord to = known.record;
  if (known.revision == 0) {
    to.filesystem = copy_.filesystem();
    CO_ASSIGN_OR_RETURN(to.epoch, StoredEpoch(copy_.store()));
    if (to.filesystem.empty()) {
      Random& random = environment_.random;
      const uint64_t high = random.Next(), low = random.Next();
      to.filesystem = absl::StrFormat("%016x%016x", high, low);
      std::string filesystem = to.filesystem;
      CO_RETURN_IF_ERROR(co_await copy_.NoteFilesystem(std::move(filesystem)));
    }
  }
  ++to.epoch;
  to.primary = options_.name;
  to.in_sync = {options_.name};
  if (copy_.may_lack()) ++to.losses;
  co_return to;
}

Task<StatusOr<Judge::Known>> Follower::TakeOver(Judge::Known known) {
  {
    std::lock_guard lock(mutex_);
    const bool alone = known.record.in_sync.size() <= 1;
    if (state_ != State::kFollowing || (!alone && promised_until_ > environment_.clock.Now())) {
      co_return Judge::Known{};
    }
    state_ = State::kTrying;  // no promise is given from here on
  }
  AsyncMutex::Guard work = co_await work_.Lock();
  const StatusOr<MdtRecord> to = co_await AsPrimary(known);
  while (!stopped()) {
    StatusOr<Judge::Known> now = Judge::Known{};
    if (to.ok()) {
      now = co_await judge_.Change(known, *to);
    } else {
      now = to.status();
    }
    const bool taken = now.ok() && now->record == *to;
    if (!taken && absl::IsUnavailable(now.status())) {
      // It may be carried out yet: until it is known, this member neither promises nor applies anything.
      LogWarning("becoming primary: %s; trying again", now.status().message());
      co_await environment_.clock.Sleep(kLookAgain);
      continue;
    }
    std::lock_guard lock(mutex_);
    if (state_ == State::kTrying) state_ = taken ? State::kLeading : State::kFollowing;
    if (taken) epoch_ = to->epoch;
    if (taken) primary_ = options_.name;
    if (taken || !now.ok()) co_return now;
    co_return Judge::Known{};
  }
  co_return absl::UnavailableError("this MDS is stopping");
}

}  // namespace nacre::replication
