#include "tests/sim/mover.h"

#include "rpc/convert.h"

namespace nacre::sim {
namespace {

constexpr int kQuestions = 60;  // then the move is left to itself, which gives it up
constexpr uint64_t kStripeUnit = 64 << 10;

}  // namespace

void Mover::Start(bool rebalances) {
  process_ = world_.Start(cluster_.visitor() + 1, "mover");
  Spawn(process_->executor(), Run(this, process_));
  if (rebalances) Spawn(process_->executor(), RunRebalances(this, process_));
}

void Mover::Stop() { world_.Kill(process_); }

Task<void> Mover::Run(Mover* mover, Process* process) {
  std::shared_ptr<ClusterChannel> channel = mover->cluster_.ChannelToMdses(process);
  for (;;) {
    co_await mover->world_.clock().Sleep(std::chrono::milliseconds(mover->random_.Below(400)));
    if (mover->random_.OneIn(6))
      co_await mover->ChangeDrain(channel);
    else
      co_await mover->MoveSome(channel);
  }
}

// One that somebody has open.
Fid Mover::PickFile() {
  std::vector<Fid> files;
  for (int i = 0; i < cluster_.options().clients; ++i) {
    const ClientState* client = workload_.client(i);
    if (client == nullptr) continue;
    for (const OpenFile& file : client->files) {
      if (workload_.model().Exists(file.inode)) files.push_back(workload_.model().inode(file.inode).fid);
    }
  }
  return files.empty() ? Fid{} : files[random_.Below(files.size())];
}

Task<void> Mover::MoveSome(std::shared_ptr<ClusterChannel> channel) {
  const Fid file = PickFile();
  if (!file) co_return;
  proto::AdminRequest request;
  *request.mutable_migrate()->mutable_fid() = ToProto(file);
  if (!random_.OneIn(3)) {
    proto::TemplateComponent* component = request.mutable_migrate()->mutable_layout()->add_components();
    component->set_end(~uint64_t{0});
    component->set_stripe_count(1 + static_cast<int32_t>(random_.Below(3)));
    component->set_stripe_size(static_cast<uint32_t>(kStripeUnit * (1 + random_.Below(2))));
  }
  for (int i = 0; i < kQuestions; ++i) {
    auto reply = co_await channel->Administer(request);
    if (!reply.ok()) {
      co_await world_.clock().Sleep(std::chrono::milliseconds(300));
      continue;
    }
    if (reply->status().error() == 0 && !reply->migrate().done()) continue;
    if (reply->status().error() == 0) ++moved_;
    world_.Trace("mover: %s: %s", file.ToString(),
                 reply->status().error() == 0 ? "moved" : reply->status().message());
    co_return;
  }
}

// Of one OST at a time, for a while.
Task<void> Mover::ChangeDrain(std::shared_ptr<ClusterChannel> channel) {
  proto::AdminRequest request;
  proto::ManageOst* manage = request.mutable_manage_ost();
  manage->set_action(draining_ ? proto::ManageOst::UNDRAIN : proto::ManageOst::DRAIN);
  manage->set_ost(
      draining_.value_or(static_cast<OstIndex>(random_.Below(static_cast<uint64_t>(cluster_.osts())))));
  auto reply = co_await channel->Administer(request);
  if (!reply.ok() || reply->status().error() != 0) co_return;
  world_.Trace("mover: OST %d is %s", manage->ost(), draining_ ? "drained no more" : "being drained");
  if (draining_)
    draining_.reset();
  else
    draining_ = manage->ost();
}

Task<void> Mover::RunRebalances(Mover* mover, Process* process) {
  std::shared_ptr<ClusterChannel> channel = mover->cluster_.ChannelToMdses(process);
  for (;;) {
    co_await mover->world_.clock().Sleep(std::chrono::milliseconds(mover->rebalances_.Below(4000)));
    co_await mover->ChangeRebalance(channel);
  }
}

// Of files that are small for an OST: hundredths of a point are what they make.
Task<void> Mover::ChangeRebalance(std::shared_ptr<ClusterChannel> channel) {
  proto::AdminRequest request;
  proto::RebalanceOsts* rebalance = request.mutable_rebalance();
  const bool stops = rebalances_.OneIn(8);
  rebalance->set_action(stops ? proto::RebalanceOsts::STOP : proto::RebalanceOsts::START);
  rebalance->set_threshold(1 + static_cast<uint32_t>(rebalances_.Below(3)));
  auto reply = co_await channel->Administer(request);
  if (!reply.ok() || reply->status().error() != 0) co_return;
  NoteRebalance(reply->rebalance());
  world_.Trace("mover: %s, %s, %d files moved; %s", stops ? "stop" : "start",
               reply->rebalance().running() ? "running" : "not running", reply->rebalance().moved_files(),
               reply->rebalance().problem());
}

void Mover::NoteRebalance(const proto::RebalanceState& state) {
  // The run goes on behind a restart of the MDS, which counts from 0.
  if (std::exchange(run_, state.run()) != state.run() || state.moved_files() < moved_of_run_)
    moved_of_run_ = 0;
  rebalanced_ += state.moved_files() - std::exchange(moved_of_run_, state.moved_files());
}

}  // namespace nacre::sim
