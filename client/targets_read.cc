// Reads from members of an OST that are not its head (docs/decisions/0076-reads-from-any-member.md).
//
// The member is asked for the bytes, and the head, at the same time, for the version of each object: a change
// gives an object a version that it never had, and the same version of an object has the same bytes in every
// member. So the bytes are what the head would have answered if both name the same version, whoever the
// member believes that it is. If they do not, the head is asked for the bytes.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "client/targets.h"
#include "common/coroutine.h"
#include "common/log.h"
#include "common/metrics.h"
#include "rpc/convert.h"

namespace nacre::client {
namespace {

using Outcome = MemberChoice::Outcome;

// For a member's answer. One that the map knows to be away is not waited for; this is for one that has the
// time of day for the MGS and none for this client. Its connection goes with it.
constexpr Duration kMemberPatience = std::chrono::seconds(10);

Duration PatienceWith(const CancellationPtr& cancellation, Duration now) {
  if (cancellation == nullptr) return kMemberPatience;
  return std::clamp<Duration>(cancellation->deadline() - now, std::chrono::milliseconds(1), kMemberPatience);
}

bool AreSame(const proto::ObjectVersion& a, const proto::ObjectVersion& b) {
  return a.epoch() == b.epoch() && a.changes() == b.changes();
}

// Judges a member's answer, whatever version it is of.
Outcome Judge(const StatusOr<proto::ObjectReply>& reply, int ranges) {
  if (ToErrno(reply.status()) == EAGAIN) return Outcome::kChanged;
  if (!reply.ok() || reply->read().ranges_size() != ranges) return Outcome::kFailed;
  for (const proto::ReadRangeResult& range : reply->read().ranges()) {
    if (range.status().error() != 0) return Outcome::kChanged;  // or bad there, and being repaired
    if (!range.has_version()) return Outcome::kFailed;          // of before there were any
  }
  return Outcome::kAnswered;
}

bool HasVersions(const proto::ReadObjectsReply& read, const proto::VersionsOfReply& head) {
  if (read.ranges_size() != head.versions_size()) return false;
  for (int i = 0; i < read.ranges_size(); ++i) {
    if (!AreSame(read.ranges(i).version(), head.versions(i))) return false;
  }
  return true;
}

}  // namespace

// One read, from the choice of a member for it until that one, or the head, has answered.
struct Targets::ReadTurn {
  ReadTurn(Targets* targets, const proto::ObjectRequest& request) : targets(targets), ost(request.ost()) {
    for (const proto::ObjectRange& range : request.read().ranges()) bytes += range.length();
    if (request.read().ranges_size() == 0) return;
    const proto::ObjectRange& first = request.read().ranges(0);
    place = {FromProto(first.object()), first.offset()};
  }
  ~ReadTurn() { End(); }
  ReadTurn(const ReadTurn&) = delete;

  void End() {
    if (std::exchange(begun, false)) targets->EndRead(*this);
  }

