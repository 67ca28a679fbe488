// Many seeds, the determinism of each, and the planted bugs, which must be found. NACRE_SIM_SEEDS says how
// many (tests/run: 1000).

#include <gtest/gtest.h>

#include <cstdlib>

#include "common/log.h"
#include "tests/sim/scenario.h"

namespace nacre::sim {
namespace {

class Simulation : public testing::Test {
 protected:
  Simulation() { SetLogLevel(static_cast<LogLevel>(static_cast<int>(LogLevel::kError) + 1)); }
  ~Simulation() override { SetLogLevel(LogLevel::kInfo); }

  static uint64_t Seeds() {
    const char* wanted = std::getenv("NACRE_SIM_SEEDS");
    return wanted == nullptr ? 25 : std::strtoull(wanted, nullptr, 10);
  }
};

TEST_F(Simulation, EverySeedHolds) {
  uint64_t operations = 0;
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    RunOptions options;
    options.seed = seed;
    RunResult result = RunSeed(options);
    operations += result.operations;
    EXPECT_EQ(result.failure, "") << "seed " << seed << "; build/bin/nacre-sim --trace --seed " << seed;
    if (HasFailure()) break;
  }
  RecordProperty("operations", static_cast<int>(operations));
}

// A file closed while its last bytes were under way, named as closed to an MDS that asked meanwhile (71117);
// a removal that was lost, and the name made anew (1153). The seeds are of a version whose faults came at any
// time. The client has changed since: 71117 holds now even if Core::Held leaves out files that are `closing`.
TEST_F(Simulation, SeedsThatFailedOnce) {
  for (uint64_t seed : {1153, 71117}) {
    RunOptions options;
    options.seed = seed;
    options.plain = true;
    EXPECT_EQ(RunSeed(options).failure, "") << "seed " << seed;
  }
  // Of the simulation as it is now, which may choose otherwise by the same numbers.
  for (uint64_t seed : {10318, 11518, 11538, 12419, 1001536}) {
    RunOptions options;
    options.seed = seed;
    EXPECT_EQ(RunSeed(options).failure, "") << "seed " << seed;
  }
}

TEST_F(Simulation, SeedsThatFailedLater) {
  struct Failed {
    RunOptions options;
    const char* why;
  };
  const Failed all[] = {
      {{.seed = 629000473, .mdses = 3},
       "a loss of power ended a client that could not send: the MDSes were away"},
      {{.seed = 734001662}, "one took what a client had sent late, since the OSS had been away"},
      {{.seed = 11000047, .mdses = 3},
       "a lease was named that the MDS had ended, whose answer was lost with the stream"},
      {{.seed = 624002243}, "a rename out of a forgotten directory left late data under its lease"},
      {{.seed = 612000681, .copies = 2, .head_reads = true},
       "a late copy of what fills a member came behind the next write"},
      {{.seed = 801000224}, "a session that had ended was granted a lease"},
      {{.seed = 825000421}, "an append went past the cache in which its file was being worked on"},
      {{.seed = 886000896}, "READ of a file ended with WRITE of its late data"},
      {{.seed = 888000367, .clients = 2}, "pages were kept while the file had a second link"},
      {{.seed = 4715000147, .clients = 2, .mdses = 2},
       "a create promised the kernel what it was told, and waited a second before it answered"},
      {{.seed = 872000090, .clients = 2}, "an fdatasync left at the MDT what others had changed"},
      {{.seed = 871001207}, "times are not told by an fdatasync"},
      {{.seed = 919000085, .clients = 2}, "a lease on its way back was taken to protect later data"},
      {{.seed = 916000237, .copies = 2, .head_reads = true}, "an fsync let go of what a write held"},
      {{.seed = 929000122}, "a directory that was let go took the lease of another one with it"},
      {{.seed = 952000614, .copies = 2, .head_reads = true},
       "a look by FID went past the lease that its maker had from birth"},
      {{.seed = 923000094}, "two that write to what both have mapped waited for each other"},
      {{.seed = 31000399, .clients = 2}, "one flush that failed failed a write behind an append"},
      {{.seed = 9000815, .clients = 3},
       "READ of a file on its way back was granted once more, and went back"},
      {{.seed = 72054000408, .clients = 2, .copies = 2, .mdses = 3, .scrub = true},
       "an append came before the MDS knew how far an evicted client had written"},
      {{.seed = 74012000100, .copies = 2, .mdses = 3, .growth = true, .rebalance = true, .scrub = true},
       "a head had given the other member up, and lost its power before that was known"},
      {{.seed = 76051000104, .clients = 3, .mdses = 3},
       "an answer was older than what one had changed meanwhile who shared the file"},
      {{.seed = 72012000294, .clients = 2}, "a write that was lost lay under an append"},
      {{.seed = 822000787, .event = "dead_oss"}, "a truncation went on long after its OST was back"},
      {{.seed = 943000664, .event = "dead_oss", .clients = 2},
       "late data of a removed file made objects anew"},
      {{.seed = 1109000262}, "pages that were dropped during a write were filled with what was before it"},
      {{.seed = 892000052, .copies = 2, .head_reads = true},
       "an answer to a dead head was taken for a sign of life"},
      {{.seed = 952000382, .copies = 2, .head_reads = true},
       "a filled member answered for what the filling had taken back"},
      {{.seed = 1219000065, .copies = 2, .head_reads = true},
       "a member refused what nobody waits for, and the head asked for ever"},
      {{.seed = 1213000386, .copies = 3, .head_reads = true}, "the same"},
      {{.seed = 1227000465, .copies = 2, .head_reads = true},
       "blocks of an object that was destroyed made it anew at the member"},
      {{.seed = 1213000596, .copies = 3, .head_reads = true},
       "a head that knew an earlier epoch gave up what others had done"},
      {{.seed = 1205000626, .copies = 3, .head_reads = true}, "the same"},
      {{.seed = 1305000148, .copies = 3, .head_reads = true},
       "what a member had done already did not reach the one behind it"},
      {{.seed = 1313000593, .copies = 3, .head_reads = true},
       "a member answered what its head did with another version"},
      {{.seed = 1315000575, .clients = 2, .copies = 2, .head_reads = true},
       "all waited for a member that could not join"},
      {{.seed = 8800133, .copies = 3, .head_reads = true}, "a member stayed ahead of a new head for good"},
      {{.seed = 1406000323, .mdses = 3}, "a lease came with what was true before another's change"},
      {{.seed = 1223000028, .copies = 2, .head_reads = true, .mdses = 3},
       "an OSS believed an MDS only when what waited for its answer had ended"},
      {{.seed = 7701113, .copies = 3, .head_reads = true},
       "what was under way when a third member joined never reached it"},
      {{.seed = 7702026, .copies = 3, .head_reads = true}, "the same"},
      {{.seed = 1519000157, .copies = 2, .head_reads = true},
       "a file had a second name for a while, and what its lease said from before was believed after"},
      {{.seed = 1748000859, .copies = 2, .head_reads = true},
       "a map that came behind newer ones was believed"},
      {{.seed = 1757000110, .copies = 2, .head_reads = true}, "the same"},
      {{.seed = 1732000054, .copies = 2, .head_reads = true},
       "a member that had yet to be filled said that no power had been lost"},
      {{.seed = 1753000812, .copies = 2, .head_reads = true, .mdses = 3},
       "a piece of a member's filling came once more behind the next, while another call took long"},
      {{.seed = 1853000624, .copies = 3, .head_reads = true},
       "a lease whose name was lost went back before the data under it"},
      {{.seed = 1860000156, .copies = 3, .head_reads = true},
       "a process that had lost power was told that it was the head"},
      {{.seed = 1842001281, .copies = 2, .head_reads = true},
       "the disks of the last copy were replaced: the scenario"},
      {{.seed = 820000029, .clients = 2, .growth = true},
       "a late read found objects that its file had left, and a write as late had made anew"},
      {{.seed = 810000512, .growth = true},
       "a write over the end of a file that moved was there in part: the model"},
      {{.seed = 820001699, .clients = 2, .growth = true}, "the same"},
      {{.seed = 810002484, .growth = true},
       "a client alone was evicted for a move while it waited for an OST"},
      {{.seed = 880000003, .copies = 2, .head_reads = true, .growth = true},
       "what a file had left was destroyed when servers were stopped for good: the scenario"},
      {{.seed = 34000186, .copies = 3, .head_reads = true},
       "a client was evicted while its truncation waited for a slow chain, and the lease for that"},
      {{.seed = 13000160, .growth = true, .rebalance = true},
       "an fsync let go of the room of bytes that were written meanwhile"},
      {{.seed = 2309000232, .copies = 2, .head_reads = true, .scrub = true},
       "a filling met a bad block, and gave up the member that had it"},
      {{.seed = 2314004714, .event = "bad_blocks", .copies = 2, .head_reads = true, .scrub = true},
       "a head with a bad block did not ask the member that it was filling"},
      {{.seed = 2314003977, .event = "bad_blocks", .copies = 2, .head_reads = true, .scrub = true},
       "the same"},
      {{.seed = 3914000976, .event = "bad_blocks", .copies = 2, .scrub = true},
       "what a member had in place of a bad block was damaged on its way, and not asked for again"},
      {{.seed = 4114002286, .event = "bad_blocks", .copies = 2, .scrub = true},
       "a member was given up because one block was damaged on its way to it"},
      {{.seed = 5215000644, .copies = 2, .mdses = 3, .scrub = true},
       "a lease that came while a rename was under way covered the file that it replaced"},
      {{.seed = 5306000861, .event = "bad_blocks", .copies = 2, .scrub = true},
       "a bad block was given up in the moment in which the other member was away"},
      {{.seed = 5314001188, .event = "bad_blocks", .copies = 2, .scrub = true}, "the same"},
      {{.seed = 705263149180, .copies = 2, .scrub = true},
       "a bad block of a member whose process ended was taken for a loss of power that nobody was told of"},
      {{.seed = 5311000419, .mdses = 3},
       "a client asked a frozen MDS for so long that its session ended at the one that served"},
      {{.seed = 5500007000113, .copies = 3, .mdses = 2, .growth = true, .rebalance = true, .scrub = true},
       "a primary that had been cut off evicted all before it read what they had said"},
      {{.seed = 5600010000235, .copies = 3, .mdses = 3, .scrub = true},
       "a change that was handed on and had failed was not in doubt any more"},
      {{.seed = 5600015000467, .copies = 3, .mdses = 2, .growth = true, .rebalance = true, .scrub = true},
       "the same"},
      {{.seed = 5800011000149, .copies = 3, .mdses = 2, .growth = true, .rebalance = true, .scrub = true},
       "a file's lease was asked back before the client knew that it had it, and went back before the data"},
  };
  for (const Failed& failed : all)
    EXPECT_EQ(RunSeed(failed.options).failure, "") << "seed " << failed.options.seed << ": " << failed.why;
}

TEST_F(Simulation, ASeedReplaysExactly) {
  for (uint64_t seed : {3, 11, 17}) {
    RunOptions options;
    options.seed = seed;
    RunResult first = RunSeed(options), second = RunSeed(options);
    EXPECT_EQ(first.trace_hash, second.trace_hash) << "seed " << seed;
    EXPECT_EQ(first.steps, second.steps) << "seed " << seed;
    EXPECT_GT(first.operations, 0u);
  }
}

// The first seed that fails with the planted bug and holds without it; 0: none of those that may be tried.
uint64_t FirstToFind(Plant plant, const char* event = "", int copies = 1, int mdses = 1, uint64_t from = 1,
                     bool growth = false) {
  constexpr uint64_t kLast = 2000;
  for (uint64_t seed = from; seed <= kLast; ++seed) {
    RunOptions options;
    options.seed = seed;
    options.event = event;
    options.plant = plant;
    options.copies = copies;
    options.mdses = mdses;
    options.growth = growth;
    options.scrub = plant == Plant::kBlindMend;
    if (RunSeed(options).failure.empty()) continue;
    options.plant = Plant::kNone;
    if (RunSeed(options).failure.empty()) return seed;
  }
  return 0;
}

TEST_F(Simulation, FindsARepeatedRequestAppliedTwice) { EXPECT_NE(FirstToFind(Plant::kRepeatTwice), 0u); }

TEST_F(Simulation, FindsAChecksumCommittedBeforeItsData) {
  EXPECT_NE(FirstToFind(Plant::kCommitBeforeData), 0u);
}

TEST_F(Simulation, FindsAStalePage) { EXPECT_NE(FirstToFind(Plant::kNoRecall), 0u); }

// A stale page of a mapping, and (of a client that was alone) a stale name or attribute.
TEST_F(Simulation, FindsWhatIsAnsweredFromCachesWhenTheLeasesHaveRunOut) {
  EXPECT_NE(FirstToFind(Plant::kNoExpiry), 0u);
}

TEST_F(Simulation, FindsALossThatFsyncDoesNotTell) { EXPECT_NE(FirstToFind(Plant::kForgetLosses), 0u); }

TEST_F(Simulation, FindsAnFsyncAcknowledgedEarly) { EXPECT_NE(FirstToFind(Plant::kEarlySync), 0u); }

TEST_F(Simulation, FindsChangesThatMeetWithoutALock) { EXPECT_NE(FirstToFind(Plant::kUnlocked), 0u); }

TEST_F(Simulation, FindsAnIntentThatIsNotDropped) { EXPECT_NE(FirstToFind(Plant::kKeepIntent), 0u); }

TEST_F(Simulation, FindsAFileThatTakesAnothersPlaceWithoutItsBytes) {
  EXPECT_NE(FirstToFind(Plant::kRenameFirst), 0u);
}

TEST_F(Simulation, FindsAChangeThatDoesNotWaitForLeases) { EXPECT_NE(FirstToFind(Plant::kUncovered), 0u); }

TEST_F(Simulation, FindsHandlesThatTheMdsWasNotToldOf) { EXPECT_NE(FirstToFind(Plant::kUntold), 0u); }

TEST_F(Simulation, FindsALeaseThatGoesBackBeforeTheKernelHasForgotten) {
  EXPECT_NE(FirstToFind(Plant::kHasty), 0u);
}

TEST_F(Simulation, FindsALeaseGivenBackBeforeWhatWasAnsweredUnderIt) {
  EXPECT_NE(FirstToFind(Plant::kEarlyRelease), 0u);
}

TEST_F(Simulation, FindsALeaseGivenBackWithDataHeldBackUnderIt) {
  EXPECT_NE(FirstToFind(Plant::kKeptData), 0u);
}

TEST_F(Simulation, FindsAFileThatIsSharedNoMoreBeforeItIsToldOf) {
  EXPECT_NE(FirstToFind(Plant::kSharedUntold), 0u);
}

TEST_F(Simulation, FindsALayoutThatComesBeforeTheTailIsWritten) {
  EXPECT_NE(FirstToFind(Plant::kUnsettledTail), 0u);
}

TEST_F(Simulation, FindsAWriteThatATailIsWrittenOver) { EXPECT_NE(FirstToFind(Plant::kSameGeneration), 0u); }

TEST_F(Simulation, FindsAReadThatDoesNotWaitForWhoHasChangedIt) {
  EXPECT_NE(FirstToFind(Plant::kOverlooked), 0u);
}

TEST_F(Simulation, FindsARemovalThatDoesNotAskWhoHasTheFile) {
  EXPECT_NE(FirstToFind(Plant::kUnaskedRemoval), 0u);
}

TEST_F(Simulation, FindsNamesThatAreForgotten) { EXPECT_NE(FirstToFind(Plant::kStaysComplete), 0u); }

TEST_F(Simulation, FindsAListingOfWhatAnotherChanges) { EXPECT_NE(FirstToFind(Plant::kListed), 0u); }

TEST_F(Simulation, FindsALeaseThatIsTakenOverAfterItsRevocation) {
  EXPECT_NE(FirstToFind(Plant::kLateGrant), 0u);
}

TEST_F(Simulation, FindsAFullMdtThatDoesNotStart) { EXPECT_NE(FirstToFind(Plant::kNoReserve), 0u); }

TEST_F(Simulation, FindsAPageThatIsNotGivenBack) { EXPECT_NE(FirstToFind(Plant::kLeakPage), 0u); }

TEST_F(Simulation, FindsAHeadThatAcknowledgesBeforeTheOthersHaveIt) {
  EXPECT_NE(FirstToFind(Plant::kEarlyAck, "", 2), 0u);
}

TEST_F(Simulation, FindsAMemberLeftBehindWithoutTheMgs) {
  EXPECT_NE(FirstToFind(Plant::kUnagreed, "", 2), 0u);
}

TEST_F(Simulation, FindsAnOldHeadThatIsNotFenced) {
  // Those before show nothing, and take minutes; so for others below.
  EXPECT_NE(FirstToFind(Plant::kUnfenced, "dead_member", 2, 1, 105), 0u);
}

TEST_F(Simulation, FindsAMemberThatIsTakenForUpToDate) {
  EXPECT_NE(FirstToFind(Plant::kEpochless, "members_lose_power", 2), 0u);
}

TEST_F(Simulation, FindsAnAnswerOfAMemberThatIsLeftBehind) {
  EXPECT_NE(FirstToFind(Plant::kUnwitnessed, "cut_off_member", 2, 1, 355), 0u);
}

// The first seeds hold with these options. Returns how many files were spread over OSTs.
uint64_t FirstSeedsHold(RunOptions options) {
  uint64_t rebalanced = 0;
  for (options.seed = 1; options.seed <= 40; ++options.seed) {
    const RunResult result = RunSeed(options);
    rebalanced += result.rebalanced;
    EXPECT_EQ(result.failure, "") << "nacre-sim --clients " << options.clients << " --copies "
                                  << options.copies << " --mds " << options.mdses << " --event '"
                                  << options.event << (options.growth ? "' --growth" : "'") << " --seed "
                                  << options.seed;
  }
  return rebalanced;
}

TEST_F(Simulation, FindsAScrubThatTakesABadBlockForGood) {
  EXPECT_NE(FirstToFind(Plant::kBlindMend, "bad_blocks", 2), 0u);
}

TEST_F(Simulation, OstsOfTwoMembers) { FirstSeedsHold({.copies = 2, .scrub = true}); }

TEST_F(Simulation, BlocksGoBadOnOstsOfThreeMembers) {
  FirstSeedsHold({.event = "bad_blocks", .copies = 3, .scrub = true});
}

TEST_F(Simulation, AnOssIsAwayForLong) { FirstSeedsHold({.event = "dead_oss"}); }

TEST_F(Simulation, AnOssIsAwayForLongUnderSeveralClients) {
  FirstSeedsHold({.event = "dead_oss", .clients = 2});
}

TEST_F(Simulation, FindsAPrimaryThatAcknowledgesBeforeTheOthersHaveIt) {
  EXPECT_NE(FirstToFind(Plant::kEarlyAck, "", 1, 3), 0u);
}

TEST_F(Simulation, FindsAnMdsLeftBehindWithoutEtcd) {
  EXPECT_NE(FirstToFind(Plant::kUnagreed, "", 1, 3), 0u);
}

TEST_F(Simulation, FindsAPrimaryThatServesWithoutPromises) {
  // Those before show nothing, and take minutes.
  EXPECT_NE(FirstToFind(Plant::kUnfenced, "cut_off_mds", 1, 3, 300), 0u);
}

TEST_F(Simulation, FindsAnMdsThatIsTakenForUpToDate) {
  EXPECT_NE(FirstToFind(Plant::kEpochless, "dead_mds", 1, 3), 0u);
}

TEST_F(Simulation, FindsAReadOfWhatTheOtherMdsesDoNotHave) {
  EXPECT_NE(FirstToFind(Plant::kEarlyRead, "dead_mds", 1, 3, 280), 0u);
}

TEST_F(Simulation, FindsARequestToAnOssForWhatTheOtherMdsesDoNotHave) {
  EXPECT_NE(FirstToFind(Plant::kEarlyCall, "dead_mds", 1, 3), 0u);
}

TEST_F(Simulation, ThreeMdses) { FirstSeedsHold({.mdses = 3}); }

TEST_F(Simulation, FindsAMoveThatDoesNotSeeThatTheFileWasWritten) {
  EXPECT_NE(FirstToFind(Plant::kBlindMigration, "", 1, 1, 1, true), 0u);
}

TEST_F(Simulation, FindsAMoveThatLeavesClientsTheirLeases) {
  EXPECT_NE(FirstToFind(Plant::kUnrecalledMigration, "", 1, 1, 1, true), 0u);
}

TEST_F(Simulation, FilesMoveAndSpreadAndOstsAreDrained) {
  EXPECT_GT(FirstSeedsHold({.growth = true, .rebalance = true}), 0u);
}

TEST_F(Simulation, FindsAnEvictionThatWaitsForADeadOss) {
  EXPECT_NE(FirstToFind(Plant::kPatientFence, "evict_without_oss"), 0u);
}

}  // namespace
}  // namespace nacre::sim
