#include "daemon/version.h"

#include <cstdio>

#include "daemon/cli/command.h"
#include "daemon/cli/status_json.h"
#include "rpc/versions.h"
#include "server/metadata/records.h"
#include "server/object/format.h"

namespace nacre::cli {
namespace {

Json RangeToJson(VersionRange range) { return {{"oldest", range.oldest}, {"newest", range.newest}}; }

// By which one knows before an upgrade what it will take (docs/upgrading.md).
Json VersionsToJson() {
  Json out{{"version", kVersion}};
  out["protocols"]["clients"] = RangeToJson(kClientVersions);
  out["protocols"]["servers"] = RangeToJson(kServerVersions);
  out["formats"]["mdt"] = RangeToJson({mds::kOldestFormatVersion, mds::kFormatVersion});
  out["formats"]["ost"] = RangeToJson({ost::kFormatWithoutAnswers, ost::kFormatVersion});
  return out;
}

}  // namespace

void AddVersion(CLI::App& app, int* exit) {
  CLI::App* command = app.add_subcommand("version", "Show the version of this program");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json,
                    "print JSON: also the protocols that it speaks and the formats that it reads");
  command->callback([=] {
    if (*json) {
      std::puts(JsonText(VersionsToJson()).c_str());
    } else {
      std::printf("nacre %s\n", kVersion);
    }
    *exit = kOk;
  });
}

}  // namespace nacre::cli
