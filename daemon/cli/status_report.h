// Commands that ask a cluster for its status and print it: for people, or as JSON with --json.
#pragma once

#include <CLI/CLI.hpp>

#include "daemon/cli/cluster_target.h"
#include "daemon/cli/status_json.h"
#include "proto/cluster.pb.h"

namespace nacre::cli {

struct StatusReport {
  const char* name;
  const char* description;
  const char* examples;
  void (*print)(const proto::ClusterStatus&);
  Json (*to_json)(const proto::ClusterStatus&);
  bool (*healthy)(const proto::ClusterStatus&);  // false: exit status 1
  // With --directory PATH, where the command has that; returns the exit status.
  int (*of_directory)(const ClusterTarget&, const std::string& path, bool json) = nullptr;
};

void AddStatusReport(CLI::App& app, int* exit, const StatusReport& report);

}  // namespace nacre::cli
