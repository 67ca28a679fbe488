// nacre-client: the client daemon of one mount.
#include "daemon/client_daemon.h"
#include "daemon/daemon_flags.h"

namespace nacre {
namespace {

constexpr char kAbout[] =
    "The client daemon of Nacre: mounts the filesystem and keeps this machine's session, leases and caches.\n"
    "Example: nacre-client --mds 127.0.0.1:7710 --mount /mnt/nacre\n"
    "See also: nacre mount, and mount -t fuse.nacre 127.0.0.1:7710 /mnt/nacre";

int Main(int argc, char** argv) {
  ClientDaemonOptions options;
  DaemonFlags flags("nacre-client", kAbout, Sections(&options.config));
  flags.app().add_flag("--daemon", options.background,
                       "go on in the background once the filesystem is mounted");
  flags.app().add_flag("--make-mountpoint", options.make_mountpoint, "make the mountpoint if it is missing");
  flags.app()
      .add_option("--log-file", options.log_file, "in the background: where messages go")
      ->type_name("FILE");
  flags.app()
      .add_option("--pid-file", options.pid_file, "where the process number is kept")
      ->type_name("FILE");
  if (auto exit = Configure(flags, argc, argv, &options.config)) return *exit;
  return RunClientDaemon(std::move(options));
}

}  // namespace
}  // namespace nacre

int main(int argc, char** argv) { return nacre::Main(argc, argv); }
