#include "server/cluster/ost_registry.h"

#include <cerrno>
#include <string_view>

#include "common/bytes.h"
#include "common/lease_time.h"
#include "common/log.h"
#include "rpc/convert.h"
#include "server/cluster/chain_keeper.h"

namespace nacre::cluster {
namespace {

constexpr int kMissedHeartbeats = 5;
constexpr Duration kFencePatience = std::chrono::seconds(5);
// So a call to a head that is frozen is repeated at the next one.
constexpr Duration kChainCallTimeout = std::chrono::seconds(5);

proto::StatusProto Unknown(const proto::HeartbeatRequest& request, const proto::OstInfo& info) {
  return ToProto(ErrnoError(ENOENT, absl::StrFormat("OST %d of %s is not known as up: register again",
                                                    info.index(), request.address())));
}

}  // namespace

OstRegistry::OstRegistry(KvStore& store, Clock& clock, Transport& transport, RegistryOptions options)
    : store_(store),
      clock_(clock),
      transport_(transport),
      options_(std::move(options)),
      chains_(new ChainKeeper(store_, clock_, options_.heartbeat, options_.epoch, ended_, *this)) {}

OstRegistry::~OstRegistry() = default;

Status OstRegistry::Load(uint64_t first_sequence) {
  first_sequence_ = first_sequence;
  std::string from(1, kOstTable);
  ASSIGN_OR_RETURN(auto entries, store_.Scan(from, PrefixEnd(from), kMaxOsts));
  std::lock_guard lock(mutex_);
  for (const KvEntry& entry : entries) {
    ByteReader key(std::string_view(entry.key).substr(1));
    OstIndex index = key.Big<uint32_t>();
    ASSIGN_OR_RETURN(OstRecord record, ParseOst(entry.value));
    if (IsGone(record.use)) {
      removed_[index] = std::move(record);
      continue;
    }
    Ost& ost = osts_[index];
    ost.record = std::move(record);
    ost.use = ost.record.use;
    ost.info.set_index(index);
    ost.info.set_uuid(ost.record.head().uuid);
    ost.info.set_total_bytes(ost.record.head().total_bytes);
    ost.heard = clock_.Now();
    ost.chained = ost.record.copies > 1;
    RETURN_IF_ERROR(PointStub(&ost));
    if (ost.chained) chains_->Load(index, ost.record);
  }
  return OkStatus();
}

void OstRegistry::Close() {
  std::vector<std::shared_ptr<ObjectStub>> stubs;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    for (auto& [index, ost] : osts_) {
      stubs.push_back(ost.stub);
      stubs.push_back(ost.impatient);
    }
  }
  for (auto& stub : stubs) {
    if (stub != nullptr) stub->Close();
  }
  chains_->Close();
}

StatusOr<std::shared_ptr<Peer>> OstRegistry::PeerOf(const std::string& address) {
  auto it = peers_.find(address);
  if (it != peers_.end()) return it->second;
  ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, transport_.Connect(address));
  peers_[address] = peer;
  return peer;
}

Status OstRegistry::PointStub(Ost* ost) {
  ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, PeerOf(ost->record.head().address));
  Point(ost, peer);
  return OkStatus();
}

void OstRegistry::Point(Ost* ost, const std::shared_ptr<Peer>& peer) {
  RetryPolicy policy;
  if (ost->chained) policy.call_timeout = kChainCallTimeout;
  PointOne(&ost->stub, peer, policy);
  policy.hard = false;
  policy.soft_timeout = kFencePatience;
  PointOne(&ost->impatient, peer, policy);
}

void OstRegistry::PointOne(std::shared_ptr<ObjectStub>* stub, const std::shared_ptr<Peer>& peer,
                           RetryPolicy policy) {
  if (*stub == nullptr)
    *stub =
        std::make_shared<ObjectStub>(peer, clock_, /*session=*/0, first_sequence_, policy, options_.epoch);
  else if ((*stub)->peer() != peer)
    (*stub)->SetPeer(peer);
}

