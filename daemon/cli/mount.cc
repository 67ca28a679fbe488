#include "daemon/cli/command.h"
#include "daemon/client_daemon.h"

namespace nacre::cli {
namespace {

constexpr char kMountHelp[] =
    "Examples:\n"
    "  nacre mount 127.0.0.1:7710 /mnt/nacre\n"
    "  nacre mount unix:/tmp/n1/mds.sock /mnt/second --read-only\n"
    "  mount -t fuse.nacre 127.0.0.1:7710 /mnt/nacre       the same, as in /etc/fstab\n"
    "Exit status: 0 mounted, 1 failed, 2 wrong usage.";

struct MountArguments {
  ClientDaemonOptions options;
  std::string config_file;
  bool foreground = false;
};

int RunMount(MountArguments arguments) {
  ClientConfig& config = arguments.options.config;
  const ClientConfig given = config;
  Status status = arguments.config_file.empty() ? OkStatus() : ReadConfig(arguments.config_file, &config);
  config.mds = given.mds;
  config.mount = given.mount;
  config.read_only |= given.read_only;
  if (status.ok()) status = Finish(&config);
  if (!status.ok()) return Fail(status);
  arguments.options.background = !arguments.foreground;
  return RunClientDaemon(std::move(arguments.options));
}

}  // namespace

void AddMount(CLI::App& app, int* exit) {
  CLI::App* command = app.add_subcommand("mount", "Mount a filesystem");
  auto arguments = std::make_shared<MountArguments>();
  ClientConfig& config = arguments->options.config;
  command->add_option("mds", config.mds, "address of the MDS: HOST:PORT or unix:/PATH; of several: A,B")
      ->required()
      ->type_name("ADDRESS");
  command->add_option("mountpoint", config.mount, "directory to mount at")->required()->type_name("DIR");
  command->add_flag("--read-only", config.read_only, "mount read-only");
  command->add_flag("--foreground", arguments->foreground, "stay in the foreground until it is unmounted");
  command
      ->add_option("--config", arguments->config_file,
                   "configuration with a [client] section (nacre.toml(5))")
      ->type_name("FILE");
  command->footer(kMountHelp);
  command->callback([=] { *exit = RunMount(*arguments); });
}

void AddUmount(CLI::App& app, int* exit) {
  CLI::App* command =
      app.add_subcommand("umount", "Unmount a filesystem and wait until everything is with the servers");
  auto mountpoint = std::make_shared<std::string>();
  auto lazy = std::make_shared<bool>(false);
  command->add_option("mountpoint", *mountpoint, "where it is mounted")->required()->type_name("DIR");
  command->add_flag("--lazy", *lazy, "although files are open on it");
  command->footer("Example: nacre umount /mnt/nacre\nExit status: 0 unmounted, 1 failed.");
  command->callback([=] { *exit = UnmountClient(*mountpoint, *lazy); });
}

}  // namespace nacre::cli
