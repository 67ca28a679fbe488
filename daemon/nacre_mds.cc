// nacre-mds: the metadata server.
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <cstring>

#include "daemon/config.h"
#include "daemon/daemon_flags.h"
#include "daemon/format.h"
#include "daemon/mds_member_role.h"
#include "daemon/mds_role.h"
#include "daemon/serve.h"
#include "transport/data_plane.h"

namespace nacre {
namespace {

constexpr char kAbout[] =
    "The metadata server of Nacre: namespace, leases, locks, and the management service.\n"
    "Example: nacre-mds --directory /var/lib/nacre/mdt --format     once, for a new filesystem\n"
    "         nacre-mds --directory /var/lib/nacre/mdt --listen 127.0.0.1:7710";

constexpr char kAcceptLoss[] = "--accept-loss";

struct Switches {
  bool format = false, copy = false, alone = false, accept_loss = false;
};

void AddSwitches(DaemonFlags& flags, Switches* switches) {
  CLI::App& app = flags.app();
  auto* format = app.add_flag("--format", switches->format,
                              "make a new MDT in its directory, which is missing or empty, and end");
  app.add_flag("--copy", switches->copy,
               "with --format: make a blank copy, which the other MDSes of the filesystem fill ([copies])")
      ->needs(format);
  app.add_flag(
         "--alone", switches->alone,
         "make this copy the MDT of a filesystem of one MDS, and end; see nacre-mds(8) for what it costs")
      ->excludes(format);
  app.add_flag(kAcceptLoss, switches->accept_loss,
               "become the primary after a loss of power although MDSes that may know more do not answer; "
               "acknowledged changes may be lost")
      ->excludes(format);
}

StatusOr<Served> StartAlone(Runtime& runtime, Transport& transport, const MdsConfig& config,
                            std::unique_ptr<MdsRole>* role) {
  ASSIGN_OR_RETURN(*role, MdsRole::Start(runtime, transport, config));
  Served served;
  served.description = absl::StrFormat("serving the MDT in %s at %s", config.directory,
                                       absl::StrJoin((*role)->addresses(), ", "));
  served.stop = [role] { return (*role)->Stop(); };
  return served;
}

StatusOr<Served> StartMember(Runtime& runtime, Transport& transport, const MdsConfig& config,
                             std::unique_ptr<MdsMemberRole>* role) {
  ASSIGN_OR_RETURN(*role, MdsMemberRole::Start(runtime, transport, config));
  Served served;
  served.description = absl::StrFormat("MDS %s keeps a copy of the MDT in %s, at %s", config.copies.name,
                                       config.directory, absl::StrJoin((*role)->addresses(), ", "));
  served.stop = [role] { return (*role)->Stop(); };
  served.failed = (*role)->failed();
  served.begin_anew = (*role)->deposed();
  return served;
}

// Leaves out the operator's decision to accept a loss: it was for one start, not for a process that begins
// anew.
std::vector<char*> ArgumentsAnew(int argc, char** argv) {
  std::vector<char*> arguments;
  for (int i = 0; i < argc; ++i) {
    if (std::strcmp(argv[i], kAcceptLoss) != 0) arguments.push_back(argv[i]);
  }
  arguments.push_back(nullptr);
  return arguments;
}

int Run(const MdsConfig& config, char** arguments) {
  Runtime runtime(static_cast<int>(config.threads));
  std::unique_ptr<Transport> transport;
  std::unique_ptr<MdsRole> alone;
  std::unique_ptr<MdsMemberRole> member;
  auto start = [&]() -> StatusOr<Served> {
    ASSIGN_OR_RETURN(transport, MakeDataPlane(runtime.executor(), RealClock(), config.transport));
    return config.copies.several() ? StartMember(runtime, *transport, config, &member)
                                   : StartAlone(runtime, *transport, config, &alone);
  };
  int exit = Serve(runtime, {"nacre-mds", "mds", config.log, TargetKind::kMdt, {config.directory}, arguments},
                   start);
  runtime.Stop();
  return exit;
}

int Main(int argc, char** argv) {
  MdsConfig config;
  DaemonFlags flags("nacre-mds", kAbout, Sections(&config));
  Switches switches;
  AddSwitches(flags, &switches);
  if (auto exit = Configure(flags, argc, argv, &config)) return *exit;
  config.copies.accept_loss = switches.accept_loss;
  if (switches.format) return RunFormat(config, switches.copy);
  if (switches.alone) return RunAlone(config);
  std::vector<char*> arguments = ArgumentsAnew(argc, argv);
  return Run(config, arguments.data());
}

}  // namespace
}  // namespace nacre

int main(int argc, char** argv) { return nacre::Main(argc, argv); }
