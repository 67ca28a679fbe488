#include "server/cluster/ost_registry.h"

#include <cerrno>
#include <set>
#include <string_view>

#include "common/bytes.h"
#include "common/lease_time.h"
#include "common/log.h"
#include "rpc/convert.h"

namespace nacre::cluster {
namespace {

constexpr int kMissedHeartbeats = 5;
constexpr Duration kFencePatience = std::chrono::seconds(5);
constexpr uint32_t kMaxOsts = 65536;

// The OSTs of one request among themselves; CheckOwner holds each against those that are known.
Status CheckDistinct(const proto::RegisterOssRequest& request) {
  std::map<OstIndex, std::string_view> uuids;
  std::set<std::string_view> seen;
  for (const proto::OstInfo& info : request.osts()) {
    if (auto [it, fresh] = uuids.try_emplace(info.index(), info.uuid()); !fresh) {
      return ErrnoError(EEXIST, absl::StrFormat("the OSS at %s registered OST index %d twice, for %s and %s",
                                                request.address(), info.index(), it->second, info.uuid()));
    }
    if (!seen.insert(info.uuid()).second) {
      return ErrnoError(EEXIST, absl::StrFormat("the OSS at %s registered OST %s under two indices",
                                                request.address(), info.uuid()));
    }
  }
  return OkStatus();
}

}  // namespace

std::string OstKey(OstIndex index) {
  std::string key(1, kOstTable);
  PutBig(&key, index);
  return key;
}

std::string EncodeOst(const OstRecord& record) {
  std::string out;
  PutText<uint32_t>(&out, record.uuid);
  PutText<uint32_t>(&out, record.address);
  PutLittle(&out, record.total_bytes);
  return out;
}

StatusOr<OstRecord> ParseOst(std::string_view data) {
  ByteReader in(data);
  OstRecord record;
  record.uuid = in.Text<uint32_t>();
  record.address = in.Text<uint32_t>();
  record.total_bytes = in.Little<uint64_t>();
  if (!in.ok() || !in.empty()) return absl::DataLossError("damaged OST record: wrong length");
  return record;
}

Status OstRegistry::Load(uint64_t first_sequence) {
  first_sequence_ = first_sequence;
  std::string from(1, kOstTable);
  ASSIGN_OR_RETURN(auto entries, store_.Scan(from, PrefixEnd(from), kMaxOsts));
  std::lock_guard lock(mutex_);
  for (const KvEntry& entry : entries) {
    ByteReader key(std::string_view(entry.key).substr(1));
    OstIndex index = key.Big<uint32_t>();
    Ost& ost = osts_[index];
    ASSIGN_OR_RETURN(ost.record, ParseOst(entry.value));
    ost.info.set_index(index);
    ost.info.set_uuid(ost.record.uuid);
    ost.info.set_total_bytes(ost.record.total_bytes);
    ost.heard = clock_.Now();
    RETURN_IF_ERROR(PointStub(&ost));
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
  for (auto& stub : stubs) stub->Close();
}

StatusOr<std::shared_ptr<Peer>> OstRegistry::PeerOf(const std::string& address) {
  auto it = peers_.find(address);
  if (it != peers_.end()) return it->second;
  ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, transport_.Connect(address));
  peers_[address] = peer;
  return peer;
}

Status OstRegistry::PointStub(Ost* ost) {
  ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, PeerOf(ost->record.address));
  Point(&ost->stub, peer, /*patient=*/true);
  Point(&ost->impatient, peer, /*patient=*/false);
  return OkStatus();
}

void OstRegistry::Point(std::shared_ptr<ObjectStub>* stub, const std::shared_ptr<Peer>& peer, bool patient) {
  RetryPolicy policy;
  policy.hard = patient;
  policy.soft_timeout = kFencePatience;
  if (*stub == nullptr)
    *stub = std::make_shared<ObjectStub>(peer, clock_, /*session=*/0, first_sequence_, policy);
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
    co_return ErrnoError(ENODEV, absl::StrFormat("no OST with index %d was ever registered", request.ost()));
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
  if (IsUp(index)) {
    std::vector<SessionId> sessions(1, session);
    Status told = co_await Fence(index, std::move(sessions));
    if (told.ok()) co_return true;
    MarkDown(index, absl::StrFormat("it could not be told of the eviction of session %d (%s)", session,
                                    std::string(told.message())));
  }
  while (true) {
    const Duration left = ServesUntil(index) - clock_.Now();
    {
      std::lock_guard lock(mutex_);
      if (closed_) co_return false;
    }
    if (IsUp(index)) co_return true;  // admitted meanwhile: that has told it
    if (left <= Duration{0} && !options_.plant_patient_fence) co_return false;
    co_await clock_.Sleep(left > Duration{0} ? std::min(left, options_.heartbeat) : options_.heartbeat);
  }
}

