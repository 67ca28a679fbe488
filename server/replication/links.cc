// The primary's tasks for each other member.
#include <absl/strings/str_format.h>

#include <optional>

#include "common/log.h"
#include "rpc/convert.h"
#include "server/replication/primary.h"

namespace nacre::replication {
namespace {

constexpr Duration kLookForOthersAgain = 1s;  // where the members are
constexpr Duration kCoordinatorPatience = 10s;
constexpr Duration kMostTime = 10s;  // for one request to a member that is being brought back
constexpr Duration kTellAgain = 50ms;
constexpr uint64_t kSentTogether = 1 << 20;  // bytes of changes in one request, if there are as many
constexpr int kLastSends = 8;                // while commits wait

}  // namespace

Task<void> Primary::LookForOthers(std::shared_ptr<Primary> self) {
  while (!self->in_sync_->ended()) {
    self->NoteCoordinator(co_await self->neighbours_.Refresh());  // who is known stays known
    co_await self->in_sync_->Settle();
    for (const std::string& name : self->neighbours_.names()) {
      LinkPtr link;
      {
        std::lock_guard lock(self->mutex_);
        LinkPtr& known = self->links_[name];
        if (known != nullptr) continue;
        known = link = std::make_shared<Link>(name);
        link->answered = self->clock_.Now();
      }
      Spawn(self->executor_, AskForPromises(self, link));
      Spawn(self->executor_, BringBack(self, link));
    }
    co_await self->clock_.Sleep(kLookForOthersAgain);
  }
}

// A primary serves on without the coordinator, so nobody would notice before the next failure, when it is
// needed.
void Primary::NoteCoordinator(const Status& answer) {
  std::lock_guard lock(mutex_);
  const Duration now = clock_.Now();
  if (answer.ok()) {
    if (!coordinator_silent_.ok()) LogInfo("the coordinator answers again");
    coordinator_heard_ = now;
    coordinator_silent_ = OkStatus();
    return;
  }
  if (now - coordinator_heard_ < kCoordinatorPatience) return;
  if (coordinator_silent_.ok())
    LogError("the coordinator is silent: no other MDS could take this one's place: %s", answer.message());
  coordinator_silent_ = answer;
}

std::string Primary::Problem() const {
  std::lock_guard lock(mutex_);
  if (coordinator_silent_.ok()) return "";
  return absl::StrFormat(
      "etcd has not answered the primary MDS for %d s, and without it no other MDS can take its place: %s",
      (clock_.Now() - coordinator_heard_) / 1s, std::string(coordinator_silent_.message()));
}

void Primary::SetState(const LinkPtr& link, std::string state) {
  std::lock_guard lock(mutex_);
  link->state = std::move(state);
}

// --- promises ---

Task<void> Primary::AskForPromises(std::shared_ptr<Primary> self, LinkPtr link) {
  while (!self->in_sync_->ended()) {
    const Duration begin = self->clock_.Now();
    co_await self->AskForPromise(link);
    const Duration took = self->clock_.Now() - begin;
    if (took < self->options_.beacon) co_await self->clock_.Sleep(self->options_.beacon - took);
  }
}

Task<void> Primary::AskForPromise(LinkPtr link) {
  const bool counts = in_sync_->Contains(link->name);
  proto::CopyRequest request = NewRequest(link->name);
  request.mutable_beacon()->set_in_sync(counts);
  request.mutable_beacon()->set_promise_ms(
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(options_.promise).count()));
  const Position acknowledged = copy_.position();
  const Duration sent = clock_.Now();
  auto reply = co_await neighbours_.Exchange(std::move(request), options_.answer);
  const Status promised = Check(reply);
  if (in_sync_->ended()) co_return;
  const Duration now = clock_.Now();
  bool silent = false;
  {
    std::lock_guard lock(mutex_);
    if (promised.ok()) {
      link->answered = now;
      link->position = Position::Of(reply->position());
    } else if (!counts) {
      link->state = absl::StrCat("away: ", promised.message());
    }
    silent = now - link->answered >= options_.answer;
  }
  if (promised.ok()) in_sync_->Promised(link->name, sent + options_.promise);
  if (!counts) co_return;
  std::string why;
  if (promised.ok()) {
    const Position position = Position::Of(reply->position());
    if (position < acknowledged) {
      why = "it has less than it had";
    } else if (reply->may_lack()) {
      const Status noted = co_await SayWhole(link->name, reply->instance(), options_.answer);
      if (!noted.ok())
        why = absl::StrCat("it has lost power, and does not note what it has: ", noted.message());
    }
  }
  if (!promised.ok() && silent) why = absl::StrCat("it does not answer: ", promised.message());
  if (!why.empty()) co_await in_sync_->TryRemove(link->name, std::move(why));
}

// The member has everything that this primary has acknowledged: it notes that, as long as its process is the
// one that said what it has. Until then a member that has lost power does not know whether it lacks anything,
// and would tell of a loss if it became primary.
Task<Status> Primary::SayWhole(const std::string& name, uint64_t instance, Duration timeout) {
  proto::CopyRequest whole = NewRequest(name);
  whole.mutable_sync()->set_whole(true);
  whole.mutable_sync()->set_instance(instance);
  co_return co_await Tell(std::move(whole), timeout);
}

