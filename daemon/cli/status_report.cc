#include "daemon/cli/status_report.h"

#include <cstdio>
#include <memory>

#include "daemon/cli/cluster_target.h"
#include "daemon/cli/command.h"
#include "daemon/cli/status_json.h"

namespace nacre::cli {
namespace {

int Run(const StatusReport& report, const ClusterTarget& target, bool json) {
  auto status = FetchStatus(target);
  if (!status.ok()) return FailWith(status.status(), json);
  if (json) {
    std::puts(JsonText(report.to_json(*status)).c_str());
  } else {
    report.print(*status);
  }
  return report.healthy(*status) ? kOk : kFailure;
}

}  // namespace

void AddStatusReport(CLI::App& app, int* exit, const StatusReport& report) {
  CLI::App* command = app.add_subcommand(report.name, report.description);
  auto target = std::make_shared<ClusterTarget>();
  auto json = std::make_shared<bool>(false);
  AddTargetOptions(command, target.get());
  command->add_flag("--json", *json, "print JSON");
  command->footer(report.examples);
  auto directory = std::make_shared<std::string>();
  if (report.of_directory != nullptr) {
    command
        ->add_option(
            "--directory", *directory,
            "who holds leases of this directory and of its files, and why somebody waits: a path in a "
            "mount; with --dir or --mds, from the filesystem's root")
        ->type_name("PATH")
        ->excludes("path");
  }
  command->callback([=] {
    *exit =
        directory->empty() ? Run(report, *target, *json) : report.of_directory(*target, *directory, *json);
  });
}

}  // namespace nacre::cli