Duration OstRegistry::ServesUntil(OstIndex index) const {
  std::lock_guard lock(mutex_);
  auto it = osts_.find(index);
  return it == osts_.end() ? Duration{0} : it->second.heard + WithDrift(options_.lease());
}

Task<void> OstRegistry::RefreshSpace(OstIndex index) {
  uint64_t instance = 0;
  {
    std::lock_guard lock(mutex_);
    auto it = osts_.find(index);
    if (it == osts_.end() || std::exchange(it->second.asked, true)) co_return;
    instance = it->second.instance;
  }
  proto::ObjectRequest request;
  request.set_ost(index);
  request.mutable_statfs();
  auto reply = co_await CallShortly(std::move(request));
  std::lock_guard lock(mutex_);
  Ost& ost = osts_[index];
  ost.asked = false;
  if (!reply.ok() || !reply->has_statfs() || ost.instance != instance)
    co_return;  // the last heartbeat's figures stay
  ost.info.set_total_bytes(reply->statfs().total_bytes());
  ost.info.set_available_bytes(reply->statfs().available_bytes());
  ost.info.set_objects(reply->statfs().objects());
  usable_.reset();
}

Status OstRegistry::CheckRequest(const proto::RegisterOssRequest& request) const {
  if (!request.cluster_uuid().empty() && request.cluster_uuid() != options_.cluster_uuid) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("the OSS at %s belongs to cluster %s, this is cluster %s: start it "
                                      "with its own metadata server, or give it fresh directories",
                                      request.address(), request.cluster_uuid(), options_.cluster_uuid));
  }
  if (request.address().empty()) return ErrnoError(EINVAL, "an OSS registered without an address");
  if (request.osts().empty()) {
    return ErrnoError(EINVAL, absl::StrCat("the OSS at ", request.address(), " registered without an OST"));
  }
  for (const proto::OstInfo& info : request.osts()) RETURN_IF_ERROR(CheckOwner(info));
  return CheckDistinct(request);
}

Status OstRegistry::CheckOwner(const proto::OstInfo& info) const {
  if (info.index() >= kMaxOsts) {
    return ErrnoError(
        EINVAL, absl::StrFormat("OST index %d is too high: the highest is %d", info.index(), kMaxOsts - 1));
  }
  if (info.uuid().empty())
    return ErrnoError(EINVAL, absl::StrFormat("OST %d registered without a uuid", info.index()));
  for (const auto& [index, ost] : osts_) {
    if (index == info.index() && ost.record.uuid != info.uuid()) {
      return ErrnoError(EEXIST, absl::StrFormat("OST index %d belongs to %s for ever, %s (%s) cannot have "
                                                "it: give the new OST an index of its own",
                                                index, ost.record.uuid, info.uuid(), info.directory()));
    }
    if (index != info.index() && ost.record.uuid == info.uuid()) {
      return ErrnoError(
          EEXIST, absl::StrFormat("OST %s has index %d, it cannot come back as %d: correct its configuration",
                                  info.uuid(), index, info.index()));
    }
  }
  return OkStatus();
}

Status OstRegistry::CheckAndConnect(const proto::RegisterOssRequest& request) {
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(CheckRequest(request));
  // An address that is none must not get into the store: the next start would fail over it.
  return PeerOf(request.address()).status();
}

Task<Status> OstRegistry::Store(const proto::RegisterOssRequest& request) {
  CO_RETURN_IF_ERROR(CheckAndConnect(request));
  KvBatch batch;
  batch.UseReserve();  // without its OSTs a full cluster could not be emptied
  for (const proto::OstInfo& info : request.osts()) {
    OstRecord record{info.uuid(), request.address(), info.total_bytes()};
    batch.Put(OstKey(info.index()), EncodeOst(record));
  }
  CO_RETURN_IF_ERROR(co_await store_.Commit(std::move(batch)));
  std::lock_guard lock(mutex_);
  usable_.reset();
  for (const proto::OstInfo& info : request.osts()) {
    Ost& ost = osts_[info.index()];
    ost.record = {info.uuid(), request.address(), info.total_bytes()};
    ost.info = info;
    CO_RETURN_IF_ERROR(PointStub(&ost));
  }
  co_return OkStatus();
}