Task<StatusOr<proto::ObjectReply>> OstRegistry::CallShortly(proto::ObjectRequest request) {
  std::shared_ptr<ObjectStub> stub;
  {
    std::lock_guard lock(mutex_);
    auto it = osts_.find(request.ost());
    if (it != osts_.end()) stub = it->second.impatient;
  }
  if (stub == nullptr) {
    std::lock_guard lock(mutex_);
    co_return UnknownOst(request.ost());
  }
  std::vector<MemorySpan> none;
  co_return co_await stub->Call(std::move(request), CallMemory::kNone, std::move(none));
}

Task<Status> OstRegistry::Fence(OstIndex index, std::vector<SessionId> sessions) {
  proto::ObjectRequest request;
  request.set_ost(index);
  if (sessions.empty()) co_return OkStatus();
  request.mutable_fence()->set_session(sessions.front());
  for (size_t i = 1; i < sessions.size(); ++i) request.mutable_fence()->add_more(sessions[i]);
  auto reply = co_await CallShortly(std::move(request));
  co_return reply.status();
}

void OstRegistry::NoteFences() {
  std::lock_guard lock(mutex_);
  ++fences_;
}

uint64_t OstRegistry::fences() const {
  std::lock_guard lock(mutex_);
  return fences_;
}

Task<bool> OstRegistry::FenceOrOutlive(OstIndex index, SessionId session) {
  const std::string head = chains_->HeadOf(index);
  if (IsUp(index) || IsFailing(index)) {
    std::vector<SessionId> sessions(1, session);
    Status told = co_await Fence(index, std::move(sessions));
    if (told.ok()) co_return true;
    const std::string why = absl::StrFormat("it could not be told of the eviction of session %d (%s)",
                                            session, std::string(told.message()));
    MarkDown(index, why);
    chains_->MarkHeadDown(index, head, why);
  }
  while (true) {
    const Duration left = ServesUntil(index) - clock_.Now();
    {
      std::lock_guard lock(mutex_);
      if (closed_) co_return false;
      if (removed_.contains(index)) co_return true;  // nobody is left there who would have to be told
    }
    if (IsUp(index)) co_return true;  // admitted meanwhile: that has told it
    if (left <= Duration{0} && !options_.plant_patient_fence) co_return false;
    co_await clock_.Sleep(left > Duration{0} ? std::min(left, options_.heartbeat) : options_.heartbeat);
  }
}

Duration OstRegistry::ServesUntil(OstIndex index) const {
  std::lock_guard lock(mutex_);
  auto it = osts_.find(index);
  if (it == osts_.end()) return Duration{0};
  if (it->second.chained) return chains_->ServesUntil(index);
  return it->second.ended ? Duration{0} : it->second.heard + WithDrift(options_.lease());
}

Task<void> OstRegistry::RefreshSpace(OstIndex index) {
  uint64_t instance = 0;
  {
    std::lock_guard lock(mutex_);
    auto it = osts_.find(index);
    if (it == osts_.end() || std::exchange(it->second.asked, true)) co_return;
    instance = it->second.chained ? chains_->InstanceOf(index) : it->second.instance;
  }
  proto::ObjectRequest request;
  request.set_ost(index);
  request.mutable_statfs();
  auto reply = co_await CallShortly(std::move(request));
  std::lock_guard lock(mutex_);
  auto it = osts_.find(index);
  if (it == osts_.end()) co_return;  // it has been removed
  Ost& ost = it->second;
  ost.asked = false;
  if (ost.chained && reply.ok() && reply->has_statfs()) {
    chains_->NoteSpace(index, instance, reply->statfs());
    ResetUsable();
  }
  if (!reply.ok() || !reply->has_statfs() || ost.chained || ost.instance != instance)
    co_return;  // the last heartbeat's figures stay
  ost.info.set_total_bytes(reply->statfs().total_bytes());
  ost.info.set_available_bytes(reply->statfs().available_bytes());
  ost.info.set_objects(reply->statfs().objects());
  ResetUsable();
}

void OstRegistry::MarkDown(OstIndex index, std::string_view why) {
  {
    std::lock_guard lock(mutex_);
    auto it = osts_.find(index);
    if (it == osts_.end() || !it->second.up) return;
    it->second.up = false;
    ResetUsable();
    ++version_;
    LogWarning("OST %d at %s is taken out of service: %s", index, it->second.record.head().address, why);
  }
  Announce();
}

