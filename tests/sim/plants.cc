#include "tests/sim/plants.h"

#include "tests/sim/cluster.h"

namespace nacre::sim {

void SwitchOn(Plant plant, ClusterOptions* cluster) {
  MetadataOptions& metadata = cluster->metadata;
  ObjectOptions& object = cluster->object;
  metadata.plant_repeat_twice = plant == Plant::kRepeatTwice;
  metadata.plant_no_recall = plant == Plant::kNoRecall;
  metadata.plant_unlocked = plant == Plant::kUnlocked;
  metadata.plant_no_reserve = plant == Plant::kNoReserve;
  metadata.plant_patient_fence = plant == Plant::kPatientFence;
  object.plant_commit_before_data = plant == Plant::kCommitBeforeData;
  object.plant_early_sync = plant == Plant::kEarlySync;
  object.plant_forget_losses = plant == Plant::kForgetLosses;
  object.plant_leak_page = plant == Plant::kLeakPage;
  object.plant_early_ack = plant == Plant::kEarlyAck;
  object.plant_unagreed = plant == Plant::kUnagreed;
  object.plant_unfenced = plant == Plant::kUnfenced;
  object.plant_epochless = plant == Plant::kEpochless;
  cluster->member.plant_early_ack = plant == Plant::kEarlyAck;
  cluster->member.plant_unagreed = plant == Plant::kUnagreed;
  cluster->member.plant_unfenced = plant == Plant::kUnfenced;
  cluster->member.plant_epochless = plant == Plant::kEpochless;
  cluster->plant_early_read = plant == Plant::kEarlyRead;
  cluster->plant_early_call = plant == Plant::kEarlyCall;
  object.plant_blind_mend = plant == Plant::kBlindMend;
  metadata.plant_keep_intent = plant == Plant::kKeepIntent;
  cluster->client.plant_no_expiry = plant == Plant::kNoExpiry;
  cluster->client.plant_rename_first = plant == Plant::kRenameFirst;
  metadata.plant_uncovered = plant == Plant::kUncovered;
  cluster->client.plant_late_grant = plant == Plant::kLateGrant;
  cluster->client.plant_untold = plant == Plant::kUntold;
  cluster->client.plant_hasty = plant == Plant::kHasty;
  cluster->client.plant_early_release = plant == Plant::kEarlyRelease;
  cluster->client.plant_kept_data = plant == Plant::kKeptData;
  cluster->client.plant_shared_untold = plant == Plant::kSharedUntold;
  metadata.plant_unsettled_tail = plant == Plant::kUnsettledTail;
  metadata.plant_same_generation = plant == Plant::kSameGeneration;
  metadata.plant_overlooked = plant == Plant::kOverlooked;
  cluster->client.plant_unwitnessed = plant == Plant::kUnwitnessed;
  metadata.plant_listed = plant == Plant::kListed;
  metadata.plant_unasked_removal = plant == Plant::kUnaskedRemoval;
  metadata.plant_stays_complete = plant == Plant::kStaysComplete;
  metadata.plant_blind_migration = plant == Plant::kBlindMigration;
  metadata.plant_unrecalled_migration = plant == Plant::kUnrecalledMigration;
}

const std::map<std::string, Plant>& Plants() {
  static const std::map<std::string, Plant> plants = {
      {"none", Plant::kNone},
      {"repeat_twice", Plant::kRepeatTwice},
      {"commit_before_data", Plant::kCommitBeforeData},
      {"early_sync", Plant::kEarlySync},
      {"no_recall", Plant::kNoRecall},
      {"forget_losses", Plant::kForgetLosses},
      {"unlocked", Plant::kUnlocked},
      {"no_reserve", Plant::kNoReserve},
      {"patient_fence", Plant::kPatientFence},
      {"leak_page", Plant::kLeakPage},
      {"no_expiry", Plant::kNoExpiry},
      {"keep_intent", Plant::kKeepIntent},
      {"rename_first", Plant::kRenameFirst},
      {"uncovered", Plant::kUncovered},
      {"late_grant", Plant::kLateGrant},
      {"untold", Plant::kUntold},
      {"hasty", Plant::kHasty},
      {"early_release", Plant::kEarlyRelease},
      {"kept_data", Plant::kKeptData},
      {"shared_untold", Plant::kSharedUntold},
      {"unsettled_tail", Plant::kUnsettledTail},
      {"same_generation", Plant::kSameGeneration},
      {"overlooked", Plant::kOverlooked},
      {"early_ack", Plant::kEarlyAck},
      {"unagreed", Plant::kUnagreed},
      {"unfenced", Plant::kUnfenced},
      {"epochless", Plant::kEpochless},
      {"early_read", Plant::kEarlyRead},
      {"early_call", Plant::kEarlyCall},
      {"blind_migration", Plant::kBlindMigration},
      {"unrecalled_migration", Plant::kUnrecalledMigration},
      {"blind_mend", Plant::kBlindMend},
      {"unwitnessed", Plant::kUnwitnessed},
      {"listed", Plant::kListed},
      {"unasked_removal", Plant::kUnaskedRemoval},
      {"stays_complete", Plant::kStaysComplete},
  };
  return plants;
}

}  // namespace nacre::sim