// --- coming back ---

Task<void> Primary::BringBack(std::shared_ptr<Primary> self, LinkPtr link) {
  std::string last_error;
  while (!self->in_sync_->ended()) {
    if (!self->in_sync_->Contains(link->name) && self->in_sync_->HasPromise(link->name)) {
      const Status joined = co_await self->Join(link);
      std::string error(joined.message());
      if (!joined.ok()) self->SetState(link, absl::StrCat("not in sync: ", error));
      if (!joined.ok() && error != last_error) {
        LogWarning("the MDS %s could not be brought into sync: %s", link->name, error);
      }
      last_error = std::move(error);
    }
    co_await self->clock_.Sleep(self->options_.beacon);
  }
}

// Sends until the member has done it, or the time is over.
Task<Status> Primary::Tell(proto::CopyRequest request, Duration timeout) {
  const Duration begin = clock_.Now();
  while (true) {
    proto::CopyRequest attempt = request;
    Status done = Check(co_await neighbours_.Exchange(std::move(attempt), timeout));
    if (done.ok() || in_sync_->ended() || !IsRetryable(done)) co_return done;
    if (clock_.Now() - begin > timeout) co_return done;
    co_await clock_.Sleep(kTellAgain);
  }
}

Task<Status> Primary::Join(LinkPtr link) {
  proto::CopyRequest ask = NewRequest(link->name);
  ask.mutable_ask();
  auto reply = co_await neighbours_.Exchange(std::move(ask), options_.answer);
  CO_RETURN_IF_ERROR(Check(reply));
  const uint64_t instance = reply->instance();
  Position position = Position::Of(reply->position());
  const Position mine = copy_.position();
  const Position epochless{mine.epoch, position.sequence};
  if (options_.plant_epochless && copy_.log().After(epochless) != nullptr) position = epochless;
  const bool on_history = copy_.history().Contains(position, mine);
  std::optional<GroupLog::Hold> hold;
  if (!on_history || (position != mine && copy_.log().After(position) == nullptr)) {
    LogInfo("the MDS %s gets the whole MDT: it has %s, this one %s", link->name, position.ToString(),
            mine.ToString());
    hold.emplace(copy_.log());
    CO_ASSIGN_OR_RETURN(position, co_await CopyAll(link, position));
  }
  SetState(link, "catching up");
  CO_ASSIGN_OR_RETURN(position, co_await CatchUp(link, position));
  CO_RETURN_IF_ERROR(co_await SayWhole(link->name, instance, kMostTime));
  CO_ASSIGN_OR_RETURN(position, co_await CatchUp(link, position));
  std::optional<Pause> pause = co_await AwaitPause();
  for (int sent = 0; position != copy_.position(); ++sent) {
    GroupPtr group = copy_.log().After(position, kSentTogether);
    if (group == nullptr || sent == kLastSends) {
      co_return absl::UnavailableError("more has changed meanwhile than could be sent");
    }
    proto::CopyRequest apply = NewRequest(link->name);
    *apply.mutable_apply() = MessageOf(*group);
    CO_RETURN_IF_ERROR(Check(co_await neighbours_.Exchange(std::move(apply), options_.answer)));
    position = group->position;
  }
  if (!in_sync_->HasPromise(link->name)) co_return absl::UnavailableError("it does not answer any more");
  in_sync_->Count(link->name);
  pause.reset();
  co_await in_sync_->Add(link->name);
  co_return OkStatus();
}

// Sends what the member lacks, until it lacks no more than was changed during the last request: under
// constant load it never has everything. Returns what it has then.
Task<StatusOr<Position>> Primary::CatchUp(LinkPtr link, Position position) {
  while (position != copy_.position()) {
    const Position before = copy_.position();
    GroupPtr group = copy_.log().After(position, kSentTogether);
    if (group == nullptr) co_return absl::UnavailableError("more has changed meanwhile than is kept");
    proto::CopyRequest apply = NewRequest(link->name);
    *apply.mutable_apply() = MessageOf(*group);
    CO_RETURN_IF_ERROR(co_await Tell(std::move(apply), kMostTime));
    position = group->position;
    if (position >= before) break;
  }
  co_return position;
}

// Sends the whole store as it is now. Returns the position that the member has then.
Task<StatusOr<Position>> Primary::CopyAll(LinkPtr link, Position instead_of) {
  CO_ASSIGN_OR_RETURN(std::unique_ptr<StoreParts> parts,
                      StoreParts::Take(copy_.store(), random_.Next(), instead_of));
  uint64_t sent = 0;
  for (bool last = false; !last;) {
    CO_ASSIGN_OR_RETURN(proto::InstallPart part, parts->Next());
    last = part.last();
    sent += part.ByteSizeLong();
    proto::CopyRequest request = NewRequest(link->name);
    *request.mutable_install() = std::move(part);
    CO_RETURN_IF_ERROR(co_await Tell(std::move(request), kMostTime));
    SetState(link, absl::StrFormat("copying, %d MiB so far", sent >> 20));
  }
  co_return parts->position();
}

}  // namespace nacre::replication
