#include <absl/strings/match.h>
#include <absl/strings/str_format.h>

#include <cstdio>

#include "common/units.h"
#include "daemon/cli/command.h"
#include "daemon/cli/copies.h"
#include "daemon/cli/leases.h"
#include "daemon/cli/osts.h"
#include "daemon/cli/rebalance.h"
#include "daemon/cli/status_json.h"
#include "daemon/cli/status_report.h"

namespace nacre::cli {
namespace {

constexpr char kStatusExamples[] =
    "Examples:\n"
    "  nacre status --dir /tmp/n1          of a nacre local\n"
    "  nacre status --mds 127.0.0.1:7710   of a cluster\n"
    "  nacre status /mnt/nacre --json      of what is mounted there, for programs\n"
    "  nacre status --directory /mnt/nacre/a   who holds leases of it, and why somebody waits\n"
    "Exit status: 0 everything is up, 1 the MDS cannot be reached, an OST is down or lacks members, a copy "
    "of "
    "the MDT is not in sync, or there are problems.";

std::string Took(uint64_t micros) {
  return micros < 10'000 ? absl::StrFormat("%d us", micros) : absl::StrFormat("%d ms", micros / 1000);
}

void PrintPath(const proto::PathState& path) {
  std::string line = path.rail().empty() ? path.path() : path.rail();
  if (path.numa_node() >= 0) line += absl::StrFormat(" (NUMA node %d)", path.numa_node());
  if (path.down()) line += " DOWN";
  line += absl::StrFormat(": %d reads of %s, %d writes of %s, %d other calls; half within %s, 99%% within %s",
                          path.reads(), HumanSize(path.read_bytes()), path.writes(),
                          HumanSize(path.written_bytes()), path.other_calls(), Took(path.p50_micros()),
                          Took(path.p99_micros()));
  if (path.credit_waits() > 0) line += absl::StrFormat("; %d waited for credit", path.credit_waits());
  if (path.lost() > 0) line += absl::StrFormat("; %d lost", path.lost());
  if (path.moved() > 0) line += absl::StrFormat("; %d moved to another rail", path.moved());
  if (path.registrations() > 0) line += absl::StrFormat("; %d registrations", path.registrations());
  std::printf("      %s\n", line.c_str());
}

void PrintSession(const proto::SessionState& session) {
  std::printf("  %s: %s, %llu open files, %s, %llu locks, %s resident\n", session.name().c_str(),
              session.connected() ? "connected" : "NOT CONNECTED",
              static_cast<unsigned long long>(session.open_files()), LeaseCounts(session).c_str(),
              static_cast<unsigned long long>(session.locks()), HumanSize(session.resident_bytes()).c_str());
  for (const std::string& path : session.paths()) {
    std::printf("    %s\n", path.c_str());
    for (const proto::PathState& state : session.path_states()) {
      if (absl::StartsWith(path, state.address() + " ")) PrintPath(state);
    }
  }
}

void PrintStatus(const proto::ClusterStatus& status) {
  std::printf("cluster %s, Nacre %s\n", status.map().cluster_uuid().c_str(), status.version().c_str());
  std::printf("  MDS     up %s, %llu inodes, %s of %s free, %s resident\n",
              Ago(status.mds_uptime_seconds()).c_str(), static_cast<unsigned long long>(status.inodes()),
              HumanSize(status.mdt_free_bytes()).c_str(), HumanSize(status.mdt_total_bytes()).c_str(),
              HumanSize(status.mds_resident_bytes()).c_str());
  std::printf("  leases  asked back %llu times since the MDS's start, for %llu requests that had to wait\n",
              static_cast<unsigned long long>(status.revocations()),
              static_cast<unsigned long long>(status.conflicts()));
  if (status.has_copies()) {
    for (const std::string& line : CopiesLines(status.copies())) std::printf("  %s\n", line.c_str());
  }
  for (const proto::OstState& ost : status.map().osts()) {
    for (const std::string& line : OstLines(ost)) std::printf("  %s\n", line.c_str());
  }
  for (const proto::RemovedOst& ost : status.map().removed())
    std::printf("  OST %-3u removed%s\n", ost.index(), ost.lost() ? ", lost with what was on it" : "");
  for (const std::string& line : RebalanceLines(status)) std::printf("  %s\n", line.c_str());
  if (status.map().osts().empty()) std::printf("  no OST has registered yet: is nacre-oss running?\n");
  if (status.destroy_queue() > 0) {
    std::printf("  %llu objects of deleted files are still to be destroyed\n",
                static_cast<unsigned long long>(status.destroy_queue()));
  }
  std::printf("%d client%s\n", status.sessions_size(), status.sessions_size() == 1 ? "" : "s");
  for (const proto::SessionState& session : status.sessions()) PrintSession(session);
  for (const std::string& problem : CopiesProblems(status.copies()))
    std::printf("problem: %s\n", problem.c_str());
  for (const std::string& problem : status.problems()) std::printf("problem: %s\n", problem.c_str());
}

bool Healthy(const proto::ClusterStatus& status) {
  for (const proto::OstState& ost : status.map().osts()) {
    if (!ost.up() || !OstProblems(ost).empty()) return false;
  }
  return status.problems().empty() && CopiesProblems(status.copies()).empty();
}

}  // namespace

void AddStatus(CLI::App& app, int* exit) {
  AddStatusReport(app, exit,
                  {.name = "status",
                   .description = "Show the servers, OSTs and clients of a cluster, and what is wrong",
                   .examples = kStatusExamples,
                   .print = PrintStatus,
                   .to_json = StatusToJson,
                   .healthy = Healthy,
                   .of_directory = ShowLeases});
}

}  // namespace nacre::cli
