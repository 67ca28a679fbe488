#include "client/targets.h"

#include <algorithm>
#include <cerrno>
#include <set>

#include "common/lease_time.h"
#include "common/log.h"
#include "rpc/convert.h"

namespace nacre::client {
namespace {

constexpr Duration kReturnPatience = 2s;

Status Evicted() {
  return ErrnoError(EIO, "this client's session was evicted while the request was under way");
}

Status Removed(OstIndex ost, bool lost) {
  if (!lost) return ErrnoError(ESTALE, absl::StrFormat("OST %d has been removed from the cluster", ost));
  return ErrnoError(EIO, absl::StrFormat("OST %d was lost, with what the file had there", ost));
}

proto::PathState StateOf(const std::string& address, const PathStats& stats) {
  proto::PathState state;
  state.set_address(address);
  state.set_path(stats.path);
  state.set_rail(stats.rail);
  state.set_numa_node(stats.numa_node);
  state.set_down(stats.down);
  state.set_reads(stats.reads);
  state.set_read_bytes(stats.read_bytes);
  state.set_writes(stats.writes);
  state.set_written_bytes(stats.written_bytes);
  state.set_other_calls(stats.other_calls);
  state.set_p50_micros(stats.p50_micros);
  state.set_p99_micros(stats.p99_micros);
  state.set_credit_waits(stats.credit_waits);
  state.set_lost(stats.lost);
  state.set_moved(stats.moved);
  state.set_registrations(stats.registrations);
  return state;
}

}  // namespace

Targets::Targets(Transport& transport, Clock& clock, RetryPolicy policy, OnLoss on_loss, MemberReads reads)
    : transport_(transport), clock_(clock), policy_(policy), on_loss_(std::move(on_loss)), reads_(reads) {}

void Targets::Reset(SessionId session, uint64_t epoch) {
  std::vector<std::shared_ptr<ObjectStub>> old;
  {
    std::lock_guard lock(mutex_);
    if (epoch < epoch_ || (epoch == epoch_ && (session == 0 || session == session_))) return;
    if (session != session_) sequences_ = std::make_shared<ObjectSequences>(1);
    session_ = session;
    epoch_ = epoch;
    old = TakeStubs();
    for (auto& [index, target] : targets_) target.granted = 0;
  }
  for (auto& stub : old) stub->Close();
}

std::vector<std::shared_ptr<ObjectStub>> Targets::TakeStubs() {
  std::vector<std::shared_ptr<ObjectStub>> stubs;
  for (auto& [index, target] : targets_) {
    if (target.stub != nullptr) stubs.push_back(std::move(target.stub));
    for (auto& [address, member] : target.members) stubs.push_back(std::move(member));
    target.members.clear();
  }
  peers_.clear();  // the stubs close them
  return stubs;
}

std::vector<OstIndex> Targets::SetMap(const proto::ClusterMap& map) {
  std::vector<OstIndex> restarted;
  std::lock_guard lock(mutex_);
  if (map.instance() == map_instance_ && map.version() < map_version_) return restarted;
  map_instance_ = map.instance();
  map_version_ = map.version();
  for (const proto::OstState& ost : map.osts()) {
    if (ost.address().empty()) continue;
    Target& target = targets_[ost.info().index()];
    if (ost.up() && target.instance != 0 && target.instance != ost.instance())
      restarted.push_back(ost.info().index());
    SetMembers(ost, &target);
    if (target.address == ost.address()) continue;
    target.address = ost.address();
    if (target.stub == nullptr) continue;
    // Calls under way go on there. If the address is of no use, the next call says so.
    if (auto peer = PeerOf(target.address); peer.ok()) target.stub->SetPeer(*std::move(peer));
  }
  for (const proto::RemovedOst& gone : map.removed()) {
    if (!removed_.emplace(gone.index(), gone.lost()).second) continue;
    auto target = targets_.find(gone.index());
    if (target == targets_.end()) continue;
    if (target->second.stub != nullptr) target->second.stub->End(Removed(gone.index(), gone.lost()));
    target->second.stub.reset();
    SetMembers({}, &target->second);
    target->second.granted = 0;
  }
  DropUnusedPeers();
  return restarted;
}

StatusOr<std::shared_ptr<Peer>> Targets::PeerOf(const std::string& address) {
  if (auto it = peers_.find(address); it != peers_.end()) return it->second;
  ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, transport_.Connect(address));
  peers_[address] = peer;
  return peer;
}

void Targets::DropUnusedPeers() {
  std::set<std::shared_ptr<Peer>> used;
  for (const auto& [index, target] : targets_) {
    if (target.stub != nullptr) used.insert(target.stub->peer());
    for (const auto& [address, member] : target.members) used.insert(member->peer());
  }
  std::erase_if(peers_, [&](const auto& known) { return !used.contains(known.second); });
}

void Targets::Close() {
  std::vector<std::shared_ptr<ObjectStub>> old;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    old = TakeStubs();
  }
  for (auto& stub : old) stub->Close();
}

