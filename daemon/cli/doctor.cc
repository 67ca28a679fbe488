#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "common/runtime.h"
#include "common/units.h"
#include "daemon/background.h"
#include "daemon/cli/command.h"
#include "daemon/cli/progress.h"
#include "daemon/cli/status_json.h"
#include "server/kv/rocks_kv.h"
#include "server/object/check.h"
#include "server/object/uring_block_store.h"

namespace nacre::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kHelp[] =
    "DIR is an OST, or the directory of a nacre local or of deploy/loopback: then all OSTs in it are "
    "checked. The servers must\n"
    "be stopped. Nothing is changed without --repair.\n"
    "\n"
    "Examples:\n"
    "  nacre doctor /tmp/n1                    records and accounts of every OST\n"
    "  nacre doctor /var/lib/nacre/ost0 --data also reads every block and checks its checksum\n"
    "  nacre doctor /var/lib/nacre/ost0 --repair\n"
    "Exit status: 0 nothing is wrong, 1 something is (or could not be checked), 2 wrong usage.";

struct DoctorArguments {
  std::string directory;
  bool repair = false;
  bool data = false;
  bool json = false;
};

bool IsOst(const fs::path& directory) {
  return fs::is_directory(directory / "meta") && fs::is_directory(directory / "data");
}

StatusOr<std::vector<std::string>> FindOsts(const std::string& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error))
    return ErrnoError(ENOTDIR, absl::StrFormat("%s is not a directory", directory));
  if (IsOst(directory)) return std::vector<std::string>{directory};
  std::vector<std::string> osts;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (entry.is_directory() && IsOst(entry.path())) osts.push_back(entry.path());
  }
  if (osts.empty()) {
    return ErrnoError(
        ENOENT, absl::StrFormat("%s: no OST here (a directory with meta/ and data/), nor one level below",
                                directory));
  }
  std::sort(osts.begin(), osts.end());
  return osts;
}

// A server that runs would change what is looked at.
Status CheckStopped(const std::string& directory) {
  for (const char* file : {"/oss.pid", "/../local.pid"}) {
    auto pid = FindProcess(directory + file);
    if (!pid.ok()) continue;
    return ErrnoError(EBUSY,
                      absl::StrFormat("%s is being served by process %d: stop it first", directory, *pid));
  }
  return OkStatus();
}

StatusOr<ost::CheckReport> CheckDirectory(const std::string& directory, const DoctorArguments& arguments) {
  RETURN_IF_ERROR(CheckStopped(directory));
  RocksKvOptions store_options;
  store_options.read_only = !arguments.repair;
  ASSIGN_OR_RETURN(std::unique_ptr<KvStore> store, OpenRocksKv(directory + "/meta", store_options));
  UringBlockStoreOptions disk_options;
  disk_options.read_only = !arguments.repair;
  ASSIGN_OR_RETURN(std::unique_ptr<BlockStore> blocks,
                   OpenUringBlockStore(directory + "/data", disk_options));
  OstDevices devices;
  devices.store = store.get();
  devices.blocks = blocks.get();
  devices.directory = directory;
  Progress progress(directory);
  ost::CheckOptions options;
  options.verify_data = arguments.data;
  options.repair = arguments.repair;
  options.on_progress = [&progress](uint64_t records) {
    progress.Show(absl::StrCat(records, " records checked"));
  };
  Runtime runtime(1);
  auto report = runtime.Run(ost::CheckOst(devices, std::move(options)));
  runtime.Stop();
  return report;
}

Json ToJson(const std::string& directory, const ost::CheckReport& report) {
  Json problems = Json::array();
  for (const ost::CheckProblem& problem : report.problems) {
    problems.push_back(
        {{"object", problem.object.ToString()}, {"problem", problem.text}, {"repaired", problem.repaired}});
  }
  return {{"directory", directory},
          {"ost", report.superblock.index},
          {"objects", report.objects},
          {"used_bytes", report.blocks * kBlockSize},
          {"verified_bytes", report.verified_blocks * kBlockSize},
          {"undo_records", report.undo_records},
          {"problem_count", report.problem_count},
          {"problems", problems}};
}

void Print(const std::string& directory, const ost::CheckReport& report) {
  std::printf("%s: OST %d, %llu objects, %s used%s\n", directory.c_str(), report.superblock.index,
              static_cast<unsigned long long>(report.objects), HumanSize(report.blocks * kBlockSize).c_str(),
              report.verified_blocks == 0
                  ? ""
                  : absl::StrCat(", ", HumanSize(report.verified_blocks * kBlockSize), " read").c_str());
  for (const ost::CheckProblem& problem : report.problems) {
    std::printf("  %s%s\n", problem.text.c_str(), problem.repaired ? " (repaired)" : "");
  }
  if (report.problem_count > report.problems.size()) {
    std::printf("  and %llu more\n",
                static_cast<unsigned long long>(report.problem_count - report.problems.size()));
  }
  if (report.problem_count == 0) std::printf("  nothing is wrong\n");
}

bool Unrepaired(const ost::CheckReport& report) {
  if (report.problem_count > report.problems.size()) return true;
  return std::any_of(report.problems.begin(), report.problems.end(),
                     [](const auto& problem) { return !problem.repaired; });
}

int Run(const DoctorArguments& arguments) {
  auto osts = FindOsts(arguments.directory);
  if (!osts.ok()) return Fail(osts.status());
  Json all = Json::array();
  int exit = kOk;
  for (const std::string& directory : *osts) {
    auto report = CheckDirectory(directory, arguments);
    if (!report.ok()) {
      Fail(report.status());
      exit = kFailure;
      continue;
    }
    if (Unrepaired(*report)) exit = kFailure;
    if (arguments.json) {
      all.push_back(ToJson(directory, *report));
    } else {
      Print(directory, *report);
    }
  }
  if (arguments.json) std::puts(all.dump(2).c_str());
  return exit;
}

}  // namespace

void AddDoctor(CLI::App& app, int* exit) {
  CLI::App* command = app.add_subcommand("doctor", "Check stopped OSTs, and repair what can be repaired");
  auto arguments = std::make_shared<DoctorArguments>();
  command->add_option("directory", arguments->directory, "an OST, or a directory of OSTs")
      ->required()
      ->type_name("DIR");
  command->add_flag("--data", arguments->data, "read all data and verify its checksums");
  command->add_flag("--repair", arguments->repair, "repair what can be repaired");
  command->add_flag("--json", arguments->json, "print JSON");
  command->footer(kHelp);
  command->callback([=] { *exit = Run(*arguments); });
}

}  // namespace nacre::cli
