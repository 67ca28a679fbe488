#include "daemon/daemon_flags.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>

#include <cstdio>

#include "daemon/version.h"

namespace nacre {
namespace {

// "nacre-client: unknown option --cach: did you mean '--cache'? ..." CLI11 names neither the program nor what
// was meant.
std::string FlagComplaint(const CLI::App* app, const CLI::Error& error) {
  std::string what = error.what();
  const std::vector<std::string> rest = app->remaining();
  if (!rest.empty() && absl::StartsWith(rest.front(), "--")) {
    const std::string name = rest.front().substr(0, rest.front().find('='));
    std::vector<std::string> known;
    for (const CLI::Option* option : app->get_options()) known.push_back(option->get_name());
    what = absl::StrCat("unknown option '", name, "'", KnownNames(name, known));
  }
  return absl::StrCat(app->get_name(), ": ", what, "\nRun with --help for more information.\n");
}

}  // namespace

DaemonFlags::DaemonFlags(const std::string& program, const std::string& description,
                         std::vector<ConfigSection> sections)
    : app_(description, program), sections_(std::move(sections)) {
  app_.failure_message(FlagComplaint);
  app_.set_version_flag("--version", absl::StrCat(program, " ", kVersion));
  app_.add_option("--config", config_file_, "configuration file (nacre.toml(5)); the flags below win over it")
      ->type_name("FILE");
  app_.add_flag("--check", check_, "check the configuration and end");
  for (const ConfigSection& section : sections_) {
    const std::string front = &section == &sections_.front() ? "--" : absl::StrCat("--", section.name(), "-");
    for (const ConfigKey& key : section.keys()) {
      AddFlag(front + absl::StrReplaceAll(key.name, {{"_", "-"}}), key);
    }
  }
}

void DaemonFlags::AddFlag(const std::string& flag, const ConfigKey& key) {
  const std::string help =
      absl::StrCat(key.help, " (", key.allowed, key.fallback.empty() ? "" : "; default ", key.fallback, ")");
  auto keep = [this, flag, &key](const std::vector<std::string>& values) {
    ConfigValue value = values.back();
    if (key.list) value = values;
    given_.push_back({flag, &key, value});
    return true;
  };
  // A switch may stand alone.
  CLI::Option* option = app_.add_option(flag, CLI::callback_t(keep), help)->type_name("VALUE");
  if (key.flag) option->expected(0, 1)->default_str("true")->type_name("[BOOL]");
  if (key.list) option->expected(1, 64)->delimiter(',');
}

std::optional<int> DaemonFlags::Parse(int argc, char** argv) {
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app_.exit(error) == 0 ? 0 : kExitUsage;
  }
  return std::nullopt;
}

Status DaemonFlags::Apply() const {
  for (const Given& given : given_) {
    Status status = given.key->assign(given.value);
    if (status.ok()) continue;
    return ErrnoError(ToErrno(status), absl::StrCat(given.flag, ": ", status.message()));
  }
  return OkStatus();
}

void Complain(const std::string& program, const Status& status) {
  for (const auto& line : absl::StrSplit(status.message(), '\n')) {
    std::fprintf(stderr, "%s: %s\n", program.c_str(), std::string(line).c_str());
  }
}

}  // namespace nacre
