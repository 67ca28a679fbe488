// The command line of a daemon: --config FILE, --check, --version, and one flag for each key of its sections,
// which wins over the file. Flags of the first section have the keys' names; those of others have the
// section's in front of them (--copies-name). Main thread only.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "daemon/config.h"
#include "daemon/config_section.h"

namespace nacre {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

class DaemonFlags {
 public:
  // The sections write into the daemon's configuration.
  DaemonFlags(const std::string& program, const std::string& description,
              std::vector<ConfigSection> sections);

  CLI::App& app() { return app_; }

  // A value: exit with it (help, a usage error, already printed).
  std::optional<int> Parse(int argc, char** argv);

  const std::string& config_file() const { return config_file_; }
  bool check() const { return check_; }

  // Writes the given flags into the configuration.
  Status Apply() const;

 private:
  void AddFlag(const std::string& flag, const ConfigKey& key);

  struct Given {
    std::string flag;
    const ConfigKey* key;
    ConfigValue value;
  };

  CLI::App app_;
  const std::vector<ConfigSection> sections_;
  std::string config_file_;
  bool check_ = false;
  std::vector<Given> given_;
};

// Prints each line of the message behind the program's name.
void Complain(const std::string& program, const Status& status);

// Reads the file that the flags name, applies the flags, checks the whole. A value: exit with it.
template <typename Config>
std::optional<int> Configure(DaemonFlags& flags, int argc, char** argv, Config* config,
                             const std::function<Status(Config*)>& more_flags = nullptr) {
  if (auto exit = flags.Parse(argc, argv)) return exit;
  Status status = flags.config_file().empty() ? OkStatus() : ReadConfig(flags.config_file(), config);
  if (status.ok()) status = flags.Apply();
  if (status.ok() && more_flags) status = more_flags(config);
  if (status.ok()) status = Finish(config);
  if (!status.ok()) {
    Complain(flags.app().get_name(), status);
    return kExitUsage;
  }
  if (!flags.check()) return std::nullopt;
  std::puts("the configuration is good");
  return 0;
}

}  // namespace nacre