bool Targets::Current(uint64_t epoch) const {
  std::lock_guard lock(mutex_);
  return epoch == epoch_;
}

// Null: wait, there is no session or no such OST yet.
StatusOr<std::shared_ptr<ObjectStub>> Targets::StubOf(OstIndex ost, uint64_t epoch) {
  std::lock_guard lock(mutex_);
  if (closed_) return ErrnoError(ESHUTDOWN, "the filesystem is unmounted");
  if (epoch != epoch_) return Evicted();
  if (auto gone = removed_.find(ost); gone != removed_.end()) return Removed(ost, gone->second);
  auto found = targets_.find(ost);
  if (session_ == 0 || found == targets_.end() || found->second.address.empty())
    return std::shared_ptr<ObjectStub>();
  Target& target = found->second;
  ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, PeerOf(target.address));
  if (target.stub == nullptr) {
    target.stub = std::make_shared<ObjectStub>(std::move(peer), clock_, session_, sequences_, policy_);
  } else {
    target.stub->SetPeer(std::move(peer));
  }
  return target.stub;
}

Task<StatusOr<proto::ObjectReply>> Targets::Call(uint64_t epoch, proto::ObjectRequest request,
                                                 CallMemory kind, std::vector<MemorySpan> memory,
                                                 CancellationPtr cancellation, BlockSumsPtr sums) {
  const OstIndex ost = request.ost();
  const Duration begin = clock_.Now();
  Duration pause = policy_.pause;
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectStub> stub, StubOf(ost, epoch));
  while (stub == nullptr) {
    if (!policy_.hard && clock_.Now() - begin > policy_.soft_timeout) {
      co_return ErrnoError(EIO,
                           absl::StrFormat("OST %d is not in the cluster map: is its OSS running?", ost));
    }
    if (cancellation != nullptr) CO_RETURN_IF_ERROR(cancellation->status());
    co_await clock_.Sleep(pause);
    pause = std::min(2 * pause, policy_.max_pause);
    CO_ASSIGN_OR_RETURN(stub, StubOf(ost, epoch));
  }
  auto reply = co_await stub->Call(std::move(request), kind, std::move(memory), std::move(cancellation),
                                   std::move(sums));
  if (reply.ok()) NoteAnswer(ost, *reply, begin);
  if (!reply.ok() && !Current(epoch)) co_return Evicted();
  co_return reply;
}

// Grants live in the OSS's memory: a restarted one knows of none.
void Targets::NoteAnswer(OstIndex ost, const proto::ObjectReply& reply, Duration sent) {
  bool lost = false;
  {
    std::lock_guard lock(mutex_);
    Target& target = targets_[ost];
    target.heard = std::max(target.heard, sent);
    if (target.instance == reply.instance()) return;
    lost = target.instance != 0 && target.losses != reply.losses();
    if (target.instance != 0) target.granted = 0;
    target.instance = reply.instance();
    target.losses = reply.losses();
  }
  if (lost) on_loss_(ost, reply.losses());
}

bool Targets::LeftWhole(OstIndex ost) const {
  std::lock_guard lock(mutex_);
  auto it = removed_.find(ost);
  return it != removed_.end() && !it->second;
}

bool Targets::IsLost(OstIndex ost) const {
  std::lock_guard lock(mutex_);
  auto it = removed_.find(ost);
  return it != removed_.end() && it->second;
}

std::optional<uint64_t> Targets::Losses(OstIndex ost) const {
  std::lock_guard lock(mutex_);
  auto target = targets_.find(ost);
  if (target == targets_.end() || target->second.instance == 0) return std::nullopt;
  return target->second.losses;
}

// --- grants ---

bool Targets::TryReserve(OstIndex ost, uint64_t bytes, uint64_t* want) {
  std::lock_guard lock(mutex_);
  Target& target = targets_[ost];
  if (clock_.Coarse() - target.heard >= kGrantLease) target.granted = 0;  // the OST may have taken it back
  if (target.granted >= target.reserved + bytes) {
    target.reserved += bytes;
    return true;
  }
  *want = target.reserved + bytes;
  return false;
}

bool Targets::TryReserveOnEach(uint64_t bytes, std::map<OstIndex, uint64_t>* reserved) {
  const Duration now = clock_.Coarse();
  std::lock_guard lock(mutex_);
  std::vector<std::pair<OstIndex, Target*>> all;
  for (auto& [index, target] : targets_) {
    if (removed_.contains(index)) continue;
    if (now - target.heard >= kGrantLease || target.granted < target.reserved + bytes) return false;
    all.emplace_back(index, &target);
  }
  for (const auto& [index, target] : all) {
    target->reserved += bytes;
    (*reserved)[index] += bytes;
  }
  return !all.empty();
}