  Targets* const targets;
  const OstIndex ost;
  uint64_t bytes = 0;
  MemberChoice::Place place;
  bool begun = false;
  std::string member;  // empty: the head
  Outcome outcome = Outcome::kAnswered;
};

void Targets::SetMembers(const proto::OstState& ost, Target* target) {
  std::vector<std::string> others;
  for (const proto::MemberState& member : ost.members()) {
    if (member.in_sync() && member.up() && member.address() != ost.address())
      others.push_back(member.address());
  }
  target->choice.Set(others);
  std::erase_if(target->members, [&](const auto& known) {
    if (std::ranges::find(others, known.first) != others.end()) return false;
    known.second->End(ErrnoError(ECONNRESET, "it is no member in sync any more"));
    return true;
  });
}

// Null: the head is to be asked.
std::shared_ptr<ObjectStub> Targets::BeginRead(uint64_t epoch, ReadTurn* turn) {
  const Duration now = clock_.Now();
  std::lock_guard lock(mutex_);
  auto found = targets_.find(turn->ost);
  if (closed_ || epoch != epoch_ || session_ == 0 || found == targets_.end()) return nullptr;
  Target& target = found->second;
  if (target.choice.empty() || turn->bytes < reads_.from) return nullptr;
  turn->begun = true;
  turn->member = target.choice.Begin(turn->place, turn->bytes, now);
  if (turn->member.empty()) return nullptr;
  std::shared_ptr<ObjectStub>& stub = target.members[turn->member];
  if (stub != nullptr) return stub;
  auto peer = PeerOf(turn->member);
  if (!peer.ok()) {
    LogDebug("member %s of OST %d: %s", turn->member, turn->ost, std::string(peer.status().message()));
    turn->outcome = Outcome::kFailed;
    target.members.erase(turn->member);
    return nullptr;
  }
  stub = std::make_shared<ObjectStub>(*std::move(peer), clock_, session_, sequences_, policy_);
  return stub;
}

void Targets::EndRead(const ReadTurn& turn) {
  const Duration now = clock_.Now();
  std::lock_guard lock(mutex_);
  auto found = targets_.find(turn.ost);
  if (found != targets_.end())
    found->second.choice.End(turn.member, turn.place, turn.bytes, turn.outcome, now);
}

Task<StatusOr<proto::ObjectReply>> Targets::Read(uint64_t epoch, proto::ObjectRequest request,
                                                 std::vector<MemorySpan> memory, CancellationPtr cancellation,
                                                 BlockSumsPtr sums) {
  ReadTurn turn(this, request);
  if (std::shared_ptr<ObjectStub> member = BeginRead(epoch, &turn); member != nullptr) {
    CO_ASSIGN_OR_RETURN(
        std::optional<proto::ObjectReply> reply,
        co_await ReadAtMember(epoch, std::move(member), request, memory, cancellation, sums, &turn));
    if (reply) co_return *std::move(reply);
    turn.End();
  }
  co_return co_await Call(epoch, std::move(request), CallMemory::kPutTarget, std::move(memory),
                          std::move(cancellation), std::move(sums));
}

// None: the member's answer does not count. Not OK: the head's own error.
Task<StatusOr<std::optional<proto::ObjectReply>>> Targets::ReadAtMember(
    uint64_t epoch, std::shared_ptr<ObjectStub> member, const proto::ObjectRequest& request,
    std::vector<MemorySpan> memory, CancellationPtr cancellation, BlockSumsPtr sums, ReadTurn* turn) {
  static Counter& reads = GetCounter("client.member_reads");
  static Counter& in_vain = GetCounter("client.member_reads_in_vain");
  proto::ObjectRequest read = request, versions;
  read.mutable_read()->set_versions(true);
  versions.set_ost(request.ost());
  *versions.mutable_versions()->mutable_ranges() = request.read().ranges();
  std::vector<MemorySpan> none;
  std::vector<Task<Reply>> both;
  both.push_back(member->CallOnce(std::move(read), CallMemory::kPutTarget, std::move(memory),
                                  PatienceWith(cancellation, clock_.Now()), std::move(sums)));
  both.push_back(
      Call(epoch, std::move(versions), CallMemory::kNone, std::move(none), std::move(cancellation)));
  std::vector<Reply> replies = co_await WhenAll(std::move(both));
  Reply& bytes = replies[0];
  const Reply& head = replies[1];
  reads.Add();
  if (!head.ok() && ToErrno(head.status()) != EOPNOTSUPP) co_return head.status();
  turn->outcome = Judge(bytes, request.read().ranges_size());
  if (turn->outcome == Outcome::kAnswered && !reads_.plant_unwitnessed) {
    if (!head.ok()) turn->outcome = Outcome::kFailed;  // it is of before there was such a question
    if (head.ok() && !HasVersions(bytes->read(), head->versions())) turn->outcome = Outcome::kChanged;
  }
  if (turn->outcome == Outcome::kAnswered) co_return std::optional(*std::move(bytes));
  in_vain.Add();
  LogDebug("member %s of OST %d: %s; asking the head", turn->member, turn->ost,
           bytes.ok() ? "its objects have other versions than the head's, or are bad there"
                      : std::string(bytes.status().message()));
  co_return std::nullopt;
}

}  // namespace nacre::client
