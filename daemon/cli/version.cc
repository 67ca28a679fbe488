#include "daemon/version.h"

#include <cstdio>

#include "daemon/cli/command.h"
#include "daemon/cli/status_json.h"

namespace nacre::cli {

void AddVersion(CLI::App& app, int* exit) {
  CLI::App* command = app.add_subcommand("version", "Show the version of this program");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print JSON");
  command->callback([=] {
    if (*json) {
      std::puts(Json{{"version", kVersion}}.dump(2).c_str());
    } else {
      std::printf("nacre %s\n", kVersion);
    }
    *exit = kOk;
  });
}

}  // namespace nacre::cli
