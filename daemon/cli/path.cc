#include <cstdio>

#include "common/ids.h"
#include "daemon/cli/cluster_target.h"
#include "daemon/cli/command.h"
#include "daemon/cli/layout_options.h"
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
