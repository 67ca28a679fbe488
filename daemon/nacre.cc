// nacre: the command line. Each subcommand has a file in daemon/cli/.
#include <string>

#include "daemon/cli/command.h"
#include "daemon/version.h"

namespace nacre::cli {
namespace {

constexpr char kAbout[] =
    "Nacre, a parallel filesystem in user space.\n"
    "Start here: nacre local --dir /tmp/n1 --mount /mnt/nacre --osts 4 --daemon";

constexpr char kFooter[] =
    "nacre COMMAND --help explains each, with examples. Exit status: 0 done, 1 failed, 2 wrong usage.\n"
    "Servers: nacre-mds(8), nacre-oss(8); client daemon: nacre-client(8); configuration: nacre.toml(5).";

int Main(int argc, char** argv) {
  CLI::App app(kAbout, "nacre");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("nacre ") + kVersion);
  app.require_subcommand(1);
  int exit = kOk;
  for (auto add : {AddLocal, AddStop, AddMount, AddUmount, AddStatus, AddDf, AddSetstripe, AddGetstripe,
                   AddBench, AddDoctor, AddVersion}) {
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
