// nacre-oss: an object storage server.
#include <absl/strings/str_format.h>

#include "common/log.h"
#include "daemon/config.h"
#include "daemon/daemon_flags.h"
#include "daemon/end_witness.h"
#include "daemon/format.h"
#include "daemon/oss_role.h"
#include "daemon/serve.h"
#include "rpc/grpc_channel.h"
#include "transport/data_plane.h"

namespace nacre {
namespace {

constexpr Duration kMgsTimeout = 5s;
constexpr Duration kTellTimeout = 1s;  // of a witness's attempt

constexpr char kAbout[] =
    "An object storage server of Nacre: serves the objects of one or more OSTs.\n"
    "Example: nacre-oss --ost 0=/var/lib/nacre/ost0 --ost 1=/var/lib/nacre/ost1,100GiB --format     once, "
    "for new OSTs\n"
    "         nacre-oss --mds 127.0.0.1:7710 --ost 0=/var/lib/nacre/ost0 --ost 1=/var/lib/nacre/ost1,100GiB";

Status AddOsts(const std::vector<std::string>& texts, OssConfig* config) {
  if (!texts.empty()) config->osts.clear();
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(OstConfig ost, ParseOstFlag(text));
    config->osts.push_back(std::move(ost));
  }
  return OkStatus();
}

std::string Describe(const OssRole& role, const OssConfig& config) {
  std::string text = "serving";
  for (const OstConfig& ost : config.osts)
    absl::StrAppendFormat(&text, " OST %d in %s,", ost.index, ost.directory);
  text.back() = ' ';
  return text + "at " + role.address();
}

// Runs in the process that has seen the OSS's end.
void TellMgsOfEnd(const OssConfig& config, uint64_t instance) {
  SetLogName("oss");
  Runtime runtime(1);
  auto cluster = NewGrpcClusterChannel(config.mds, kTellTimeout);
  Status told = cluster.status();
  if (told.ok()) told = runtime.Run(TellOfEnd(*cluster, RealClock(), instance));
  if (told.ok()) return LogInfo("the server's process has ended, and the MGS knows");
  LogWarning("the server's process has ended, and the MGS, which waits for its lease, could not be told: %s",
             std::string(told.message()));
}

int Main(int argc, char** argv) {
  OssConfig config;
  std::vector<std::string> osts;
  DaemonFlags flags("nacre-oss", kAbout, Sections(&config));
  flags.app()
      .add_option("--ost", osts, "an OST and where it lives; may be given many times")
      ->type_name("INDEX=DIRECTORY[,SIZE][,copies=N]");
  bool format = false;
  flags.app().add_flag("--format", format,
                       "make new OSTs in those of its directories that are missing or empty, and end");
  auto add_osts = [&osts](OssConfig* config) { return AddOsts(osts, config); };
  if (auto exit = Configure<OssConfig>(flags, argc, argv, &config, add_osts)) return *exit;
  if (format) return RunFormat(config);
  StatusOr<EndWitness> witness =
      EndWitness::Start([&config](uint64_t instance) { TellMgsOfEnd(config, instance); });
  if (!witness.ok()) {
    LogWarning("nobody will tell the MGS at once when this process ends: %s",
               std::string(witness.status().message()));
  }
  Runtime runtime(static_cast<int>(config.threads));
  std::unique_ptr<Transport> transport;
  std::unique_ptr<OssRole> role;
  auto start = [&]() -> StatusOr<Served> {
    ASSIGN_OR_RETURN(transport, MakeDataPlane(runtime.executor(), RealClock(), config.transport,
                                              config.listen, config.advertise));
    ASSIGN_OR_RETURN(std::shared_ptr<ClusterChannel> cluster, NewGrpcClusterChannel(config.mds, kMgsTimeout));
    ASSIGN_OR_RETURN(role, OssRole::Start(runtime, *transport, std::move(cluster), config));
    if (witness.ok()) witness->Set(role->instance());
    return Served{Describe(*role, config), [&role] { return role->Stop(); }, role->refused(),
                  role->begin_anew()};
  };
  ServeOptions options{"nacre-oss", "oss", config.log, TargetKind::kOst, {}, argv};
  for (const OstConfig& ost : config.osts) options.directories.push_back(ost.directory);
  int exit = Serve(runtime, options, start);
  runtime.Stop();
  return exit;
}

}  // namespace
}  // namespace nacre

int main(int argc, char** argv) { return nacre::Main(argc, argv); }
