#include <cstdio>

#include "daemon/cli/cluster_target.h"
#include "daemon/cli/command.h"

namespace nacre::cli {
namespace {

constexpr Duration kEvictPatience = std::chrono::seconds(60);

constexpr char kEvictHelp[] =
    "For a client that is gone for good, or that others wait for: its locks, leases and open files are given "
    "up, and every OST "
    "refuses it. What it had not sent yet is lost, and programs on its mount meet errors.\n"
    "CLIENT is a name or a number from nacre status; of a name, HOST:MOUNTPOINT is enough.\n"
    "\n"
    "Examples:\n"
    "  nacre evict node7:/mnt/nacre --mds 127.0.0.1:7710\n"
    "  nacre evict 4097 --dir /tmp/n1\n"
    "Exit status: 0 evicted, 1 there is no such client, or it is not done within a minute; 2 wrong usage.";

struct EvictArguments {
  std::string client;
  ClusterTarget target;
};

int RunEvict(const EvictArguments& arguments) {
  proto::AdminRequest request;
  request.mutable_evict()->set_client(arguments.client);
  auto reply = Administer(arguments.target, std::move(request), kEvictPatience);
  if (!reply.ok()) return Fail(reply.status());
  std::printf("evicted %s\n", reply->evicted().c_str());
  return kOk;
}

}  // namespace

void AddEvict(CLI::App& app, int* exit) {
  CLI::App* command = app.add_subcommand("evict", "End a client's session from the servers' side");
  auto arguments = std::make_shared<EvictArguments>();
  command->add_option("client", arguments->client, "its name or number")->required()->type_name("CLIENT");
  AddAddressOptions(command, &arguments->target);
  command->footer(kEvictHelp);
  command->callback([=] { *exit = RunEvict(*arguments); });
}

}  // namespace nacre::cli
