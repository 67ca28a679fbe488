// Ends what goes on by itself, so that the stores can be checked.

#include "server/metadata/keys.h"
#include "tests/sim/scenario.h"

namespace nacre::sim {

void Scenario::EndMoves() {
  if (mover_) mover_->Stop();
  if (mover_ && rebalances_) EndRebalance();
  if (mover_ || shape_.cluster.copies > 1) AwaitNothingToDestroy();
}

// Objects of deleted and of moved files are destroyed some seconds later, and members of an OST that is
// stopped in the middle of that differ: those behind have destroyed an object, and the head refuses the last
// word.
void Scenario::AwaitNothingToDestroy() {
  auto under_way = [this] {
    for (const mds::Table table : {mds::Table::kNewObjects, mds::Table::kMoved, mds::Table::kDestroyAt}) {
      const std::string begin = mds::TableKey(table);
      auto records = cluster_.mdt().Scan(begin, PrefixEnd(begin), 1);
      if (!records.ok() || !records->empty()) return true;
    }
    return false;
  };
  for (Duration waited{0}; under_way() && waited < kPatience && !failed(); waited += 500ms) Work(500ms);
  if (!failed() && under_way()) world_.Fail("hang: what files have left is not destroyed");
}

// Else it would go on for as long as it finds something.
void Scenario::EndRebalance() {
  Work(1s);  // what the administrator has asked for last is with the MDS then
  const auto runs = [this] { return cluster_.mdt().Get(mds::TableKey(mds::Table::kRebalance)).ok(); };
  proto::AdminRequest stop;
  stop.mutable_rebalance()->set_action(proto::RebalanceOsts::STOP);
  for (Duration waited{0}; runs() && waited < kPatience && !failed(); waited += 500ms) {
    if (cluster_.serves())
      Spawn(cluster_.process(cluster_.mds())->executor(), cluster_.metadata().Administer(stop),
            [](const proto::AdminReply&) {});
    Work(500ms);
  }
  if (!failed() && runs()) world_.Fail("hang: spreading files over OSTs is not stopped");
}

}  // namespace nacre::sim
