#include <absl/strings/str_format.h>

#include <cstdio>
#include <thread>

#include "daemon/cli/cluster_target.h"
#include "daemon/cli/command.h"
#include "daemon/cli/osts.h"
#include "daemon/cli/progress.h"

namespace nacre::cli {
namespace {

constexpr Duration kOstPatience = std::chrono::seconds(10);
constexpr Duration kRemovalPatience = std::chrono::minutes(30);  // for a look through all files
constexpr Duration kDrainLook = std::chrono::seconds(1);

constexpr char kOstHelp[] =
    "An OST is added by starting a server with a new index in [[oss.ost]]: new files use it at once. nacre "
    "df and "
    "nacre status show the OSTs.\n"
    "nacre ost drain --help, nacre ost undrain --help, nacre ost remove --help and nacre ost rebalance "
    "--help "
    "tell more.";

constexpr char kDrainHelp[] =
    "The OST takes no new files from now on, and its files are moved to others in the background, one after "
    "the "
    "other, while they are in use.\n"
    "nacre status shows how far it is. A restart of the MDS goes on with it; nacre ost undrain ends it. When "
    "nothing is left there, nacre ost remove takes the OST out of the cluster.\n"
    "\n"
    "Examples:\n"
    "  nacre ost drain 3 --mds mds1:7710           returns at once\n"
    "  nacre ost drain 3 --wait                    returns when nothing is left there\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.";

constexpr char kUndrainHelp[] =
    "The OST takes new files again. Files that have been moved stay where they are now.\n"
    "\n"
    "Example:\n"
    "  nacre ost undrain 3 --mds mds1:7710\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.";

constexpr char kRemoveHelp[] =
    "Takes an OST out of the cluster for good: one that has no files (nacre ost drain), or, with --lost, one "
    "that "
    "will never come back. Nobody waits for it any more, and its index is not used again. Take it out of its "
    "server's configuration, too.\n"
    "\n"
    "With --lost the files that had data there lose it: reading that is an error at once, and they can be "
    "removed "
    "or emptied as any. How many these are is said; --list names them, also when the OST has been removed "
    "already.\n"
    "\n"
    "Examples:\n"
    "  nacre ost remove 3 --mds mds1:7710          of one that has been drained\n"
    "  nacre ost remove 3 --lost --list --dry-run  which files would lose data\n"
    "  nacre ost remove 3 --lost                   of one whose disk is gone\n"
    "Exit status: 0 done, 1 failed (files are there, or with --lost: the OST is up), 2 wrong usage.";

struct OstArguments {
  OstIndex ost = 0;
  bool wait = false, lost = false, list = false, dry_run = false;
  ClusterTarget target;
};

StatusOr<proto::AdminReply> Manage(const OstArguments& arguments, proto::ManageOst::Action action,
                                   Duration patience) {
  proto::AdminRequest request;
  request.mutable_manage_ost()->set_ost(arguments.ost);
  request.mutable_manage_ost()->set_action(action);
  return Administer(arguments.target, std::move(request), patience);
}

int WaitUntilEmpty(const OstArguments& arguments) {
  Progress progress(absl::StrFormat("draining OST %d", arguments.ost));
  for (;; std::this_thread::sleep_for(kDrainLook)) {
    auto status = FetchStatus(arguments.target);
    if (!status.ok() && IsRetryable(status.status())) continue;
    if (!status.ok()) return Fail(status.status());
    const proto::OstState* found = nullptr;
    for (const proto::OstState& ost : status->map().osts())
      if (ost.info().index() == arguments.ost) found = &ost;
    if (found == nullptr || !found->has_drain())
      return Fail(ErrnoError(ECANCELED, absl::StrFormat("OST %d is drained no more", arguments.ost)));
    if (found->drain().empty()) return kOk;
    progress.Show(DrainText(*found));
  }
}

int RunDrain(const OstArguments& arguments) {
  auto reply = Manage(arguments, proto::ManageOst::DRAIN, kOstPatience);
  if (!reply.ok()) return Fail(reply.status());
  return arguments.wait ? WaitUntilEmpty(arguments) : kOk;
}

int RunUndrain(const OstArguments& arguments) {
  auto reply = Manage(arguments, proto::ManageOst::UNDRAIN, kOstPatience);
  return reply.ok() ? kOk : Fail(reply.status());
}

// Counts the files that have objects there, and names them if they are to be.
StatusOr<uint64_t> LookThroughFiles(const OstArguments& arguments) {
  uint64_t count = 0;
  proto::AdminRequest request;
  request.mutable_files_on_ost()->set_ost(arguments.ost);
  for (;;) {
    ASSIGN_OR_RETURN(const proto::AdminReply reply, Administer(arguments.target, request, kOstPatience));
    count += static_cast<uint64_t>(reply.paths_size());
    for (const std::string& path : reply.paths())
      if (arguments.list) std::printf("%s\n", path.c_str());
    if (!reply.has_next()) return count;
    *request.mutable_files_on_ost()->mutable_after() = reply.next();
  }
}

int RunRemove(const OstArguments& arguments) {
  if (arguments.list || arguments.dry_run) {
    auto count = LookThroughFiles(arguments);
    if (!count.ok()) return Fail(count.status());
    if (arguments.dry_run) {
      std::printf("%llu file%s on OST %u\n", static_cast<unsigned long long>(*count),
                  *count == 1 ? " is" : "s are", arguments.ost);
      return kOk;
    }
  }
  auto reply = Manage(arguments, arguments.lost ? proto::ManageOst::REMOVE_LOST : proto::ManageOst::REMOVE,
                      kRemovalPatience);
  if (!reply.ok()) return Fail(reply.status());
  if (!arguments.lost) {
    std::printf("OST %u is removed: take it out of its server's configuration\n", arguments.ost);
    return kOk;
  }
  std::printf("OST %u is removed: %llu file%s lost what was there\n", arguments.ost,
              static_cast<unsigned long long>(reply->files()), reply->files() == 1 ? " has" : "s have");
  return kOk;
}

CLI::App* Add(CLI::App* ost, const char* name, const char* about, const char* help,
              const std::shared_ptr<OstArguments>& arguments, int (*run)(const OstArguments&), int* exit) {
  CLI::App* command = ost->add_subcommand(name, about);
  command->add_option("index", arguments->ost, "of the OST")->required()->type_name("OST");
  AddAddressOptions(command, &arguments->target);
  command->footer(help);
  command->callback([=] { *exit = run(*arguments); });
  return command;
}

}  // namespace

void AddOst(CLI::App& app, int* exit) {
  CLI::App* ost = app.add_subcommand("ost", "Even OSTs out, drain them and take them out of the cluster");
  ost->require_subcommand(1);
  ost->footer(kOstHelp);
  auto arguments = std::make_shared<OstArguments>();
  CLI::App* drain = Add(ost, "drain", "Move all files off an OST", kDrainHelp, arguments, RunDrain, exit);
  drain->add_flag("--wait", arguments->wait, "return when nothing is left there");
  Add(ost, "undrain", "Let an OST take new files again", kUndrainHelp, arguments, RunUndrain, exit);
  CLI::App* remove =
      Add(ost, "remove", "Take an OST out of the cluster", kRemoveHelp, arguments, RunRemove, exit);
  remove->add_flag("--lost", arguments->lost, "it is gone for good, with what is on it");
  remove->add_flag("--list", arguments->list, "name the files that are there");
  remove->add_flag("-n,--dry-run", arguments->dry_run, "only count them");
  AddOstRebalance(ost, exit);
}

}  // namespace nacre::cli
