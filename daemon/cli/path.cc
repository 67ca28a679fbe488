#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <cerrno>
#include <cstdio>
#include <limits>

#include "common/ids.h"
#include "daemon/cli/cluster_target.h"
#include "daemon/cli/command.h"
#include "rpc/convert.h"

namespace nacre::cli {
namespace {

constexpr Duration kPathPatience = std::chrono::seconds(5);

constexpr char kPathHelp[] =
    "The FID is as logs and nacre getstripe print it; the paths begin at the filesystem's root. A file with "
    "several hard "
    "links has as many.\n"
    "\n"
    "Examples:\n"
    "  nacre path '[0x1:0x3b:0x0]'                          of the filesystem that is mounted here\n"
    "  nacre path 0x1:0x3b:0x0 --mds 127.0.0.1:7710         of another one\n"
    "Exit status: 0 done, 1 no file has this FID, or the MDS cannot be reached; 2 wrong usage.";

struct PathArguments {
  std::string fid;
  ClusterTarget target;
};

// "[0x1:0x3b:0x0]", with or without the brackets.
StatusOr<Fid> ParseFid(const std::string& text) {
  std::string_view inner(text);
  if (inner.size() >= 2 && inner.front() == '[' && inner.back() == ']')
    inner = inner.substr(1, inner.size() - 2);
  const std::vector<std::string> parts = absl::StrSplit(AbslView(inner), ':');
  uint64_t sequence = 0, object = 0, version = 0;
  constexpr uint64_t kMax = std::numeric_limits<uint32_t>::max();
  const bool good = parts.size() == 3 && absl::SimpleHexAtoi(parts[0], &sequence) &&
                    absl::SimpleHexAtoi(parts[1], &object) && absl::SimpleHexAtoi(parts[2], &version) &&
                    object <= kMax && version <= kMax;
  if (!good)
    return ErrnoError(EINVAL, absl::StrFormat("'%s' is no FID: they look like [0x1:0x3b:0x0]", text));
  return Fid{sequence, static_cast<uint32_t>(object), static_cast<uint32_t>(version)};
}

int RunPath(const PathArguments& arguments) {
  auto fid = ParseFid(arguments.fid);
  if (!fid.ok()) return Fail(fid.status());
  proto::AdminRequest request;
  *request.mutable_paths_of()->mutable_fid() = ToProto(*fid);
  auto reply = Administer(arguments.target, std::move(request), kPathPatience);
  if (!reply.ok()) return Fail(reply.status());
  for (const std::string& path : reply->paths()) std::printf("%s\n", path.c_str());
  return kOk;
}

}  // namespace

void AddPath(CLI::App& app, int* exit) {
  CLI::App* command = app.add_subcommand("path", "Show the paths of the file that has a FID");
  auto arguments = std::make_shared<PathArguments>();
  command->add_option("fid", arguments->fid, "as logs and getstripe print it")->required()->type_name("FID");
  AddAddressOptions(command, &arguments->target);
  command->footer(kPathHelp);
  command->callback([=] { *exit = RunPath(*arguments); });
}

}  // namespace nacre::cli
