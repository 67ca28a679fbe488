// How an OSS gets in: what is checked, stored and told before it is answered.
#include <algorithm>
#include <cerrno>
#include <set>
#include <string_view>

#include "common/log.h"
#include "rpc/convert.h"
#include "rpc/versions.h"
#include "server/cluster/chain_keeper.h"
#include "server/cluster/ost_registry.h"

namespace nacre::cluster {
namespace {

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
  RETURN_IF_ERROR(CheckDistinct(request));
  for (const proto::OstInfo& info : request.osts()) RETURN_IF_ERROR(CheckMember(request, info));
  return OkStatus();
}

bool OstRegistry::IsChained(const proto::OstInfo& info) const {
  auto it = osts_.find(info.index());
  return info.copies() > 1 || (it != osts_.end() && it->second.chained);
}

Status OstRegistry::CheckMember(const proto::RegisterOssRequest& request, const proto::OstInfo& info) const {
  if (!IsChained(info)) return OkStatus();
  Arrival arrival{info, request.address(), request.instance()};
  return chains_->Check(arrival);
}

Status OstRegistry::CheckOwner(const proto::OstInfo& info) const {
  if (info.index() >= kMaxOsts) {
    return ErrnoError(
        EINVAL, absl::StrFormat("OST index %d is too high: the highest is %d", info.index(), kMaxOsts - 1));
  }
  if (info.uuid().empty())
    return ErrnoError(EINVAL, absl::StrFormat("OST %d registered without a uuid", info.index()));
  for (const auto& [index, record] : removed_) {
    if (index == info.index()) {
      return ErrnoError(EEXIST,
                        absl::StrFormat("OST index %d is that of an OST that has been removed, %s (%s) "
                                        "cannot have it: give the new OST an index of its own",
                                        index, info.uuid(), info.directory()));
    }
    if (record.Find(info.uuid()) != nullptr) {
      return ErrnoError(EEXIST, absl::StrFormat("OST %s (%s) has been removed as OST %d, it cannot come back "
                                                "as %d: make a new one in an empty directory",
                                                info.uuid(), info.directory(), index, info.index()));
    }
  }
  for (const auto& [index, ost] : osts_) {
    if (index == info.index() && !ost.chained && ost.record.head().uuid != info.uuid()) {
      return ErrnoError(EEXIST,
                        absl::StrFormat("OST index %d belongs to %s for ever, %s (%s) cannot have "
                                        "it: give the new OST an index of its own",
                                        index, ost.record.head().uuid, info.uuid(), info.directory()));
    }
    if (index != info.index() && (ost.chained ? chains_->Record(index) : ost.record).Find(info.uuid())) {
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
  std::map<OstIndex, OstRecord> records;
  {
    std::lock_guard lock(mutex_);
    for (const proto::OstInfo& info : request.osts()) {
      if (IsChained(info)) continue;
      OstMember member{info.uuid(), request.address(), info.total_bytes()};
      OstRecord& record = records[info.index()];
      if (auto known = osts_.find(info.index()); known != osts_.end()) record.use = known->second.use;
      record.members.push_back(std::move(member));
      batch.Put(OstKey(info.index()), EncodeOst(record));
    }
  }
  if (records.empty()) co_return OkStatus();
  CO_RETURN_IF_ERROR(co_await store_.Commit(std::move(batch)));
  std::lock_guard lock(mutex_);
  ResetUsable();
  for (const proto::OstInfo& info : request.osts()) {
    if (IsChained(info)) continue;
    Ost& ost = osts_[info.index()];
    ost.record = records[info.index()];
    ost.info = info;
    CO_RETURN_IF_ERROR(PointStub(&ost));
  }
  co_return OkStatus();
}

Task<Status> OstRegistry::Admit(const proto::RegisterOssRequest& request) {
  std::vector<OstIndex> alone;  // OSTs of one member
  {
    std::lock_guard lock(mutex_);
    for (const proto::OstInfo& info : request.osts()) {
      if (!IsChained(info)) alone.push_back(info.index());
    }
  }
  if (alone.empty()) co_return OkStatus();
  CO_RETURN_IF_ERROR(co_await store_.Sync());
  for (bool up = false; !up;) {
    const uint64_t fences = this->fences();
    for (OstIndex index : alone) {
      if (admit_) CO_RETURN_IF_ERROR(co_await admit_(index));
    }
    CO_ASSIGN_OR_RETURN(up, MarkUp(request, fences));
  }
  co_return OkStatus();
}

// An OST that has had one member so far begins with that one.
void OstRegistry::AdoptChain(OstIndex index) {
  std::lock_guard lock(mutex_);
  auto it = osts_.find(index);
  if (it == osts_.end() || it->second.chained) return;
  it->second.chained = true;
  it->second.up = false;
  ResetUsable();
  chains_->Load(index, it->second.record);
}

Status OstRegistry::StartChain(OstIndex index, const Executor& executor) {
  {
    std::lock_guard lock(mutex_);
    ResetUsable();
    Ost& ost = osts_[index];
    ost.chained = true;
    ost.record = chains_->Record(index);
    if (ost.stub == nullptr) RETURN_IF_ERROR(PointStub(&ost));
  }
  Changed();
  return chains_->Start(index, executor);
}

Task<Status> OstRegistry::EnterChains(const proto::RegisterOssRequest& request) {
  const Executor executor = co_await CurrentExecutor();
  for (const proto::OstInfo& info : request.osts()) {
    if (!IsChained(info)) continue;
    AdoptChain(info.index());
    Arrival arrival{info, request.address(), request.instance()};
    CO_RETURN_IF_ERROR(co_await chains_->Enter(std::move(arrival)));
    CO_RETURN_IF_ERROR(StartChain(info.index(), executor));
  }
  co_return OkStatus();
}

Task<Status> OstRegistry::AwaitChains(const proto::RegisterOssRequest& request) {
  for (const proto::OstInfo& info : request.osts()) {
    if (!chains_->Has(info.index())) continue;
    std::string uuid = info.uuid();
    CO_RETURN_IF_ERROR(co_await chains_->AwaitEntry(info.index(), std::move(uuid)));
  }
  co_return OkStatus();
}

// An OSS that is refused for its version asks again for as long as it runs: that is said once.
StatusOr<uint32_t> OstRegistry::CheckVersion(const proto::RegisterOssRequest& request) {
  const VersionRange theirs = RangeOf(request.version(), request.oldest_version(), kUnnumberedServerVersion);
  const std::string they = absl::StrCat("OSS ", request.address());
  StatusOr<uint32_t> version = CommonVersion(theirs, kServerVersions, they, "the MDS");
  std::lock_guard lock(mutex_);
  if (version.ok()) {
    refused_.erase(request.address());
  } else if (refused_.size() < kMaxOsts && refused_.insert(request.address()).second) {
    LogWarning("%s", std::string(version.status().message()));
  }
  return version;
}

Task<proto::RegisterOssReply> OstRegistry::Register(proto::RegisterOssRequest request) {
  proto::RegisterOssReply reply;
  reply.set_mdt_epoch(options_.epoch);
  const StatusOr<uint32_t> version = CheckVersion(request);
  if (!version.ok()) {
    *reply.mutable_status() = ToProto(version.status());
    co_return reply;
  }
  reply.set_version(*version);
  auto guard = co_await registering_.Lock();
  {
    std::lock_guard lock(mutex_);
    const std::vector<OstIndex> removed = TakeRemoved(request.mutable_osts());
    reply.mutable_removed_osts()->Assign(removed.begin(), removed.end());
  }
  Status status;  // a server all of whose OSTs have been removed is answered, and serves nobody
  if (!request.osts().empty() || reply.removed_osts().empty()) status = co_await Store(request);
  if (status.ok()) status = co_await EnterChains(request);
  if (status.ok()) status = co_await Admit(request);
  guard.Release();
  if (status.ok()) status = co_await AwaitChains(request);
  if (!status.ok()) {
    LogWarning("OSS %s was not registered: %s", request.address(), std::string(status.message()));
    *reply.mutable_status() = ToProto(status);
    co_return reply;
  }
  const bool chained = std::ranges::any_of(
      request.osts(), [this](const proto::OstInfo& info) { return chains_->Has(info.index()); });
  const Duration lease = chained ? ChainLease(options_.heartbeat) : options_.lease();
  const Duration interval = chained ? ChainInterval(options_.heartbeat) : options_.heartbeat;
  reply.set_cluster_uuid(options_.cluster_uuid);
  reply.set_heartbeat_ms(
      static_cast<uint32_t>(std::chrono::ceil<std::chrono::milliseconds>(interval).count()));
  reply.set_lease_ms(static_cast<uint32_t>(std::chrono::floor<std::chrono::milliseconds>(lease).count()));
  co_return reply;
}

StatusOr<bool> OstRegistry::MarkUp(const proto::RegisterOssRequest& request, uint64_t fences) {
  {
    std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(ended_.CheckRuns(request.instance()));
    if (fences != fences_) return false;
    ResetUsable();
    for (const proto::OstInfo& info : request.osts()) {
      Ost& ost = osts_[info.index()];
      if (ost.chained) continue;
      ost.up = !info.failing();
      ost.instance = request.instance();
      ost.ended = false;
      ost.heard = clock_.Now();
      LogInfo("OST %d (%s) is %s at %s", info.index(), info.uuid(), ost.up ? "up" : "there, but failing",
              request.address());
    }
    ++version_;
  }
  Announce();
  return true;
}

}  // namespace nacre::cluster
