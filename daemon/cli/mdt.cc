#include <absl/time/time.h>

#include <cstdio>

#include "common/units.h"
#include "daemon/cli/cluster_target.h"
#include "daemon/cli/command.h"
#include "daemon/cli/progress.h"
#include "daemon/mdt_backup.h"
#include "daemon/mdt_compare.h"
#include "daemon/target_directory.h"

namespace nacre::cli {
namespace {

constexpr char kMdtHelp[] =
    "A backup has all names, attributes, layouts and small files; the bytes of larger files are at the "
    "OSTs.\n"
    "nacre mdt backup --help, nacre mdt restore --help and nacre mdt compare --help tell more.";

constexpr char kBackupHelp[] =
    "Writes the MDT of a running MDS, as it is at this moment, into FILE, which must not be there yet. The "
    "MDS serves on meanwhile. FILE has the contents of small files and all names: only its owner can read "
    "it.\n"
    "What mounts have not sent yet (a second or so) is not in it: run sync there first.\n"
    "\n"
    "Examples:\n"
    "  nacre mdt backup /backups/mdt.1 --mds mds1:7710      from any machine that reaches the MDS\n"
    "  nacre mdt backup /backups/mdt.1 --dir /tmp/n1        of a nacre local\n"
    "Exit status: 0 FILE is whole and on the disk, 1 there is no FILE, 2 wrong usage.";

constexpr char kRestoreHelp[] =
    "Makes an MDT in DIR, which is missing or empty, from FILE, which is checked first. The old MDS must be "
    "gone for good. Then run nacre doctor --repair over the MDT and all OSTs, and start nacre-mds on DIR, at "
    "the address of before.\n"
    "Every client of before is told that its session has ended. The first start lets nobody in for about 11 "
    "s.\n"
    "Files that were made since the backup are gone; those that were removed or emptied since have names "
    "again, but no bytes: nacre doctor names them.\n"
    "\n"
    "Example:\n"
    "  nacre mdt restore /backups/mdt.1 /var/lib/nacre/mdt\n"
    "Exit status: 0 the MDT is there, 1 nothing was made, 2 wrong usage.";

constexpr char kCompareHelp[] =
    "Each DIR has a copy of one MDT (docs/replication.md), whose MDS is stopped. Copies of MDSes that were "
    "in "
    "sync and have been stopped cleanly are equal.\n"
    "\n"
    "Example:\n"
    "  nacre mdt compare /copies/mds1 /copies/mds2\n"
    "Exit status: 0 they are equal, 1 they are not, or could not be read, 2 wrong usage.";

struct MdtArguments {
  std::vector<std::string> directories;
  std::string file, directory;
  ClusterTarget target;
};

void PrintReport(const char* what, const std::string& place, const MdtBackupReport& report) {
  const std::string made = absl::FormatTime(
      "%Y-%m-%d %H:%M:%S UTC", absl::FromUnixSeconds(report.header.made_seconds), absl::UTCTimeZone());
  std::printf("%s %s: cluster %s as of %s, %zu records, %s\n", what, place.c_str(),
              report.header.cluster_uuid.c_str(), made.c_str(), static_cast<size_t>(report.entries),
              HumanSize(report.bytes).c_str());
}

int RunBackup(const MdtArguments& arguments) {
  MakeFilesPrivate();
  auto address = FindMds(arguments.target);
  if (!address.ok()) return Fail(address.status());
  Progress progress("nacre mdt backup");
  auto report = BackupMdt(*address, arguments.file, [&](const std::string& state) { progress.Show(state); });
  if (!report.ok()) return Fail(report.status());
  PrintReport("backup", arguments.file, *report);
  return kOk;
}

int RunRestore(const MdtArguments& arguments) {
  MakeFilesPrivate();
  Progress progress("nacre mdt restore");
  auto report = RestoreMdtInto(arguments.file, arguments.directory, RealClock().Wall(),
                               [&](const std::string& state) { progress.Show(state); });
  if (!report.ok()) return Fail(report.status());
  PrintReport("restored", arguments.directory, *report);
  std::printf("next: nacre doctor --repair over this MDT and all OSTs, then start nacre-mds on it\n");
  return kOk;
}

int RunCompare(const MdtArguments& arguments) {
  auto found = CompareMdts(arguments.directories);
  if (!found.ok()) return Fail(found.status());
  std::printf("%s: %llu records\n", arguments.directories.front().c_str(),
              static_cast<unsigned long long>(found->records));
  for (const MdtDifferences::Other& other : found->others) {
    if (other.differences == 0) {
      std::printf("%s: equal\n", other.directory.c_str());
      continue;
    }
    std::printf("%s: %llu differences\n", other.directory.c_str(),
                static_cast<unsigned long long>(other.differences));
    for (const std::string& place : other.places) std::printf("  %s\n", place.c_str());
  }
  return found->equal() ? kOk : kFailure;
}

}  // namespace

void AddMdt(CLI::App& app, int* exit) {
  CLI::App* mdt = app.add_subcommand("mdt", "Back the MDT up, restore it, compare copies of it");
  mdt->require_subcommand(1);
  mdt->footer(kMdtHelp);
  auto arguments = std::make_shared<MdtArguments>();

  CLI::App* backup = mdt->add_subcommand("backup", "Write the MDT of a running MDS into a file");
  backup->add_option("file", arguments->file, "the file to be made")->required()->type_name("FILE");
  AddAddressOptions(backup, &arguments->target);
  backup->footer(kBackupHelp);
  backup->callback([=] { *exit = RunBackup(*arguments); });

  CLI::App* restore = mdt->add_subcommand("restore", "Make an MDT from a backup");
  restore->add_option("file", arguments->file, "what nacre mdt backup has made")
      ->required()
      ->type_name("FILE");
  restore->add_option("directory", arguments->directory, "missing, or empty")->required()->type_name("DIR");
  restore->footer(kRestoreHelp);
  restore->callback([=] { *exit = RunRestore(*arguments); });

  CLI::App* compare = mdt->add_subcommand("compare", "Compare stopped copies of an MDT");
  compare->add_option("directories", arguments->directories, "of the copies, two or more")
      ->required()
      ->expected(2, 64)
      ->type_name("DIR");
  compare->footer(kCompareHelp);
  compare->callback([=] { *exit = RunCompare(*arguments); });
}

}  // namespace nacre::cli
