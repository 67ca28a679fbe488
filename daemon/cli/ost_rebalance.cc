#include <absl/strings/str_format.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <thread>

#include "daemon/cli/cluster_target.h"
#include "daemon/cli/command.h"
#include "daemon/cli/progress.h"
#include "daemon/cli/rebalance.h"

namespace nacre::cli {
namespace {

constexpr Duration kRebalancePatience = std::chrono::seconds(10);
constexpr Duration kRebalanceLook = std::chrono::seconds(1);

constexpr char kRebalanceHelp[] =
    "Files are moved from OSTs that are filled above the mean to those below, in the background, one after "
    "the "
    "other, while they are in use: an OST that was added gets its share. It ends by itself when the fullest "
    "and "
    "the emptiest OST differ by no more than the threshold; OSTs of different numbers of copies are evened "
    "out "
    "apart. OSTs that are down or being drained take no part.\n"
    "nacre status shows how far it is. A restart of the MDS goes on with it; --stop ends it. Started once "
    "more "
    "while it goes on, it goes on with the threshold that is given then.\n"
    "\n"
    "Examples:\n"
    "  nacre ost rebalance --dry-run               how even OSTs are, and about how much would be moved\n"
    "  nacre ost rebalance --mds mds1:7710         returns at once\n"
    "  nacre ost rebalance --wait --threshold 2    returns when OSTs differ by two percentage points at "
    "most\n"
    "  nacre ost rebalance --stop                  what has been moved stays where it is\n"
    "Exit status: 0 done, 1 failed (with --wait: it has ended, and OSTs are not even), 2 wrong usage.";

struct RebalanceArguments {
  std::string threshold = "5";
  bool wait = false, dry_run = false, stop = false;
  ClusterTarget target;
};

StatusOr<proto::RebalanceState> AskRebalance(const ClusterTarget& target, proto::RebalanceOsts::Action action,
                                             uint32_t threshold) {
  proto::AdminRequest request;
  request.mutable_rebalance()->set_action(action);
  request.mutable_rebalance()->set_threshold(threshold);
  ASSIGN_OR_RETURN(proto::AdminReply reply, Administer(target, std::move(request), kRebalancePatience));
  return std::move(*reply.mutable_rebalance());
}

int SayEnd(const proto::RebalanceState& state) {
  if (!state.even()) {
    return Fail(ErrnoError(
        ECANCELED, absl::StrFormat("the OSTs are not even (%s): %s", SpreadText(state), state.end())));
  }
  std::printf("%s\n", RebalanceText(state).c_str());
  return kOk;
}

// Waits for an MDS that is away, too: the run goes on when it is back.
int WaitUntilEven(const ClusterTarget& target, uint64_t run) {
  Progress progress("rebalancing");
  for (;; std::this_thread::sleep_for(kRebalanceLook)) {
    auto status = FetchStatus(target);
    if (!status.ok() && IsRetryable(status.status())) continue;
    if (!status.ok()) return Fail(status.status());
    const proto::RebalanceState& state = status->rebalance();
    if (state.run() != run)
      return Fail(ErrnoError(ECANCELED,
                             "it has ended, and what came of it is not known: nacre ost rebalance "
                             "--dry-run says how even OSTs are"));
    if (!state.running()) return SayEnd(state);
    progress.Show(RebalanceText(state));
  }
}

int RunRebalance(const RebalanceArguments& arguments) {
  auto threshold = ParseThreshold(arguments.threshold);
  if (!threshold.ok()) return Fail(threshold.status());
  const auto action = arguments.stop      ? proto::RebalanceOsts::STOP
                      : arguments.dry_run ? proto::RebalanceOsts::LOOK
                                          : proto::RebalanceOsts::START;
  auto state = AskRebalance(arguments.target, action, *threshold);
  if (!state.ok()) return Fail(state.status());
  if (arguments.stop) return kOk;
  if (arguments.dry_run || !state->running()) {
    for (const std::string& line : DryRunLines(*state)) std::printf("%s\n", line.c_str());
    return kOk;
  }
  return arguments.wait ? WaitUntilEven(arguments.target, state->run()) : kOk;
}

}  // namespace

void AddOstRebalance(CLI::App* ost, int* exit) {
  CLI::App* command = ost->add_subcommand("rebalance", "Spread files over OSTs so that all are filled alike");
  auto arguments = std::make_shared<RebalanceArguments>();
  command
      ->add_option("--threshold", arguments->threshold,
                   "how many percentage points the fullest and the emptiest OST may differ by")
      ->type_name("PERCENT")
      ->capture_default_str();
  auto* wait = command->add_flag("--wait", arguments->wait, "return when it has ended");
  auto* dry_run = command->add_flag("-n,--dry-run", arguments->dry_run, "only say how even OSTs are");
  command->add_flag("--stop", arguments->stop, "end it")->excludes(wait)->excludes(dry_run);
  wait->excludes(dry_run);
  AddAddressOptions(command, &arguments->target);
  command->footer(kRebalanceHelp);
  command->callback([=] { *exit = RunRebalance(*arguments); });
}

}  // namespace nacre::cli
