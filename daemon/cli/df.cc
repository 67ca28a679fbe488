#include <cstdio>

#include "common/units.h"
#include "daemon/cli/command.h"
#include "daemon/cli/osts.h"
#include "daemon/cli/status_json.h"
#include "daemon/cli/status_report.h"

namespace nacre::cli {
namespace {

constexpr char kDfExamples[] =
    "Examples:\n"
    "  nacre df --dir /tmp/n1\n"
    "  nacre df /mnt/nacre --json\n"
    "Exit status: 0 done, 1 the MDS cannot be reached.";

void PrintLine(const std::string& name, uint64_t total, uint64_t used, uint64_t available,
               const std::string& remark) {
  std::printf("%-10s %10s %10s %10s %4d%%  %s\n", name.c_str(), HumanSize(total).c_str(),
              HumanSize(used).c_str(), HumanSize(available).c_str(), PercentUsed(used + available, available),
              remark.c_str());
}

void PrintSpace(const std::string& name, uint64_t total, uint64_t available, const std::string& remark) {
  PrintLine(name, total, total - std::min(total, available), available, remark);
}

void PrintDf(const proto::ClusterStatus& status) {
  std::printf("%-10s %10s %10s %10s %5s\n", "target", "size", "used", "available", "use");
  // Others may use the MDT's disk, too: their part is neither used by it nor available.
  PrintLine("MDT", status.mdt_total_bytes(), status.mdt_used_bytes(), status.mdt_free_bytes(),
            std::to_string(status.inodes()) + " inodes");
  for (const proto::OstState& ost : status.map().osts()) {
    const std::string objects = ObjectsAndMembers(ost);
    PrintSpace("OST " + std::to_string(ost.info().index()), ost.info().total_bytes(),
               ost.info().available_bytes(), ost.up() ? objects : "DOWN, as last heard: " + objects);
  }
  const Space space = OstSpace(status);
  PrintSpace("all OSTs", space.total, space.available, "");
}

}  // namespace

void AddDf(CLI::App& app, int* exit) {
  AddStatusReport(app, exit,
                  {.name = "df",
                   .description = "Show the space of each target",
                   .examples = kDfExamples,
                   .print = PrintDf,
                   .to_json = SpaceToJson,
                   .healthy = [](const proto::ClusterStatus&) { return true; }});
}

}  // namespace nacre::cli