proto::HeartbeatReply OstRegistry::Heartbeat(proto::HeartbeatRequest request) {
  bool changed = false;
  proto::HeartbeatReply reply;
  if (request.ended() && request.instance() != 0) TakeEnd(request.instance());
  {
    std::lock_guard lock(mutex_);
    const std::vector<OstIndex> removed = TakeRemoved(request.mutable_osts());
    reply = TakeHeartbeat(request, &changed);
    reply.mutable_removed_osts()->Assign(removed.begin(), removed.end());
    if (scrub_.number() != 0) *reply.mutable_scrub() = scrub_;
    if (changed) ++version_;
  }
  reply.set_mdt_epoch(options_.epoch);
  if (changed) Announce();
  for (const proto::OstInfo& info : request.osts()) {
    if (reply.status().error() != 0) break;
    Arrival arrival{info, request.address(), request.instance()};
    if (chains_->Has(info.index()) && !chains_->Beat(arrival))
      *reply.mutable_status() = Unknown(request, info);
  }
  return reply;
}

void OstRegistry::TakeEnd(uint64_t instance) {
  ended_.Note(instance);
  chains_->Ended(instance);
  bool changed = false;
  {
    std::lock_guard lock(mutex_);
    for (auto& [index, ost] : osts_) {
      if (ost.chained || ost.ended || ost.instance != instance) continue;
      ost.ended = changed = true;
      if (std::exchange(ost.up, false))
        LogWarning("OST %d at %s is down: its OSS's process has ended", index, ost.record.head().address);
    }
  }
  if (changed) Changed();
}

void OstRegistry::OrderScrub(proto::ScrubOrder order) {
  std::lock_guard lock(mutex_);
  if (order.number() > scrub_.number()) scrub_ = std::move(order);
}

Task<proto::ReportChainReply> OstRegistry::ReportChain(proto::ReportChainRequest request) {
  proto::ReportChainReply reply;
  reply.set_mdt_epoch(options_.epoch);
  auto chain = co_await chains_->Report(std::move(request));
  *reply.mutable_status() = ToProto(chain.status());
  if (chain.ok()) *reply.mutable_chain() = *std::move(chain);
  co_return reply;
}

proto::HeartbeatReply OstRegistry::TakeHeartbeat(const proto::HeartbeatRequest& request, bool* changed) {
  proto::HeartbeatReply reply;
  for (const proto::OstInfo& info : request.osts()) {
    auto it = osts_.find(info.index());
    if (it != osts_.end() && it->second.chained) continue;
    bool known = it != osts_.end() && it->second.record.head().uuid == info.uuid() &&
                 (it->second.up || info.failing()) && it->second.instance == request.instance() &&
                 it->second.record.head().address == request.address();
    if (known) continue;
    *reply.mutable_status() = Unknown(request, info);
    return reply;
  }
  ResetUsable();
  for (const proto::OstInfo& info : request.osts()) {
    Ost& ost = osts_.at(info.index());
    if (ost.chained) continue;
    ost.info = info;
    ost.heard = clock_.Now();
    if (!info.failing() || !std::exchange(ost.up, false)) continue;
    *changed = true;
    LogWarning("OST %d at %s is down: its OSS says that it is failing", info.index(), request.address());
  }
  return reply;
}

void OstRegistry::CheckHeartbeats() {
  bool changed = false;
  {
    std::lock_guard lock(mutex_);
    for (auto& [index, ost] : osts_) {
      if (!ost.up || clock_.Now() - ost.heard <= kMissedHeartbeats * options_.heartbeat) continue;
      ost.up = false;
      changed = true;
      LogWarning("OST %d at %s is down: no heartbeat for %d s", index, ost.record.head().address,
                 std::chrono::duration_cast<std::chrono::seconds>(clock_.Now() - ost.heard).count());
    }
    if (!changed) return;
    ResetUsable();
    ++version_;
  }
  Announce();
}

