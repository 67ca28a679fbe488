#include "daemon/cli/osts.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "common/units.h"
#include "daemon/cli/scrubs.h"

namespace nacre::cli {
namespace {

// Why members are missing, as far as it is known.
std::string Missing(const proto::OstState& ost) {
  std::vector<std::string> words;
  for (int i = 0; i < ost.members_size(); ++i) {
    const proto::MemberState& member = ost.members(i);
    if (!member.in_sync()) words.push_back(absl::StrCat(member.address(), " is ", MemberWord(ost, i)));
  }
  const uint32_t known = static_cast<uint32_t>(ost.members_size());
  if (const uint32_t wanted = WantedMembers(ost); known < wanted) {
    words.push_back(absl::StrFormat("%d more server%s must have this index in [[oss.ost]]", wanted - known,
                                    wanted - known > 1 ? "s" : ""));
  }
  return absl::StrJoin(words, ", ");
}

std::string UpOrDown(bool up, const proto::OstInfo& info, uint64_t seconds_since_heartbeat) {
  if (up) return "up";
  return info.failing() ? "FAILING" : absl::StrFormat("DOWN for %s", Ago(seconds_since_heartbeat));
}

}  // namespace

std::string Ago(uint64_t seconds) {
  if (seconds < 120) return absl::StrFormat("%d s", seconds);
  if (seconds < 2 * 3600) return absl::StrFormat("%d min", seconds / 60);
  if (seconds < 48 * 3600) return absl::StrFormat("%d h", seconds / 3600);
  return absl::StrFormat("%d days", seconds / 86400);
}

uint32_t WantedMembers(const proto::OstState& ost) {
  uint32_t wanted = std::max(ost.info().copies(), 1u);
  for (const proto::MemberState& member : ost.members()) wanted = std::max(wanted, member.info().copies());
  return wanted;
}

uint32_t MembersInSync(const proto::OstState& ost) {
  return static_cast<uint32_t>(
      std::count_if(ost.members().begin(), ost.members().end(),
                    [](const proto::MemberState& member) { return member.in_sync(); }));
}

const char* MemberWord(const proto::OstState& ost, int member) {
  const proto::MemberState& state = ost.members(member);
  if (state.in_sync()) return member == 0 ? "head" : "in sync";
  return state.joining() ? "joining" : "away";
}

std::vector<std::string> OstProblems(const proto::OstState& ost) {
  std::vector<std::string> problems(ost.info().problems().begin(), ost.info().problems().end());
  const uint32_t in_sync = MembersInSync(ost), wanted = WantedMembers(ost);
  if (ost.has_drain() && !ost.drain().problem().empty())
    problems.push_back("draining: " + ost.drain().problem());
  if (!ost.members().empty() && in_sync < wanted) {
    problems.push_back(absl::StrFormat("%d of %d members in sync: %s", in_sync, wanted, Missing(ost)));
  }
  for (int i = 1; i < ost.members_size(); ++i) {  // the head's are those of the OST
    const proto::MemberState& member = ost.members(i);
    for (const std::string& problem : member.info().problems())
      problems.push_back(absl::StrFormat("member at %s: %s", member.address(), problem));
  }
  return problems;
}

std::vector<std::string> OstLines(const proto::OstState& ost) {
  const proto::OstInfo& info = ost.info();
  std::vector<std::string> lines = {absl::StrFormat(
      "OST %-3d %-14s %9s of %9s free  %8d objects  %s  %s", info.index(),
      UpOrDown(ost.up(), info, ost.seconds_since_heartbeat()), HumanSize(info.available_bytes()),
      HumanSize(info.total_bytes()), info.objects(), ost.address(), info.directory())};
  if (ost.has_drain()) lines.push_back("  draining: " + DrainText(ost));
  if (!ost.members().empty()) {
    lines.push_back(absl::StrFormat("  %d of %d members in sync, epoch %d:", MembersInSync(ost),
                                    WantedMembers(ost), ost.chain_epoch()));
  }
  for (int i = 0; i < ost.members_size(); ++i) {
    const proto::MemberState& member = ost.members(i);
    lines.push_back(absl::StrFormat("    %-8s %-14s %s  %s", MemberWord(ost, i),
                                    UpOrDown(member.up(), member.info(), member.seconds_since_heartbeat()),
                                    member.address(), member.info().directory()));
  }
  for (const std::string& problem : OstProblems(ost)) lines.push_back("  problem: " + problem);
  return lines;
}

std::string DrainText(const proto::OstState& ost) {
  const proto::DrainState& drain = ost.drain();
  std::string text =
      absl::StrFormat("%d files (%s) moved, ", drain.moved_files(), HumanSize(drain.moved_bytes()));
  if (drain.empty()) return text + "no file is left: nacre ost remove takes it out";
  absl::StrAppend(&text, ost.info().objects(), " objects are left");
  if (drain.stuck_files() > 0)
    absl::StrAppend(&text, ", ", drain.stuck_files(), " files could not be moved yet");
  return text;
}

std::string ObjectsAndMembers(const proto::OstState& ost) {
  std::string text = absl::StrCat(ost.info().objects(), " objects");
  if (ost.has_drain()) absl::StrAppend(&text, ost.drain().empty() ? ", drained" : ", draining");
  if (!ost.members().empty())
    absl::StrAppend(&text, ", ", MembersInSync(ost), " of ", WantedMembers(ost), " members in sync");
  return text;
}

Json ChainToJson(const proto::OstState& ost) {
  Json members = Json::array();
  for (int i = 0; i < ost.members_size(); ++i) {
    const proto::MemberState& member = ost.members(i);
    members.push_back({{"address", member.address()},
                       {"state", MemberWord(ost, i)},
                       {"up", member.up()},
                       {"directory", member.info().directory()},
                       {"uuid", member.info().uuid()},
                       {"total_bytes", member.info().total_bytes()},
                       {"available_bytes", member.info().available_bytes()},
                       {"objects", member.info().objects()},
                       {"seconds_since_heartbeat", member.seconds_since_heartbeat()}});
    if (member.info().has_scrub()) members.back()["scrub"] = ScrubToJson(member.info().scrub());
  }
  return {{"ost", ost.info().index()},
          {"epoch", ost.chain_epoch()},
          {"copies", WantedMembers(ost)},
          {"members", members}};
}

}  // namespace nacre::cli
