#include <absl/strings/str_format.h>

#include <cerrno>
#include <cstdio>
#include <thread>

#include "common/units.h"
#include "daemon/cli/cluster_target.h"
#include "daemon/cli/command.h"
#include "daemon/cli/progress.h"
#include "daemon/cli/scrubs.h"

namespace nacre::cli {
namespace {

constexpr Duration kScrubPatience = std::chrono::seconds(10);
constexpr Duration kScrubLook = std::chrono::milliseconds(500);
constexpr uint64_t kLeastRate = 1 << 20;

constexpr char kScrubHelp[] =
    "Without options: shows for each store (an OST, or a member of one) when it was scrubbed last, and what "
    "was found.\n"
    "A scrub reads everything that a store has and compares it with its checksums, while it is in use. A "
    "block that has gone bad is written anew from another member; where there is none it is reported, and "
    "nacre status names its file. Every store is scrubbed by itself, each week if its server's "
    "configuration says nothing else (scrub_every in nacre.toml(5)).\n"
    "\n"
    "Examples:\n"
    "  nacre scrub --mds mds1:7710             when and with what result\n"
    "  nacre scrub --now --wait                everything, now, and the result\n"
    "  nacre scrub --now --rate 500M           faster than the servers' scrub_rate\n"
    "  nacre scrub --stop                      ends those that are running\n"
    "Exit status: 0 nothing is lost, 1 a block is bad that nobody else has, or the MDS cannot be asked, or "
    "(--wait) a store could not be scrubbed, 2 wrong usage.";

struct ScrubArguments {
  bool now = false, wait = false, stop = false, json = false;
  std::string rate;
  ClusterTarget target;
};

int64_t UnixTime() { return RealClock().Wall().seconds; }

uint64_t Microseconds() {
  const WallTime now = RealClock().Wall();
  return static_cast<uint64_t>(now.seconds) * 1'000'000 + now.nanos / 1000;
}

Status GiveOrder(const ScrubArguments& arguments, const proto::ScrubOrder& order) {
  proto::AdminRequest request;
  *request.mutable_scrub() = order;
  return Administer(arguments.target, std::move(request), kScrubPatience).status();
}

void Print(const proto::ClusterStatus& status, bool json) {
  Json out = Json::array();
  for (const ScrubbedStore& store : ScrubbedStores(status)) {
    if (json) {
      out.push_back(ScrubToJson(store.info.scrub()));
      out.back()["ost"] = store.ost;
      out.back()["address"] = store.address;
      out.back()["up"] = store.up;
      out.back()["in_sync"] = store.in_sync;
      continue;
    }
    std::string text = store.info.has_scrub() ? ScrubText(store.info.scrub(), UnixTime())
                                              : "its server does not know scrubs: it is an older version";
    if (!store.up) text = "is down; as last heard: " + text;
    if (store.up && !store.in_sync) text = "is not in sync, and filled first; " + text;
    std::printf("OST %-3u %-21s %s\n", store.ost, store.address.c_str(), text.c_str());
  }
  if (json) std::printf("%s\n", JsonText(out).c_str());
}

int Result(const proto::ClusterStatus& status) {
  for (const ScrubbedStore& store : ScrubbedStores(status))
    if (FoundLoss(store.info.scrub())) return kFailure;
  return kOk;
}

std::string ProgressText(const proto::ClusterStatus& status) {
  uint64_t read = 0, total = 0;
  for (const ScrubbedStore& store : ScrubbedStores(status)) {
    read += store.info.scrub().read_bytes();
    total += std::max(store.info.scrub().total_bytes(), store.info.scrub().read_bytes());
  }
  return absl::StrFormat("%s of about %s read", HumanSize(read), HumanSize(total));
}

// Until all stores have taken the order; with `through`, until they have done what it says.
StatusOr<proto::ClusterStatus> Await(const ScrubArguments& arguments, const proto::ScrubOrder& order,
                                     bool through) {
  Progress progress("scrubbing");
  for (;; std::this_thread::sleep_for(kScrubLook)) {
    auto status = FetchStatus(arguments.target);
    if (!status.ok() && IsRetryable(status.status())) continue;
    RETURN_IF_ERROR(status.status());
    bool taken = true, done = true;
    for (const ScrubbedStore& store : ScrubbedStores(*status)) {
      const bool asked = store.up && store.info.has_scrub();
      taken = taken && (!asked || store.info.scrub().order() >= order.number());
      done = done && IsThrough(store, order.number());
    }
    if (taken && (done || !through)) return status;
    if (!taken) {  // the MDS may have been started anew, and know of no order
      const Status again = GiveOrder(arguments, order);
      if (!again.ok() && !IsRetryable(again)) return again;
    }
    progress.Show(ProgressText(*status));
  }
}

// Names the stores that have not done what the order says: a scrub that has left some out has proved nothing
// of those. Returns whether there is none.
bool AllHaveDone(const proto::ClusterStatus& status, const proto::ScrubOrder& order) {
  bool all = true;
  for (const ScrubbedStore& store : ScrubbedStores(status)) {
    if (HasDone(store, order.number())) continue;
    all = false;
    const char* why = !store.up        ? "it is down"
                      : !store.in_sync ? "it is not in sync, and filled first"
                                       : "its server does not know scrubs: it is an older version";
    std::fprintf(stderr, "nacre: OST %u at %s has not been scrubbed: %s\n", store.ost, store.address.c_str(),
                 why);
  }
  return all;
}

int RunScrub(const ScrubArguments& arguments) {
  auto before = FetchStatus(arguments.target);
  if (!before.ok()) return Fail(before.status());
  if (!arguments.now && !arguments.stop) {
    Print(*before, arguments.json);
    return Result(*before);
  }
  proto::ScrubOrder order;
  order.set_number(NewOrderNumber(ScrubbedStores(*before), Microseconds()));
  order.set_stop(arguments.stop);
  if (!arguments.rate.empty()) {
    auto rate = ParseSize(arguments.rate);
    if (!rate.ok()) return Fail(rate.status());
    if (*rate < kLeastRate) {
      return Fail(ErrnoError(
          EINVAL, absl::StrFormat("--rate '%s' is not allowed: at least 1M a second", arguments.rate)));
    }
    order.set_bytes_per_second(*rate);
  }
  const Status given = GiveOrder(arguments, order);
  if (!given.ok()) return Fail(given);
  auto status = Await(arguments, order, arguments.wait || arguments.stop);
  if (!status.ok()) return Fail(status.status());
  if (!arguments.wait && !arguments.stop) return kOk;
  Print(*status, arguments.json);
  if (arguments.stop) return kOk;
  const bool all = AllHaveDone(*status, order);
  return all ? Result(*status) : kFailure;
}

}  // namespace

void AddScrub(CLI::App& app, int* exit) {
  CLI::App* command = app.add_subcommand("scrub", "Read and verify everything that is stored");
  auto arguments = std::make_shared<ScrubArguments>();
  CLI::Option* now =
      command->add_flag("--now", arguments->now, "begin at once, all stores from the beginning");
  command->add_flag("--wait", arguments->wait, "with --now: return with the result")->needs(now);
  command->add_option("--rate", arguments->rate, "with --now: bytes a second that each store reads at most")
      ->needs(now)
      ->type_name("SIZE");
  command->add_flag("--stop", arguments->stop, "end those that are running")->excludes(now);
  command->add_flag("--json", arguments->json, "for programs");
  AddTargetOptions(command, &arguments->target);
  command->footer(kScrubHelp);
  command->callback([=] { *exit = RunScrub(*arguments); });
}

}  // namespace nacre::cli
