#include "daemon/cli/status_json.h"

#include <algorithm>
#include <cstdio>

#include "daemon/cli/command.h"
#include "daemon/cli/copies.h"
#include "daemon/cli/osts.h"
#include "daemon/cli/rebalance.h"
#include "daemon/cli/scrubs.h"

namespace nacre::cli {
namespace {

template <typename Range>
Json Texts(const Range& texts) {
  Json out = Json::array();
  for (const std::string& text : texts) out.push_back(text);
  return out;
}

Json OstToJson(const proto::OstState& ost) {
  Json out = {{"index", ost.info().index()},
              {"up", ost.up()},
              {"address", ost.address()},
              {"directory", ost.info().directory()},
              {"uuid", ost.info().uuid()},
              {"total_bytes", ost.info().total_bytes()},
              {"available_bytes", ost.info().available_bytes()},
              {"objects", ost.info().objects()},
              {"seconds_since_heartbeat", ost.seconds_since_heartbeat()},
              {"problems", Texts(OstProblems(ost))}};
  if (ost.has_drain()) {
    out["drain"] = {{"moved_files", ost.drain().moved_files()},
                    {"moved_bytes", ost.drain().moved_bytes()},
                    {"stuck_files", ost.drain().stuck_files()},
                    {"passes", ost.drain().passes()},
                    {"empty", ost.drain().empty()}};
  }
  if (ost.info().has_scrub()) out["scrub"] = ScrubToJson(ost.info().scrub());
  if (!ost.members().empty()) out["chain"] = ChainToJson(ost);
  return out;
}

Json PathToJson(const proto::PathState& path) {
  return {{"address", path.address()},
          {"path", path.path()},
          {"rail", path.rail()},
          {"numa_node", path.numa_node()},
          {"up", !path.down()},
          {"reads", path.reads()},
          {"read_bytes", path.read_bytes()},
          {"writes", path.writes()},
          {"written_bytes", path.written_bytes()},
          {"other_calls", path.other_calls()},
          {"p50_micros", path.p50_micros()},
          {"p99_micros", path.p99_micros()},
          {"credit_waits", path.credit_waits()},
          {"lost", path.lost()},
          {"moved", path.moved()},
          {"registrations", path.registrations()}};
}

Json SessionToJson(const proto::SessionState& session) {
  Json path_states = Json::array();
  for (const proto::PathState& path : session.path_states()) path_states.push_back(PathToJson(path));
  return {{"id", session.id()},
          {"name", session.name()},
          {"connected", session.connected()},
          {"open_files", session.open_files()},
          {"leases", session.leases()},
          {"write_leases", session.write_leases()},
          {"leases_asked_back", session.leases_asked_back()},
          {"locks", session.locks()},
          {"resident_bytes", session.resident_bytes()},
          {"paths", Texts(session.paths())},
          {"path_states", path_states}};
}

}  // namespace

int PercentUsed(uint64_t total, uint64_t available) {
  if (total == 0) return 0;
  const uint64_t used = total - std::min(total, available);
  return static_cast<int>((static_cast<unsigned __int128>(used) * 100 + total - 1) / total);
}

Space OstSpace(const proto::ClusterStatus& status) {
  Space space;
  for (const proto::OstState& ost : status.map().osts()) {
    if (!ost.up()) continue;
    space.total += ost.info().total_bytes();
    space.available += ost.info().available_bytes();
  }
  return space;
}

Json StatusToJson(const proto::ClusterStatus& status) {
  Json osts = Json::array(), sessions = Json::array(), removed = Json::array();
  for (const proto::RemovedOst& ost : status.map().removed())
    removed.push_back({{"index", ost.index()}, {"lost", ost.lost()}});
  Json requests = Json::object();
  for (const proto::OstState& ost : status.map().osts()) osts.push_back(OstToJson(ost));
  for (const auto& [operation, count] : status.requests()) requests[operation] = count;
  for (const proto::SessionState& session : status.sessions()) sessions.push_back(SessionToJson(session));
  std::vector<std::string> problems(status.problems().begin(), status.problems().end());
  for (std::string& problem : CopiesProblems(status.copies())) problems.push_back(std::move(problem));
  Json out = {{"cluster_uuid", status.map().cluster_uuid()},
              {"version", status.version()},
              {"map_version", status.map().version()},
              {"mds",
               {{"uptime_seconds", status.mds_uptime_seconds()},
                {"resident_bytes", status.mds_resident_bytes()},
                {"inodes", status.inodes()},
                {"total_bytes", status.mdt_total_bytes()},
                {"used_bytes", status.mdt_used_bytes()},
                {"free_bytes", status.mdt_free_bytes()},
                {"destroy_queue", status.destroy_queue()},
                {"requests", requests},
                {"revocations", status.revocations()},
                {"conflicts", status.conflicts()}}},
              {"osts", osts},
              {"removed_osts", removed},
              {"sessions", sessions},
              {"problems", problems}};
  if (status.has_rebalance()) out["rebalance"] = RebalanceToJson(status.rebalance());
  if (status.has_copies()) out["copies"] = CopiesToJson(status.copies());
  return out;
}

Json SpaceToJson(const proto::ClusterStatus& status) {
  Json osts = Json::array();
  for (const proto::OstState& ost : status.map().osts()) {
    osts.push_back({{"index", ost.info().index()},
                    {"up", ost.up()},
                    {"total_bytes", ost.info().total_bytes()},
                    {"available_bytes", ost.info().available_bytes()},
                    {"draining", ost.has_drain()},
                    {"objects", ost.info().objects()}});
    if (ost.members().empty()) continue;
    osts.back()["copies"] = WantedMembers(ost);
    osts.back()["in_sync"] = MembersInSync(ost);
  }
  const Space space = OstSpace(status);
  return {{"mdt",
           {{"total_bytes", status.mdt_total_bytes()},
            {"used_bytes", status.mdt_used_bytes()},
            {"available_bytes", status.mdt_free_bytes()},
            {"inodes", status.inodes()}}},
          {"osts", osts},
          {"total_bytes", space.total},
          {"available_bytes", space.available}};
}

std::string JsonText(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace); }

int FailWith(const Status& why, bool json) {
  const Json error = {{"error", std::string(why.message())}};
  if (json) std::puts(JsonText(error).c_str());
  return Fail(why);
}

}  // namespace nacre::cli
