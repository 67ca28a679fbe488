// Tells the members of an OST of its chain: those behind the head, then the head (chain_keeper.h).
#include "common/log.h"
#include "server/cluster/chain_keeper.h"

namespace nacre::cluster {
namespace {

constexpr size_t kFencesAtOnce = 4096;

}  // namespace

Task<Status> ChainKeeper::Call(const std::string& address, proto::ObjectRequest request) {
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectStub> stub, StubTo(address));
  std::vector<MemorySpan> none;
  auto reply = co_await stub->Call(std::move(request), CallMemory::kNone, std::move(none));
  co_return reply.status();
}

void ChainKeeper::NoteNotTold(const GroupPtr& group, const Hearer& hearer, const Status& why) {
  bool down = false;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    down = group->chain.NotTold(hearer);
    if (down) WakeWaiters(group.get());
  }
  LogWarning("member %s of OST %d at %s could not be told of its chain%s: %s", hearer.uuid, group->index,
             hearer.address, down ? " and is down" : "", std::string(why.message()));
  if (down) owner_.Changed();
}

Task<bool> ChainKeeper::Tell(GroupPtr group, Hearer hearer) {
  proto::ObjectRequest request;
  request.set_ost(group->index);
  uint32_t epoch = 0;
  {
    std::lock_guard lock(mutex_);
    *request.mutable_set_chain()->mutable_chain() = group->chain.Describe();
    epoch = group->chain.record().epoch;
  }
  request.mutable_set_chain()->set_member(hearer.uuid);
  Status told = co_await Call(hearer.address, std::move(request));
  if (!told.ok()) {
    NoteNotTold(group, hearer, told);
    co_return false;
  }
  std::lock_guard lock(mutex_);
  group->chain.Told(hearer, epoch);
  WakeWaiters(group.get());
  co_return group->chain.Knows(hearer, group->chain.record().epoch);
}

Task<bool> ChainKeeper::TellBehind(GroupPtr group) {
  std::vector<Hearer> hearers;
  {
    std::lock_guard lock(mutex_);
    hearers = group->chain.BehindToTell();
  }
  std::vector<Task<Unit>> tellings;
  for (Hearer& hearer : hearers) {
    tellings.push_back([](ChainKeeper* keeper, GroupPtr group, Hearer hearer) -> Task<Unit> {
      co_await keeper->Tell(group, hearer);
      co_return Unit{};
    }(this, group, std::move(hearer)));
  }
  co_await WhenAll(std::move(tellings));
  std::lock_guard lock(mutex_);
  co_return group->chain.BehindToTell().empty();
}

Task<Status> ChainKeeper::TellFences(OstIndex index, Hearer head) {
  CO_ASSIGN_OR_RETURN(std::vector<SessionId> sessions, owner_.MissedFences(index));
  for (size_t i = 0; i < sessions.size(); i += kFencesAtOnce) {
    proto::ObjectRequest request;
    request.set_ost(index);
    request.mutable_fence()->set_session(sessions[i]);
    for (size_t n = i + 1; n < std::min(i + kFencesAtOnce, sessions.size()); ++n)
      request.mutable_fence()->add_more(sessions[n]);
    CO_RETURN_IF_ERROR(co_await Call(head.address, std::move(request)));
  }
  co_return OkStatus();
}

Task<bool> ChainKeeper::Admit(GroupPtr group, Hearer head) {
  Status fenced = co_await TellFences(group->index, head);
  if (!fenced.ok()) {
    NoteNotTold(group, head, fenced);
    co_return false;
  }
  const bool told = co_await Tell(group, head);
  if (!told || IsOver(*group)) co_return false;
  auto peer = owner_.Connect(head.address);
  if (!peer.ok()) co_return false;
  owner_.PointTo(group->index, *peer);
  while (!IsOver(*group)) {
    const uint64_t fences = owner_.fences();
    Status admitted = co_await owner_.AdmitHead(group->index);
    if (!admitted.ok()) {
      if (!IsOver(*group)) {
        LogWarning("OST %d, whose head is %s at %s, is not in service yet: %s", group->index, head.uuid,
                   head.address, std::string(admitted.message()));
      }
      co_return false;
    }
    bool serves = false;
    const bool current = owner_.IfNoFenceSince(fences, [&] {
      std::lock_guard lock(mutex_);
      serves = group->chain.Serve(head);
      WakeWaiters(group.get());
    });
    if (!current) continue;
    owner_.Changed();
    LogInfo("OST %d is up: its head is %s at %s", group->index, head.uuid, head.address);
    co_return serves;
  }
  co_return false;
}

Task<bool> ChainKeeper::TellHead(GroupPtr group) {
  std::optional<Hearer> head;
  bool serves = false;
  {
    std::lock_guard lock(mutex_);
    head = group->chain.HeadToTell();
    serves = group->chain.serving();
  }
  if (!head.has_value()) co_return true;
  if (serves) co_return co_await Tell(group, *std::move(head));
  co_return co_await Admit(group, *std::move(head));
}

}  // namespace nacre::cluster
