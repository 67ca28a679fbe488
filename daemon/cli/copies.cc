#include "daemon/cli/copies.h"

#include <absl/strings/str_format.h>

#include <algorithm>

namespace nacre::cli {
namespace {

// How many changes the member lacks, as far as it has said.
uint64_t Lag(const proto::MdtCopies& copies, const proto::MdtCopyState& member) {
  return copies.sequence() - std::min(copies.sequence(), member.sequence());
}

// Changes under way are no lag: a member in sync has each before it is acknowledged.
std::string Behind(const proto::MdtCopies& copies, const proto::MdtCopyState& member) {
  if (member.in_sync()) return "";
  const uint64_t lag = Lag(copies, member);
  return lag == 0 ? "" : absl::StrFormat(", %d changes behind", lag);
}

}  // namespace

std::vector<std::string> CopiesLines(const proto::MdtCopies& copies) {
  const auto in_sync = std::count_if(copies.members().begin(), copies.members().end(),
                                     [](const proto::MdtCopyState& member) { return member.in_sync(); });
  std::vector<std::string> lines = {
      absl::StrFormat("MDT     %d of %d copies in sync, %s is the primary, epoch %d, change %d:", in_sync,
                      copies.members_size(), copies.primary(), copies.epoch(), copies.sequence())};
  for (const proto::MdtCopyState& member : copies.members()) {
    std::string line = absl::StrFormat("  %-12s %s  %s%s", member.name(), member.address(), member.state(),
                                       Behind(copies, member));
    if (member.name() != copies.primary()) {
      line += absl::StrFormat(", heard %.1f s ago",
                              static_cast<double>(member.milliseconds_since_answer()) / 1000);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> CopiesProblems(const proto::MdtCopies& copies) {
  std::vector<std::string> problems;
  for (const proto::MdtCopyState& member : copies.members()) {
    if (member.in_sync()) continue;
    problems.push_back(absl::StrFormat("the MDS %s at %s is not in sync: %s%s", member.name(),
                                       member.address(), member.state(), Behind(copies, member)));
  }
  return problems;
}

Json CopiesToJson(const proto::MdtCopies& copies) {
  Json members = Json::array();
  for (const proto::MdtCopyState& member : copies.members()) {
    members.push_back({{"name", member.name()},
                       {"address", member.address()},
                       {"in_sync", member.in_sync()},
                       {"state", member.state()},
                       {"sequence", member.sequence()},
                       {"lag", Lag(copies, member)},
                       {"milliseconds_since_answer", member.milliseconds_since_answer()}});
  }
  return {{"epoch", copies.epoch()},
          {"primary", copies.primary()},
          {"sequence", copies.sequence()},
          {"members", members}};
}

}  // namespace nacre::cli