proto::ClusterMap OstRegistry::MapLocked() const {
  proto::ClusterMap map;
  map.set_version(version_);
  map.set_instance(options_.instance);
  map.set_cluster_uuid(options_.cluster_uuid);
  for (const auto& [index, ost] : osts_) {
    proto::OstState* state = map.add_osts();
    if (ost.use == OstUse::kDraining) state->mutable_drain();
    if (ost.chained) {
      chains_->Fill(index, state);
      continue;
    }
    *state->mutable_info() = ost.info;
    state->set_address(ost.record.head().address);
    state->set_up(ost.up);
    state->set_instance(ost.instance);
    auto silent = std::chrono::duration_cast<std::chrono::seconds>(clock_.Now() - ost.heard);
    state->set_seconds_since_heartbeat(static_cast<uint64_t>(silent.count()));
  }
  for (const auto& [index, record] : removed_) {
    proto::RemovedOst* out = map.add_removed();
    out->set_index(index);
    out->set_lost(record.use == OstUse::kLost);
  }
  return map;
}

proto::ClusterMap OstRegistry::Map() const {
  std::lock_guard lock(mutex_);
  return MapLocked();
}

void OstRegistry::Announce() {
  if (!on_change_) return;
  proto::ClusterMap map = Map();
  on_change_(map);
}

std::shared_ptr<const UsableOsts> OstRegistry::Usable() const {
  std::lock_guard lock(mutex_);
  if (usable_ != nullptr) return usable_;
  std::vector<OstSpace> up, all;
  for (const auto& [index, ost] : osts_) {
    if (ost.use != OstUse::kActive) continue;
    const proto::OstInfo info = ost.chained ? chains_->Info(index) : ost.info;
    OstSpace space{index, info.total_bytes(), info.available_bytes(), std::max(info.copies(), 1u)};
    all.push_back(space);
    if (IsUpLocked(index, ost)) up.push_back(space);
  }
  if (up.empty()) up = all;
  usable_ = std::make_shared<const UsableOsts>(std::move(up), std::move(all));
  return usable_;
}

uint64_t OstRegistry::RoomOf(OstIndex index) const {
  std::lock_guard lock(mutex_);
  auto it = osts_.find(index);
  if (it == osts_.end() || !IsUpLocked(index, it->second)) return 0;
  return it->second.chained ? chains_->Info(index).available_bytes() : it->second.info.available_bytes();
}

std::vector<OstIndex> OstRegistry::Known() const {
  std::lock_guard lock(mutex_);
  std::vector<OstIndex> indices;
  for (const auto& [index, ost] : osts_) indices.push_back(index);
  return indices;
}

uint64_t OstRegistry::version() const {
  std::lock_guard lock(mutex_);
  return version_;
}

bool OstRegistry::IsUp(OstIndex index) const {
  std::lock_guard lock(mutex_);
  auto it = osts_.find(index);
  return it != osts_.end() && IsUpLocked(index, it->second);
}

bool OstRegistry::IsUpLocked(OstIndex index, const Ost& ost) const {
  return ost.chained ? chains_->IsUp(index) : ost.up;
}

StatusOr<std::shared_ptr<ObjectStub>> OstRegistry::Stub(OstIndex index) {
  std::lock_guard lock(mutex_);
  auto it = osts_.find(index);
  if (it == osts_.end() || it->second.stub == nullptr) return UnknownOst(index);
  return it->second.stub;
}

// --- for the chains ---

StatusOr<std::shared_ptr<Peer>> OstRegistry::Connect(const std::string& address) {
  std::lock_guard lock(mutex_);
  return PeerOf(address);
}

void OstRegistry::PointTo(OstIndex index, const std::shared_ptr<Peer>& head) {
  std::lock_guard lock(mutex_);
  auto it = osts_.find(index);
  if (closed_ || it == osts_.end()) return;
  it->second.chained = true;
  Point(&it->second, head);
}

void OstRegistry::Changed() {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    ResetUsable();
    ++version_;
  }
  Announce();
}

bool OstRegistry::IfNoFenceSince(uint64_t fences, absl::AnyInvocable<void()> mark) {
  std::lock_guard lock(mutex_);
  if (fences != fences_) return false;
  mark();
  return true;
}

StatusOr<std::vector<SessionId>> OstRegistry::MissedFences(OstIndex index) {
  if (missed_) return missed_(index);
  return std::vector<SessionId>();
}

Task<Status> OstRegistry::AdmitHead(OstIndex index) {
  if (admit_) co_return co_await admit_(index);
  co_return OkStatus();
}

std::shared_ptr<void> OstRegistry::Hold() { return hold_ ? hold_() : std::make_shared<Unit>(); }

}  // namespace nacre::cluster
