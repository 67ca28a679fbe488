#include "daemon/doctor.h"

#include <cstdio>

#include "daemon/cli/command.h"
#include "daemon/cli/progress.h"
#include "daemon/cli/status_json.h"
#include "daemon/target_directory.h"

namespace nacre::cli {
namespace {

constexpr char kDoctorHelp[] =
    "DIR is an MDT, an OST, or a directory of them (of a nacre local or of deploy/loopback). Where there are "
    "both, the MDT is also\n"
    "compared with the OSTs, which must be all of the cluster's. The servers must be stopped. Nothing is "
    "changed without --repair.\n"
    "\n"
    "Examples:\n"
    "  nacre doctor /tmp/n1                     the whole of a nacre local\n"
    "  nacre doctor /var/lib/nacre/ost0 --data  also reads every block and checks its checksum\n"
    "  nacre doctor /tmp/n1 --repair\n"
    "Exit status: 0 nothing is wrong (any more), 1 something is, or could not be checked, 2 wrong usage.";

struct DoctorArguments {
  std::string directory;
  DoctorOptions options;
  bool json = false;
};

Json DoctorToJson(const TargetReport& report) {
  Json out = {{"target", report.target}, {"directory", report.directory}};
  if (!report.failure.ok()) {
    out["failure"] = std::string(report.failure.message());
    return out;
  }
  out["summary"] = report.summary;
  out["problem_count"] = report.problem_count;
  out["problems_left"] = report.left;
  out["problems"] = report.problems;
  return out;
}

void PrintDoctor(const TargetReport& report) {
  std::printf("%s: %s%s%s\n", report.directory.c_str(), report.target.c_str(),
              report.summary.empty() ? "" : ", ", report.summary.c_str());
  if (!report.failure.ok()) {
    std::printf("  could not be checked: %s\n", std::string(report.failure.message()).c_str());
    return;
  }
  for (const std::string& problem : report.problems) std::printf("  %s\n", problem.c_str());
  if (report.problem_count > report.problems.size()) {
    std::printf("  and %zu more\n", static_cast<size_t>(report.problem_count) - report.problems.size());
  }
  if (report.problem_count == 0) {
    std::printf("  nothing is wrong\n");
  } else {
    std::printf("  %zu found, %zu left\n", static_cast<size_t>(report.problem_count),
                static_cast<size_t>(report.left));
  }
}

int RunDoctor(DoctorArguments arguments) {
  MakeFilesPrivate();
  Progress progress("nacre doctor");
  arguments.options.on_progress = [&progress](const std::string& state) { progress.Show(state); };
  auto reports = Examine(arguments.directory, arguments.options);
  if (!reports.ok()) return Fail(reports.status());
  Json all = Json::array();
  int exit = kOk;
  for (const TargetReport& report : *reports) {
    if (!report.failure.ok() || report.left > 0) exit = kFailure;
    if (arguments.json) {
      all.push_back(DoctorToJson(report));
    } else {
      PrintDoctor(report);
    }
  }
  if (arguments.json) std::puts(JsonText(all).c_str());
  return exit;
}

}  // namespace

void AddDoctor(CLI::App& app, int* exit) {
  CLI::App* command = app.add_subcommand("doctor", "Check stopped targets, and repair what can be repaired");
  auto arguments = std::make_shared<DoctorArguments>();
  command->add_option("directory", arguments->directory, "an MDT, an OST, or a directory of them")
      ->required()
      ->type_name("DIR");
  command->add_flag("--data", arguments->options.data, "read all data and verify its checksums");
  command->add_flag("--repair", arguments->options.repair, "repair what can be repaired");
  command->add_flag("--json", arguments->json, "print JSON");
  command->footer(kDoctorHelp);
  command->callback([=] { *exit = RunDoctor(*arguments); });
}

}  // namespace nacre::cli
