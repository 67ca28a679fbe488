#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "client/layout_text.h"
#include "common/units.h"
#include "daemon/cli/cluster_target.h"
#include "daemon/cli/command.h"
#include "daemon/cli/layout_options.h"
#include "daemon/cli/progress.h"
#include "daemon/cli/xattr.h"
#include "rpc/convert.h"

namespace nacre::cli {
namespace {

constexpr Duration kMigratePatience = std::chrono::seconds(10);    // of one question
constexpr Duration kMigrateMdsPatience = std::chrono::minutes(2);  // for an MDS that is away
constexpr Duration kMigratePause = std::chrono::milliseconds(200);

constexpr char kMigrateHelp[] =
    "nacre migrate [-E END] [-c COUNT] [-S SIZE] [-N COPIES] [-E END ...] [-o OSTS] FILE...\n"
    "\n"
    "Moves the bytes of files to other objects while they are in use, and keeps holes. The options are those "
    "of "
    "nacre setstripe;\n"
    "without them a file keeps its stripes, on OSTs that are chosen anew.\n"
    "  -E, --component-end END     a component up to this byte of the file; -1 or eof: its end\n"
    "  -c, --stripe-count COUNT    stripes; -1: one on every OST\n"
    "  -S, --stripe-size SIZE      bytes of a stripe, a multiple of 64K\n"
    "  -N, --copies COPIES         on OSTs that have so many members, 1 to 3; 0: as few as there are\n"
    "  -o, --osts LIST             on some of these OSTs alone: 3,7,10-12\n"
    "\n"
    "Whoever may write to a file may move it. A file that is written all the time may not come to it: then "
    "it "
    "stays where it is, and\n"
    "the exit status says so. Interrupted, the file stays where it is as well.\n"
    "\n"
    "Examples:\n"
    "  nacre migrate -c 8 -S 4M /mnt/nacre/big           8 stripes of 4 MiB from now on\n"
    "  nacre migrate --copies 2 /mnt/nacre/dear          onto OSTs that have two members\n"
    "  nacre migrate -o 7-9 /mnt/nacre/file              onto OSTs 7 to 9\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.";

std::atomic<bool> interrupted{false};
void OnInterrupt(int) { interrupted = true; }

struct MigrateRequest {
  std::string layout;  // as ParseLayout takes it
  std::vector<OstIndex> osts;
  std::vector<std::string> paths;
};

StatusOr<MigrateRequest> ParseMigrate(const std::vector<std::string>& words) {
  MigrateRequest request;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const std::string option = LayoutOption(word);
    const bool osts = IsOption(word, "-o", "--osts") || word == "--ost";
    if (!option.empty() || osts) {
      if (++i == words.size()) return ErrnoError(EINVAL, absl::StrFormat("%s needs a value", word));
      if (osts) {
        ASSIGN_OR_RETURN(request.osts, ParseOsts(words[i]));
      } else {
        absl::StrAppend(&request.layout, option, " ", words[i], " ");
      }
    } else if (word.size() > 1 && word[0] == '-') {
      return ErrnoError(EINVAL, absl::StrFormat("unknown option '%s'; see nacre migrate --help", word));
    } else {
      request.paths.push_back(word);
    }
  }
  if (request.paths.empty()) return ErrnoError(EINVAL, "no file given; see nacre migrate --help");
  return request;
}

// Makes sure that the caller may write to it, and that the MDS has heard of it.
Status TouchFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  const bool good = fd >= 0 && fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  return good ? OkStatus() : ErrnoError(error, absl::StrFormat("%s: %s", path, std::strerror(error)));
}

StatusOr<Fid> FidOf(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, ReadXattr(path, kStripesXattr));
  const auto stripes = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!stripes.is_object() || !stripes.contains("fid") || !stripes.contains("components"))
    return ErrnoError(EINVAL, absl::StrFormat("%s is no regular file", path));
  return ParseFid(stripes["fid"].get<std::string>());
}

// One question; one that the MDS does not answer is asked again for a while.
StatusOr<proto::MigrateState> AskOnce(const ClusterTarget& target, const proto::AdminRequest& request) {
  const Duration until = RealClock().Now() + kMigrateMdsPatience;
  for (;;) {
    auto reply = Administer(target, request, kMigratePatience);
    if (reply.ok()) return reply->migrate();
    const bool busy = ToErrno(reply.status()) == EAGAIN;
    if ((!IsRetryable(reply.status()) && !busy) || RealClock().Now() > until || interrupted)
      return reply.status();
    std::this_thread::sleep_for(kMigratePause);
  }
}

Status Migrate(const std::string& path, const MigrateRequest& wanted, const proto::LayoutTemplate& layout) {
  RETURN_IF_ERROR(TouchFile(path));
  proto::AdminRequest request;
  ASSIGN_OR_RETURN(const Fid fid, FidOf(path));
  *request.mutable_migrate()->mutable_fid() = ToProto(fid);
  *request.mutable_migrate()->mutable_layout() = layout;
  request.mutable_migrate()->mutable_osts()->Assign(wanted.osts.begin(), wanted.osts.end());
  ClusterTarget target;
  ASSIGN_OR_RETURN(target.mds, ReadXattr(path, "nacre.mds"));
  Progress progress(path);
  for (;;) {
    request.mutable_migrate()->set_cancel(interrupted);
    ASSIGN_OR_RETURN(const proto::MigrateState state, AskOnce(target, request));
    if (state.done()) return OkStatus();
    progress.Show(absl::StrFormat("%s of %s%s", HumanSize(state.copied_bytes()),
                                  HumanSize(state.total_bytes()),
                                  state.attempts() > 1 ? ", once more, since it was written" : ""));
  }
}

int RunMigrate(const std::vector<std::string>& words) {
  auto request = ParseMigrate(words);
  if (!request.ok()) return Fail(request.status());
  auto layout = ParseLayout(request->layout);
  if (!layout.ok()) return Fail(layout.status());
  std::signal(SIGINT, OnInterrupt);
  std::signal(SIGTERM, OnInterrupt);
  int exit = kOk;
  for (const std::string& path : request->paths) {
    if (interrupted) return kFailure;
    Status status = Migrate(path, *request, *layout);
    if (!status.ok()) exit = std::max(exit, Fail(status) == kUsage ? kUsage : kFailure);
  }
  return exit;
}

}  // namespace

void AddMigrate(CLI::App& app, int* exit) {
  CLI::App* command = app.add_subcommand("migrate", "Move files to other objects while they are in use");
  // As of setstripe: the order of the options matters and -1 is a value.
  command->allow_extras();
  command->footer(kMigrateHelp);
  command->callback([=] { *exit = RunMigrate(command->remaining()); });
}

}  // namespace nacre::cli
