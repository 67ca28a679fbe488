// nacre: the command line. Each subcommand has a file in daemon/cli/.
#include <absl/strings/str_cat.h>

#include <string>
#include <vector>

#include "daemon/cli/command.h"
#include "daemon/config_section.h"
#include "daemon/version.h"

namespace nacre::cli {
namespace {

constexpr char kAbout[] =
    "Nacre, a parallel filesystem in user space.\n"
    "Start here: nacre local --dir /tmp/n1 --mount /mnt/nacre --osts 4 --daemon";

constexpr char kFooter[] =
    "nacre COMMAND --help explains each, with examples. Exit status: 0 done, 1 failed, 2 wrong usage.\n"
    "Servers: nacre-mds(8), nacre-oss(8); client daemon: nacre-client(8); configuration: nacre.toml(5).";

std::string UnknownCommand(const CLI::App& app, const std::string& name) {
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands({})) known.push_back(command->get_name());
  return absl::StrCat("unknown command '", name, "'", KnownNames(name, known));
}

// CLI11 says no more of a word that is no command than that a command is missing.
std::string Complaint(const CLI::App* app, const CLI::Error& error) {
  const std::vector<std::string> rest = app->remaining();
  bool unknown = app->get_subcommands().empty() && !rest.empty();
  return absl::StrCat("nacre: ", unknown ? UnknownCommand(*app, rest.front()) : error.what(),
                      "\nRun with --help for more information.\n");
}

int Main(int argc, char** argv) {
  CLI::App app(kAbout, "nacre");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("nacre ") + kVersion);
  app.require_subcommand(1);
  app.failure_message(Complaint);
  int exit = kOk;
  for (auto add :
       {AddLocal, AddStop, AddMount, AddUmount, AddStatus, AddDf, AddPath, AddEvict, AddScrub, AddSync,
        AddSetstripe, AddGetstripe, AddMigrate, AddOst, AddBench, AddDoctor, AddMdt, AddGpu, AddVersion}) {
    add(app, &exit);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  return exit;
}

}  // namespace

}  // namespace nacre::cli

int main(int argc, char** argv) { return nacre::cli::Main(argc, argv); }
