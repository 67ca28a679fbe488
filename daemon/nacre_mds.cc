// nacre-mds: the metadata server.
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include "daemon/config.h"
#include "daemon/daemon_flags.h"
#include "daemon/format.h"
#include "daemon/mds_role.h"
#include "daemon/serve.h"
#include "transport/data_plane.h"

namespace nacre {
namespace {

constexpr char kAbout[] =
    "The metadata server of Nacre: namespace, leases, locks, and the management service.\n"
    "Example: nacre-mds --directory /var/lib/nacre/mdt --format     once, for a new filesystem\n"
    "         nacre-mds --directory /var/lib/nacre/mdt --listen 127.0.0.1:7710";

int Main(int argc, char** argv) {
  MdsConfig config;
  DaemonFlags flags("nacre-mds", kAbout, Describe(&config));
  bool format = false;
  flags.app().add_flag("--format", format,
                       "make a new MDT in its directory, which is missing or empty, and end");
  if (auto exit = Configure(flags, argc, argv, &config)) return *exit;
  if (format) return RunFormat(config);
  Runtime runtime(static_cast<int>(config.threads));
  std::unique_ptr<Transport> transport;
  std::unique_ptr<MdsRole> role;
  auto start = [&]() -> StatusOr<Served> {
    ASSIGN_OR_RETURN(transport, MakeDataPlane(runtime.executor(), RealClock(), config.transport));
    ASSIGN_OR_RETURN(role, MdsRole::Start(runtime, *transport, config));
    return Served{absl::StrFormat("serving the MDT in %s at %s", config.directory,
                                  absl::StrJoin(role->addresses(), ", ")),
                  [&role] { return role->Stop(); },
                  {}};
  };
  int exit = Serve(runtime, {"nacre-mds", "mds", config.log, TargetKind::kMdt, {config.directory}}, start);
  runtime.Stop();
  return exit;
}

}  // namespace
}  // namespace nacre

int main(int argc, char** argv) { return nacre::Main(argc, argv); }