Task<Status> Targets::Ask(uint64_t epoch, OstIndex ost, uint64_t want, CancellationPtr cancellation) {
  proto::ObjectRequest request;
  request.set_ost(ost);
  request.mutable_grant()->set_want(want);
  std::vector<MemorySpan> none;
  CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await Call(epoch, std::move(request), CallMemory::kNone,
                                                              std::move(none), std::move(cancellation)));
  std::lock_guard lock(mutex_);
  if (epoch != epoch_) co_return Evicted();
  targets_[ost].granted = reply.grant();
  co_return OkStatus();
}

Task<bool> Targets::Reserve(uint64_t epoch, OstIndex ost, uint64_t bytes, uint64_t ahead) {
  uint64_t want = 0;
  if (TryReserve(ost, bytes, &want)) co_return true;
  const bool reserved = co_await AskAndReserve(epoch, ost, bytes, ahead, BeginAsking(ost));
  std::lock_guard lock(mutex_);
  --targets_[ost].asking_now;
  co_return reserved;
}

std::shared_ptr<AsyncMutex> Targets::BeginAsking(OstIndex ost) {
  std::lock_guard lock(mutex_);
  ++targets_[ost].asking_now;
  return targets_[ost].asking;
}

Task<bool> Targets::AskAndReserve(uint64_t epoch, OstIndex ost, uint64_t bytes, uint64_t ahead,
                                  std::shared_ptr<AsyncMutex> asking) {
  uint64_t want = 0;
  AsyncMutex::Guard turn = co_await asking->Lock();
  if (TryReserve(ost, bytes, &want)) co_return true;  // who was before us asked for enough
  Status asked = co_await Ask(epoch, ost, want + ahead, nullptr);
  if (!asked.ok()) {
    LogDebug("OST %d grants no space: %s", ost, std::string(asked.message()));
    co_return false;
  }
  co_return TryReserve(ost, bytes, &want);
}

void Targets::Unreserve(OstIndex ost, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  Target& target = targets_[ost];
  target.reserved -= std::min(target.reserved, bytes);
}

void Targets::Used(OstIndex ost, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  Target& target = targets_[ost];
  target.reserved -= std::min(target.reserved, bytes);
  target.granted -= std::min(target.granted, bytes);
}

// Where somebody is asking for more nothing is given back, so the turn is there at once; whoever asks
// meanwhile waits for no longer than this does.
Task<void> Targets::ReturnGrants(uint64_t epoch) {
  std::vector<OstIndex> osts;
  {
    std::lock_guard lock(mutex_);
    for (auto& [index, target] : targets_) {
      if (target.granted == 0 || target.reserved > 0 || target.asking_now > 0) continue;
      target.granted = 0;  // nobody may count on it from here on
      ++target.asking_now;
      osts.push_back(index);
    }
  }
  auto cancellation = std::make_shared<Cancellation>(clock_.Now() + kReturnPatience);
  const Executor executor = co_await CurrentExecutor();
  auto timer = clock_.After(executor, kReturnPatience, [cancellation] {
    cancellation->Cancel(ErrnoError(ETIMEDOUT, "no answer in time"));
  });
  std::vector<Task<Unit>> returns;
  for (OstIndex ost : osts) returns.push_back(ReturnGrant(epoch, ost, cancellation));
  (void)co_await WhenAll(std::move(returns));
}

Task<Unit> Targets::ReturnGrant(uint64_t epoch, OstIndex ost, CancellationPtr cancellation) {
  std::shared_ptr<AsyncMutex> asking;
  {
    std::lock_guard lock(mutex_);
    asking = targets_[ost].asking;
  }
  AsyncMutex::Guard turn = co_await asking->Lock();
  Status asked = co_await Ask(epoch, ost, 0, cancellation);
  if (!asked.ok()) LogDebug("OST %d took no grant back: %s", ost, std::string(asked.message()));
  std::lock_guard lock(mutex_);
  --targets_[ost].asking_now;
  co_return Unit{};
}

// --- looking ---

std::string Targets::PathTo(OstIndex ost, const MemoryRegion& memory) const {
  std::lock_guard lock(mutex_);
  auto target = targets_.find(ost);
  if (target == targets_.end() || target->second.stub == nullptr) return "";
  return target->second.stub->peer()->PathFor(memory);
}

std::vector<std::string> Targets::Paths() const {
  std::vector<std::string> paths;
  std::lock_guard lock(mutex_);
  for (const auto& [address, peer] : peers_) {
    PathInfo path = peer->path();
    paths.push_back(path.reason.empty() ? absl::StrFormat("%s %s", address, path.path)
                                        : absl::StrFormat("%s %s (%s)", address, path.path, path.reason));
  }
  return paths;
}

std::vector<proto::PathState> Targets::PathStates() const {
  std::vector<proto::PathState> states;
  std::lock_guard lock(mutex_);
  for (const auto& [address, peer] : peers_) {
    for (const PathStats& stats : peer->path().stats) states.push_back(StateOf(address, stats));
  }
  return states;
}

}  // namespace nacre::client