Task<proto::RegisterOssReply> OstRegistry::Register(proto::RegisterOssRequest request) {
  auto guard = co_await registering_.Lock();
  proto::RegisterOssReply reply;
  Status status = co_await Store(request);
  if (status.ok()) status = co_await store_.Sync();
  for (bool up = false; status.ok() && !up;) {
    const uint64_t fences = this->fences();
    for (int i = 0; i < request.osts_size() && status.ok() && admit_; ++i) {
      OstIndex index = request.osts(i).index();
      status = co_await admit_(index);
    }
    if (status.ok()) up = MarkUp(request, fences);
  }
  if (!status.ok()) {
    LogWarning("OSS %s was not registered: %s", request.address(), std::string(status.message()));
    *reply.mutable_status() = ToProto(status);
    co_return reply;
  }
  reply.set_cluster_uuid(options_.cluster_uuid);
  reply.set_heartbeat_ms(
      static_cast<uint32_t>(std::chrono::ceil<std::chrono::milliseconds>(options_.heartbeat).count()));
  reply.set_lease_ms(
      static_cast<uint32_t>(std::chrono::floor<std::chrono::milliseconds>(options_.lease()).count()));
  co_return reply;
}

bool OstRegistry::MarkUp(const proto::RegisterOssRequest& request, uint64_t fences) {
  {
    std::lock_guard lock(mutex_);
    if (fences != fences_) return false;
    usable_.reset();
    for (const proto::OstInfo& info : request.osts()) {
      Ost& ost = osts_[info.index()];
      ost.up = !info.failing();
      ost.instance = request.instance();
      ost.heard = clock_.Now();
      LogInfo("OST %d (%s) is %s at %s", info.index(), info.uuid(), ost.up ? "up" : "there, but failing",
              request.address());
    }
    ++version_;
  }
  Announce();
  return true;
}

void OstRegistry::MarkDown(OstIndex index, std::string_view why) {
  {
    std::lock_guard lock(mutex_);
    auto it = osts_.find(index);
    if (it == osts_.end() || !it->second.up) return;
    it->second.up = false;
    usable_.reset();
    ++version_;
    LogWarning("OST %d at %s is taken out of service: %s", index, it->second.record.address, why);
  }
  Announce();
}

proto::HeartbeatReply OstRegistry::Heartbeat(const proto::HeartbeatRequest& request) {
  bool changed = false;
  proto::HeartbeatReply reply;
  {
    std::lock_guard lock(mutex_);
    reply = TakeHeartbeat(request, &changed);
    if (changed) ++version_;
  }
  if (changed) Announce();
  return reply;
}

proto::HeartbeatReply OstRegistry::TakeHeartbeat(const proto::HeartbeatRequest& request, bool* changed) {
  proto::HeartbeatReply reply;
  for (const proto::OstInfo& info : request.osts()) {
    auto it = osts_.find(info.index());
    bool known = it != osts_.end() && it->second.record.uuid == info.uuid() &&
                 (it->second.up || info.failing()) && it->second.instance == request.instance() &&
                 it->second.record.address == request.address();
    if (known) continue;
    *reply.mutable_status() =
        ToProto(ErrnoError(ENOENT, absl::StrFormat("OST %d of %s is not known as up: register again",
                                                   info.index(), request.address())));
    return reply;
  }
  usable_.reset();
  for (const proto::OstInfo& info : request.osts()) {
    Ost& ost = osts_.at(info.index());
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
      LogWarning("OST %d at %s is down: no heartbeat for %d s", index, ost.record.address,
                 std::chrono::duration_cast<std::chrono::seconds>(clock_.Now() - ost.heard).count());
    }
    if (!changed) return;
    usable_.reset();
    ++version_;
  }
  Announce();
}

proto::ClusterMap OstRegistry::MapLocked() const {
  proto::ClusterMap map;
  map.set_version(version_);
  map.set_cluster_uuid(options_.cluster_uuid);
  for (const auto& [index, ost] : osts_) {
    proto::OstState* state = map.add_osts();
    *state->mutable_info() = ost.info;
    state->set_address(ost.record.address);
    state->set_up(ost.up);
    state->set_instance(ost.instance);
    auto silent = std::chrono::duration_cast<std::chrono::seconds>(clock_.Now() - ost.heard);
    state->set_seconds_since_heartbeat(static_cast<uint64_t>(silent.count()));
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
    OstSpace space{index, ost.info.total_bytes(), ost.info.available_bytes()};
    all.push_back(space);
    if (ost.up) up.push_back(space);
  }
  usable_ = std::make_shared<const UsableOsts>(up.empty() ? std::move(all) : std::move(up));
  return usable_;
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
  return it != osts_.end() && it->second.up;
}

StatusOr<std::shared_ptr<ObjectStub>> OstRegistry::Stub(OstIndex index) {
  std::lock_guard lock(mutex_);
  auto it = osts_.find(index);
  if (it == osts_.end() || it->second.stub == nullptr) {
    return ErrnoError(ENODEV, absl::StrFormat("no OST with index %d was ever registered", index));
  }
  return it->second.stub;
}

}  // namespace nacre::cluster
