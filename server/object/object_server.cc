#include "server/object/object_server.h"

#include <cerrno>

#include "common/log.h"
#include "server/object/server_core.h"

namespace nacre {
namespace {

using ost::ServerCore;

class ObjectServerImpl : public ObjectServer {
 public:
  ObjectServerImpl(std::shared_ptr<ServerCore> core, std::unique_ptr<Listener> listener)
      : core_(std::move(core)), listener_(std::move(listener)) {}

  // Without Stop this is a crash: whatever is still under way changes nothing any more.
  ~ObjectServerImpl() override {
    core_->BeginStop();
    for (ost::Target& target : core_->targets) target.store->Close();
    listener_.reset();
  }

  std::string address() const override { return core_->address; }
  uint64_t instance() const override { return core_->instance; }
  const OneShot<Status>& refused() const override { return core_->refused; }
  const OneShot<Status>& begin_anew() const override { return core_->begin_anew; }

  Task<Status> Stop() override {
    core_->BeginStop();
    listener_.reset();
    co_await core_->Drained();
    Status result = OkStatus();
    for (ost::Target& target : core_->targets) {
      // The second sync lets go of what the first has retired, so that a restart has nothing to verify.
      Status synced;
      for (int i = 0; i < 2; ++i) synced.Update(co_await target.store->Maintain());
      if (synced.ok()) synced = co_await target.store->EndClean();
      result.Update(synced);
      target.store->Close();
    }
    co_return result;
  }

 private:
  std::shared_ptr<ServerCore> core_;
  std::unique_ptr<Listener> listener_;
};

Task<StatusOr<proto::ReportChainReply>> ReportChain(std::shared_ptr<ServerCore> core,
                                                    proto::ReportChainRequest request) {
  CO_ASSIGN_OR_RETURN(proto::ReportChainReply reply,
                      co_await core->environment.cluster->ReportChain(std::move(request)));
  CO_RETURN_IF_ERROR(CheckMdtEpoch(*core, reply.mdt_epoch()));
  co_return reply;
}

// The core has the chain, and outlives its calls.
ost::Chain::Report ReportBy(ServerCore* core) {
  return [core](proto::ReportChainRequest request) {
    return ReportChain(core->shared_from_this(), std::move(request));
  };
}

Task<Status> OpenTargets(ServerCore* core, std::vector<OstDevices> osts) {
  ost::StoreOptions options;
  options.plant_commit_before_data = core->options.plant_commit_before_data;
  options.plant_early_sync = core->options.plant_early_sync;
  options.plant_blind_mend = core->options.plant_blind_mend;
  if (!core->options.plant_forget_losses) options.boot = core->options.boot;
  std::string cluster;
  for (size_t i = 0; i < osts.size(); ++i) {
    if (core->targets.size() > 0 && core->Find(osts[i].index) != nullptr) {
      co_return ErrnoError(EINVAL, absl::StrCat("OST index ", osts[i].index,
                                                " is given twice; the second time for ", osts[i].directory));
    }
    OstDevices devices = osts[i];
    auto slot = static_cast<uint32_t>(i);
    auto store =
        co_await ost::ObjectStore::Open(devices, core->pool, slot, &core->environment.random, options);
    if (!store.ok()) co_return store.status();
    ost::Target target;
    target.store = *std::move(store);
    target.sessions = std::make_unique<ost::Sessions>(
        devices.store, &target.store->journal(), &target.store->space(), &core->environment.clock,
        core->environment.cluster != nullptr && !core->options.plant_unfenced ? &core->lease : nullptr);
    CO_RETURN_IF_ERROR(target.sessions->Load());
    target.copies = devices.copies;
    if (devices.copies > 1) {
      target.chain =
          std::make_unique<ost::Chain>(core, target.store.get(), target.sessions.get(), ReportBy(core));
      target.store->journal().SetReplicator(target.chain.get());
    }
    target.scrubber = std::make_unique<ost::Scrubber>(core, target.store.get(), target.chain.get());
    CO_RETURN_IF_ERROR(target.scrubber->Load());
    const std::string& uuid = target.store->superblock().cluster_uuid;
    if (!cluster.empty() && !uuid.empty() && uuid != cluster) {
      co_return absl::FailedPreconditionError(
          absl::StrCat(osts[i].directory, " belongs to cluster ", uuid, ", the OSTs before it to ", cluster));
    }
    if (!uuid.empty()) cluster = uuid;
    core->targets.push_back(std::move(target));
  }
  // An epoch that one target has heard of holds for all of them.
  uint64_t mdt_epoch = 0;
  for (const ost::Target& target : core->targets)
    mdt_epoch = std::max(mdt_epoch, target.sessions->mdt_epoch());
  co_return HearOfPrimary(*core, mdt_epoch);
}

}  // namespace

Task<StatusOr<std::unique_ptr<ObjectServer>>> ObjectServer::Start(ObjectEnvironment environment,
                                                                  std::vector<OstDevices> osts,
                                                                  ObjectOptions options) {
  Executor executor = environment.executor;
  auto core = std::make_shared<ServerCore>(std::move(environment), std::move(options));
  CO_ASSIGN_OR_RETURN(core->pool,
                      ost::BufferPool::Create(core->options.pool_bytes, &core->environment.transport));
  if (core->options.plant_leak_page) core->pool->admission().PlantLeak();
  Status opened = co_await OpenTargets(core.get(), std::move(osts));
  if (!opened.ok()) co_return opened;
  do {
    core->instance = core->environment.random.Next();
  } while (core->instance == 0);
  CallHandler handler = [core](std::shared_ptr<IncomingCall> call) {
    return ost::HandleCall(core, std::move(call));
  };
  CO_ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener,
                      core->environment.transport.Listen(core->options.listen, std::move(handler)));
  core->address = core->options.advertise.empty() ? listener->address() : core->options.advertise;
  for (size_t i = 0; i < core->targets.size(); ++i) Spawn(executor, ost::RunMaintenance(core, i));
  for (const ost::Target& target : core->targets) target.scrubber->Start();
  if (core->environment.cluster != nullptr) Spawn(executor, ost::RunHeartbeats(core));
  LogInfo("serving %d OSTs at %s", core->targets.size(), core->address);
  std::unique_ptr<ObjectServer> server = std::make_unique<ObjectServerImpl>(core, std::move(listener));
  co_return server;
}

}  // namespace nacre
