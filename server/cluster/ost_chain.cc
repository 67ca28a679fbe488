#include "server/cluster/ost_chain.h"

#include <cerrno>

#include "common/lease_time.h"

namespace nacre::cluster {
namespace {

using State = OstMember::State;

// A member that registers is answered, one way or the other, after so many heartbeats' time.
constexpr int kEntryHeartbeats = 10;
constexpr uint32_t kMaxEpoch = 1u << 31;  // that is believed

int Rank(State state) { return state == State::kInSync ? 0 : state == State::kJoining ? 1 : 2; }

OstMember* FindIn(OstRecord* record, std::string_view uuid) {
  auto it = std::ranges::find(record->members, uuid, &OstMember::uuid);
  return it == record->members.end() ? nullptr : &*it;
}

// Puts the members into their order again.
void Sort(OstRecord* record) {
  std::ranges::stable_sort(record->members, {}, [](const OstMember& member) { return Rank(member.state); });
}

proto::ChainMember ToChainMember(const OstMember& member) {
  proto::ChainMember out;
  out.set_uuid(member.uuid);
  out.set_address(member.address);
  out.set_instance(member.instance);
  return out;
}

}  // namespace

OstChain::OstChain(OstIndex index, Duration heartbeat, Duration now, OstRecord record)
    : index_(index), heartbeat_(heartbeat), began_(now) {
  Adopt(std::move(record));
}

void OstChain::Adopt(OstRecord record) {
  record_ = std::move(record);
  std::erase_if(presences_, [this](const auto& entry) { return record_.Find(entry.first) == nullptr; });
  for (const OstMember& member : record_.members) {
    auto [it, fresh] = presences_.try_emplace(member.uuid);
    if (!fresh) continue;
    it->second.heard = began_;
    it->second.info.set_index(index_);
    it->second.info.set_uuid(member.uuid);
    it->second.info.set_total_bytes(member.total_bytes);
  }
  if (record_.members.empty() || serving_ != record_.head().uuid) serving_.clear();
}

proto::Chain OstChain::Describe() const {
  proto::Chain chain;
  chain.set_epoch(record_.epoch);
  for (const OstMember& member : record_.members) {
    if (member.in_sync()) *chain.add_members() = ToChainMember(member);
    if (member.state == State::kJoining) *chain.add_joining() = ToChainMember(member);
  }
  return chain;
}

// --- who is what ---

const OstChain::Presence& OstChain::At(const OstMember& member) const { return presences_.at(member.uuid); }

uint64_t OstChain::ProcessOf(const OstMember& member) const {
  const uint64_t instance = At(member).instance;
  return instance != 0 ? instance : member.instance;
}

bool OstChain::Restarted(const OstMember& member) const { return ProcessOf(member) != member.instance; }

bool OstChain::HasEnded(const OstMember& member) const {
  return At(member).ended != 0 && At(member).ended == ProcessOf(member);
}

bool OstChain::Sound(const OstMember& member) const {
  return member.in_sync() && At(member).up() && At(member).instance == member.instance;
}

bool OstChain::OtherSound(std::string_view uuid) const {
  return std::ranges::any_of(record_.members,
                             [&](const OstMember& member) { return member.uuid != uuid && Sound(member); });
}

Duration OstChain::ServesUntil(const OstMember& member) const {
  const Presence& presence = At(member);
  if (Restarted(member)) return presence.registered;
  return HasEnded(member) ? presence.ended_at : presence.heard + WithDrift(ChainLease(heartbeat_));
}

// Members that die together are not missed together, and the one that was heard last must not take the others
// with it: it may never come back, and they have everything.
bool OstChain::Outlived(const OstMember& member) const {
  return std::ranges::any_of(record_.members, [&](const OstMember& other) {
    return other.uuid != member.uuid && Sound(other) && At(other).seen >= ServesUntil(member);
  });
}

bool OstChain::Undecided(const OstMember& member) const { return member.in_sync() && Restarted(member); }

bool OstChain::Deposes(const OstMember& member) const {
  return member.in_sync() && At(member).failing && OtherSound(member.uuid);
}

OstChain::Hearer OstChain::HearerOf(const OstMember& member) const {
  return {member.uuid, member.address, At(member).instance};
}

// --- the members' reports ---

Status OstChain::CheckCopies(const proto::OstInfo& info) const {
  const uint32_t copies = std::max(info.copies(), 1u);
  if (copies > kMaxCopies) {
    return ErrnoError(EINVAL, absl::StrFormat("OST %d is to have %d copies: at most %d are possible", index_,
                                              copies, kMaxCopies));
  }
  if (copies > 1 || record_.copies == 1) return OkStatus();
  return ErrnoError(EINVAL,
                    absl::StrFormat("OST %d has %d copies, %s (%s) comes with one: correct its configuration",
                                    index_, record_.copies, info.uuid(), info.directory()));
}

Status OstChain::CheckPlace(const Arrival& arrival, const OstMember* replaced) const {
  for (const OstMember& member : record_.members) {
    if (&member == replaced || member.uuid == arrival.info.uuid() || member.address != arrival.address)
      continue;
    return ErrnoError(
        EINVAL, absl::StrFormat("the members %s and %s of OST %d are both at %s: one server that dies must "
                                "not take both; put them on different ones",
                                member.uuid, arrival.info.uuid(), index_, arrival.address));
  }
  return OkStatus();
}

// The member whose place a new one takes; null: there is room for one more.
StatusOr<const OstMember*> OstChain::ToReplace(const Arrival& arrival) const {
  const bool full = record_.members.size() >= std::max(record_.copies, arrival.info.copies());
  const OstMember* gone = nullptr;
  bool undecided = false;
  for (const OstMember& member : record_.members) {
    const bool here = member.address == arrival.address;
    if (At(member).up() || (!full && !here)) continue;
    undecided |= member.in_sync();
    if (!member.in_sync() && (gone == nullptr || here)) gone = &member;
  }
  const bool empty = arrival.info.objects() == 0;
  if (gone != nullptr && empty) return gone;
  if (!full) return nullptr;
  if (undecided && empty && record_.members.size() > 1) {
    return ErrnoError(EAGAIN,
                      absl::StrFormat("OST %d has its %d members, and whether one of them has to be "
                                      "replaced by %s (%s) is not decided yet",
                                      index_, record_.copies, arrival.info.uuid(), arrival.info.directory()));
  }
  return ErrnoError(EEXIST,
                    absl::StrFormat("OST index %d belongs to its %d members for ever, %s (%s) cannot "
                                    "have it: give the new OST an index of its own, or let it be "
                                    "empty while one that it is to replace is away",
                                    index_, record_.copies, arrival.info.uuid(), arrival.info.directory()));
}

StatusOr<OstRecord> OstChain::WithMember(const Arrival& arrival) const {
  RETURN_IF_ERROR(CheckCopies(arrival.info));
  OstRecord next = record_;
  next.copies = std::max(next.copies, std::max(arrival.info.copies(), 1u));
  next.epoch = std::max(next.epoch, 1u);
  OstMember member{arrival.info.uuid(), arrival.address, arrival.info.total_bytes(), arrival.instance,
                   State::kAway};
  if (OstMember* known = FindIn(&next, member.uuid)) {
    RETURN_IF_ERROR(CheckPlace(arrival, nullptr));
    const bool moved = known->address != member.address && known->state != State::kAway;
    if (moved && known->instance == member.instance) ++next.epoch;  // the others have to hear of it
    known->address = member.address;
    known->total_bytes = member.total_bytes;
    return next;
  }
  if (next.members.empty()) {
    member.state = State::kInSync;
    next.members.push_back(std::move(member));
    return next;
  }
  ASSIGN_OR_RETURN(const OstMember* replaced, ToReplace(arrival));
  RETURN_IF_ERROR(CheckPlace(arrival, replaced));
  if (replaced != nullptr) {
    if (replaced->state == State::kJoining) ++next.epoch;
    std::erase_if(next.members, [&](const OstMember& other) { return other.uuid == replaced->uuid; });
  }
  next.members.push_back(std::move(member));
  return next;
}

void OstChain::Registered(const Arrival& arrival, Duration now) {
  const OstMember& member = *record_.Find(arrival.info.uuid());
  Presence& presence = presences_.at(member.uuid);
  const bool goes_on = presence.up() && presence.instance == arrival.instance && !arrival.info.failing();
  presence.info = arrival.info;
  presence.failing = arrival.info.failing();
  presence.instance = arrival.instance;
  presence.registered = presence.seen = now;
  presence.answered = false;
  if (goes_on) return;
  presence.here = arrival.instance != presence.ended;  // else it was sent before that
  presence.told = 0;
  presence.placed = false;
  presence.unanswered = 0;
  if (serving_ == member.uuid) serving_.clear();
}

void OstChain::Answered(std::string_view uuid, Duration now) {
  auto it = presences_.find(uuid);
  if (it == presences_.end() || EntryOf(uuid) != Entry::kDone) return;
  it->second.heard = now;
  it->second.answered = true;
}

bool OstChain::Beat(const Arrival& arrival, Duration now) {
  const OstMember* member = record_.Find(arrival.info.uuid());
  if (member == nullptr || member->address != arrival.address) return false;
  Presence& presence = presences_.at(member->uuid);
  if (!presence.here || presence.instance != arrival.instance) return false;
  if (presence.failing && !arrival.info.failing()) return false;
  presence.seen = now;
  presence.info = arrival.info;
  presence.failing = arrival.info.failing();
  if (Deposes(*member)) {
    Down(member->uuid);
    return false;
  }
  if (EntryOf(member->uuid) != Entry::kDone) return false;
  presence.heard = now;
  presence.answered = true;
  // It has been told, and says that it has not heard: it is told again.
  if (arrival.info.chain_epoch() < record_.epoch && presence.told == record_.epoch)
    presence.told = arrival.info.chain_epoch();
  return true;
}

bool OstChain::Ended(uint64_t instance, Duration now) {
  for (const OstMember& member : record_.members) {
    Presence& presence = presences_.at(member.uuid);
    if (ProcessOf(member) != instance || presence.ended == instance) continue;
    presence.ended = instance;
    presence.ended_at = now;
    Down(member.uuid);
    return true;
  }
  return false;
}

StatusOr<std::optional<OstRecord>> OstChain::Report(const proto::ReportChainRequest& report) const {
  const OstMember* reporter = record_.Find(report.reporter());
  const OstMember* lost = record_.Find(report.lost());
  const OstMember* joined = record_.Find(report.joined());
  const bool gives_up = !report.lost().empty() && report.lost() == report.reporter();
  if (gives_up && reporter != nullptr && !reporter->in_sync()) return std::nullopt;
  // A report of a process that has ended meanwhile does not say what its successor knows.
  if (reporter == nullptr || reporter != &record_.head() || Undecided(*reporter)) {
    return ErrnoError(ESTALE, absl::StrFormat("%s is not the head of OST %d in epoch %d", report.reporter(),
                                              index_, record_.epoch));
  }
  const bool is_lost = report.lost().empty() || lost == nullptr || lost->state == State::kAway;
  const bool has_joined = report.joined().empty() || (joined != nullptr && joined->in_sync());
  if (is_lost && has_joined) return std::nullopt;
  // It has not heard of this epoch yet, and looks again when it has. Its own place it gives up in any.
  if (report.epoch() != record_.epoch && !gives_up) return std::nullopt;
  if (gives_up && !OtherSound(reporter->uuid)) {
    return ErrnoError(EBUSY, absl::StrFormat("%s stays the head of OST %d: no other member that is in sync "
                                             "is up",
                                             report.reporter(), index_));
  }
  OstRecord next = record_;
  if (!is_lost) FindIn(&next, report.lost())->state = State::kAway;
  if (!has_joined) {
    if (joined == nullptr || joined->state != State::kJoining || Restarted(*joined)) {
      return ErrnoError(ESTALE, absl::StrFormat("%s does not join OST %d in epoch %d", report.joined(),
                                                index_, record_.epoch));
    }
    FindIn(&next, report.joined())->state = State::kInSync;
  }
  Sort(&next);
  ++next.epoch;
  return next;
}

void OstChain::NoteSpace(uint64_t instance, const proto::StatfsOstReply& space) {
  if (record_.members.empty()) return;
  Presence& presence = presences_.at(record_.head().uuid);
  if (presence.instance != instance) return;  // the last heartbeat's figures stay
  presence.info.set_total_bytes(space.total_bytes());
  presence.info.set_available_bytes(space.available_bytes());
  presence.info.set_objects(space.objects());
}

// --- time ---

bool OstChain::CheckSilent(Duration now) {
  bool any = false;
  for (const OstMember& member : record_.members) {
    const Presence& presence = At(member);
    // A member that waits for the answer to its registration sends no heartbeats.
    const Duration until = presence.answered ? presence.heard + ChainSilence(heartbeat_)
                                             : presence.registered + kEntryHeartbeats * heartbeat_;
    if (!presence.here || now < until) continue;
    Down(member.uuid);
    any = true;
  }
  return any;
}

void OstChain::ChangeInSync(Duration now, OstRecord* next) const {
  const bool sound = std::ranges::any_of(record_.members, [this](auto& member) { return Sound(member); });
  if (sound) {
    for (OstMember& member : next->members) {
      if (member.in_sync() && !Sound(member) && now >= ServesUntil(member) && Outlived(member))
        member.state = State::kAway;
    }
    return;
  }
  auto alone = std::ranges::find_if(next->members,
                                    [this](auto& member) { return Undecided(member) && At(member).up(); });
  if (alone == next->members.end()) return;
  for (const OstMember& member : record_.members) {
    if (member.in_sync() && now < ServesUntil(member)) return;
  }
  for (OstMember& member : next->members) {
    if (member.in_sync() && &member != &*alone) member.state = State::kAway;
  }
  alone->instance = At(*alone).instance;
}

void OstChain::ChangeOthers(Duration now, OstRecord* next) const {
  const bool has_head = std::ranges::any_of(next->members, [this](const OstMember& member) {
    return member.in_sync() && At(member).up() && At(member).instance == member.instance;
  });
  for (OstMember& member : next->members) {
    if (member.in_sync()) continue;
    const Presence& presence = At(member);
    const bool silent =
        HasEnded(member) || (!presence.up() && now >= presence.heard + ChainSilence(heartbeat_));
    if (member.state == State::kJoining && (Restarted(member) || silent || (presence.failing && has_head)))
      member.state = State::kAway;
    if (member.state == State::kAway && presence.up() && has_head) {
      member.state = State::kJoining;
      member.instance = presence.instance;
    }
  }
}

std::optional<OstRecord> OstChain::Due(Duration now) const {
  OstRecord next = record_;
  ChangeInSync(now, &next);
  ChangeOthers(now, &next);
  Sort(&next);
  // An MDT that is older than the chain is (restored from a backup): nobody would believe its epochs.
  for (const OstMember& member : record_.members) {
    const uint32_t known = At(member).here ? At(member).info.chain_epoch() : 0;
    if (known < kMaxEpoch) next.epoch = std::max(next.epoch, known);
  }
  if (next == record_) return std::nullopt;
  ++next.epoch;
  return next;
}

std::optional<Duration> OstChain::NextLook(Duration now) const {
  std::optional<Duration> left;
  auto consider = [&](Duration at) {
    if (at > now) left = std::min(left.value_or(at - now), at - now);
  };
  for (const OstMember& member : record_.members) {
    consider(At(member).heard + ChainSilence(heartbeat_));
    consider(At(member).heard + WithDrift(ChainLease(heartbeat_)));
    consider(At(member).registered + kEntryHeartbeats * heartbeat_);
  }
  return left;
}

Duration OstChain::ServesUntil() const {
  Duration until{0};
  for (const OstMember& member : record_.members)
    if (member.in_sync()) until = std::max(until, ServesUntil(member));
  return until;
}

// --- telling ---

std::vector<OstChain::Hearer> OstChain::BehindToTell() const {
  std::vector<Hearer> hearers;
  for (const OstMember& member : record_.members) {
    if (&member == &record_.head() || !At(member).here || At(member).told == record_.epoch) continue;
    if (!Undecided(member) && !Deposes(member)) hearers.push_back(HearerOf(member));
  }
  return hearers;
}

std::optional<OstChain::Hearer> OstChain::HeadToTell() const {
  if (record_.members.empty()) return std::nullopt;
  const OstMember& head = record_.head();
  if (!At(head).here || Undecided(head) || Deposes(head)) return std::nullopt;
  if (At(head).told == record_.epoch && serving_ == head.uuid) return std::nullopt;
  if (!BehindToTell().empty()) return std::nullopt;
  return HearerOf(head);
}

bool OstChain::Knows(const Hearer& hearer, uint32_t epoch) const {
  auto it = presences_.find(hearer.uuid);
  return it != presences_.end() && it->second.instance == hearer.instance && it->second.told == epoch;
}

void OstChain::Told(const Hearer& hearer, uint32_t epoch) {
  auto it = presences_.find(hearer.uuid);
  if (it == presences_.end() || it->second.instance != hearer.instance || !it->second.here) return;
  it->second.told = std::max(it->second.told, epoch);
  if (epoch == record_.epoch && hearer.uuid != record_.head().uuid) it->second.placed = true;
  it->second.unanswered = 0;
}

bool OstChain::NotTold(const Hearer& hearer) {
  auto it = presences_.find(hearer.uuid);
  if (it == presences_.end() || it->second.instance != hearer.instance || !it->second.here) return false;
  if (++it->second.unanswered < 2) return false;
  Down(hearer.uuid);
  return true;
}

void OstChain::Down(std::string_view uuid) {
  auto it = presences_.find(uuid);
  if (it == presences_.end()) return;
  it->second.here = it->second.placed = false;
  it->second.told = 0;
  if (serving_ == uuid) serving_.clear();
}

bool OstChain::Serve(const Hearer& hearer) {
  if (record_.members.empty()) return false;
  const OstMember& head = record_.head();
  if (HearerOf(head) != hearer || !At(head).here || Undecided(head) || Deposes(head)) return false;
  serving_ = head.uuid;
  presences_.at(head.uuid).placed = true;
  return true;
}

OstChain::Entry OstChain::EntryOf(std::string_view uuid) const {
  const OstMember* member = record_.Find(uuid);
  if (member == nullptr || !At(*member).here) return Entry::kFailed;
  if (Undecided(*member)) return Entry::kDone;  // a new process: it knows no chain that it could be head of
  if (Deposes(*member)) return Entry::kPending;
  return At(*member).placed ? Entry::kDone : Entry::kPending;
}

// --- what others see ---

bool OstChain::up() const { return !serving_.empty() && At(record_.head()).up(); }

uint64_t OstChain::instance() const { return record_.members.empty() ? 0 : At(record_.head()).instance; }

proto::OstInfo OstChain::Info() const {
  proto::OstInfo info = At(record_.head()).info;
  for (const OstMember& member : record_.members) {
    if (!member.in_sync()) continue;
    const proto::OstInfo& other = At(member).info;
    info.set_total_bytes(std::min(info.total_bytes(), other.total_bytes()));
    if (At(member).instance != 0)
      info.set_available_bytes(std::min(info.available_bytes(), other.available_bytes()));
  }
  info.set_copies(record_.copies);
  info.set_chain_epoch(record_.epoch);
  return info;
}

void OstChain::Fill(Duration now, proto::OstState* state) const {
  auto silence = [now](const Presence& presence) {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::seconds>(now - presence.heard).count());
  };
  *state->mutable_info() = Info();
  state->set_address(record_.head().address);
  state->set_up(up());
  state->set_instance(instance());
  state->set_seconds_since_heartbeat(silence(At(record_.head())));
  state->set_chain_epoch(record_.epoch);
  for (const OstMember& member : record_.members) {
    proto::MemberState* out = state->add_members();
    *out->mutable_info() = At(member).info;
    out->set_address(member.address);
    out->set_up(At(member).up());
    out->set_in_sync(member.in_sync());
    out->set_joining(member.state == State::kJoining);
    out->set_seconds_since_heartbeat(silence(At(member)));
  }
}

}  // namespace nacre::cluster
