#include <absl/strings/str_format.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "client/layout_text.h"
#include "common/units.h"
#include "daemon/cli/cluster_target.h"
#include "daemon/cli/command.h"
#include "daemon/cli/osts.h"
#include "daemon/cli/status_json.h"
#include "daemon/cli/xattr.h"

namespace nacre::cli {
namespace {

constexpr char kGetstripeExamples[] =
    "Examples:\n"
    "  nacre getstripe /mnt/nacre/file       which OSTs hold it, and their members where they have several\n"
    "  nacre getstripe /mnt/nacre/dir        what is made there gets this layout\n"
    "  nacre getstripe --json /mnt/nacre/*\n"
    "  nacre getstripe -r -q /mnt/nacre/dir  the objects of everything below it\n"
    "  nacre getstripe -c /mnt/nacre/file    just the number of its stripes\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.";

struct Arguments {
  std::vector<std::string> paths;
  bool json = false, recursive = false, quiet = false;
  bool count = false, size = false, first_ost = false;

  bool values_only() const { return count || size || first_ost; }
};

StatusOr<Json> Read(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, ReadXattr(path, kStripesXattr));
  Json stripes = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!stripes.is_object() || !stripes.contains("fid")) {
    return ErrnoError(
        EPROTO,
        absl::StrFormat("%s: the mount answers '%s', which this version does not understand", path, text));
  }
  Json out = {{"path", path}};
  out.update(stripes);
  return out;
}

// The OSTs that have several members, asked for once of each cluster. Where nobody answers there are none,
// and it is said.
class KnownChains {
 public:
  // Adds "chains" to what is known of a file: those of its OSTs.
  void AddTo(const std::string& path, Json* stripes) {
    if (!stripes->contains("components")) return;
    const std::map<uint32_t, Json>& chains = Of(path);
    std::set<uint32_t> osts;
    for (const Json& component : (*stripes)["components"]) {
      for (const Json& ost : component["osts"]) osts.insert(ost.get<uint32_t>());
    }
    for (uint32_t ost : osts) {
      if (auto chain = chains.find(ost); chain != chains.end()) (*stripes)["chains"].push_back(chain->second);
    }
  }

 private:
  const std::map<uint32_t, Json>& Of(const std::string& path) {
    ClusterTarget target;
    target.path = path;
    auto mds = FindMds(target);
    target.mds = mds.ok() ? *mds : "";
    auto [known, fresh] = clusters_.try_emplace(target.mds);
    if (!fresh) return known->second;
    auto status = mds.ok() ? FetchStatus(target) : StatusOr<proto::ClusterStatus>(mds.status());
    if (!status.ok()) {
      std::fprintf(stderr, "nacre: the members of OSTs are not shown: %s\n",
                   std::string(status.status().message()).c_str());
      return known->second;
    }
    for (const proto::OstState& ost : status->map().osts()) {
      if (ost.members_size() > 0) known->second[ost.info().index()] = ChainToJson(ost);
    }
    return known->second;
  }

  std::map<std::string, std::map<uint32_t, Json>> clusters_;  // by the address of the MDS
};

// The members of each OST that has several: "OST 3: 10.0.0.11:7720 (head), 10.0.0.12:7720 (in sync)".
void PrintChains(const Json& stripes) {
  if (!stripes.contains("chains")) return;
  for (const Json& chain : stripes["chains"]) {
    std::string members;
    for (const Json& member : chain["members"]) {
      absl::StrAppendFormat(&members, "%s%s (%s%s)", members.empty() ? "" : ", ",
                            member["address"].get<std::string>(), member["state"].get<std::string>(),
                            member["up"].get<bool>() ? "" : ", down");
    }
    std::printf("  OST %u: %s\n", chain["ost"].get<uint32_t>(), members.c_str());
  }
}

void PrintComponent(size_t number, const Json& component) {
  const std::string end =
      component["end"].is_null() ? "end of file" : ExactSize(component["end"].get<uint64_t>());
  std::string osts;
  for (const Json& ost : component["osts"])
    absl::StrAppendFormat(&osts, "%s%d", osts.empty() ? "" : ", ", ost.get<uint32_t>());
  std::printf("  component %zu: %s to %s, stripe size %s, stripe count %zu, on OST %s\n", number,
              ExactSize(component["start"].get<uint64_t>()).c_str(), end.c_str(),
              ExactSize(component["stripe_size"].get<uint64_t>()).c_str(), component["osts"].size(),
              osts.c_str());
}

void PrintGetstripe(const Json& stripes) {
  std::printf("%s\n  fid %s\n", stripes["path"].get<std::string>().c_str(),
              stripes["fid"].get<std::string>().c_str());
  if (stripes.contains("layout")) {
    const std::string layout = stripes["layout"];
    std::printf("  default for what is made here%s: %s\n",
                stripes.value("inherited", false) ? " (inherited)" : "",
                layout.empty() ? "the file system's" : layout.c_str());
    return;
  }
  if (stripes.value("inline", false))
    std::printf("  its bytes lie in the MDT (small file); when it grows:\n");
  std::printf("  objects %s.N, layout generation %u\n", stripes.value("objects", "").c_str(),
              stripes.value("generation", 0u));
  size_t number = 0;
  for (const Json& component : stripes["components"]) PrintComponent(number++, component);
  PrintChains(stripes);
}

void PrintObjects(const Json& stripes) {
  std::puts(stripes["path"].get<std::string>().c_str());
  if (stripes.contains("layout") || stripes.value("inline", false)) return;
  uint32_t number = 0;
  for (const Json& component : stripes["components"]) {
    for (const Json& ost : component["osts"])
      std::printf("  ost %u object %s.%u\n", ost.get<uint32_t>(), stripes.value("objects", "").c_str(),
                  number++);
  }
}

// Prints the values asked for of one component, in the order of the options in the help.
void PrintValues(const Arguments& arguments, int64_t count, uint64_t size, int64_t first_ost) {
  std::string line;
  auto add = [&line](auto value) { absl::StrAppend(&line, line.empty() ? "" : " ", value); };
  if (arguments.count) add(count);
  if (arguments.size) add(size);
  if (arguments.first_ost) add(first_ost);
  std::puts(line.c_str());
}

Status PrintValues(const Arguments& arguments, const Json& stripes) {
  constexpr int64_t kAny = -1;  // of a directory: the MDS will choose
  if (stripes.contains("layout")) {
    ASSIGN_OR_RETURN(proto::LayoutTemplate layout, ParseLayout(stripes["layout"].get<std::string>()));
    for (const auto& component : layout.components())
      PrintValues(arguments, component.stripe_count(), component.stripe_size(), kAny);
    return OkStatus();
  }
  for (const Json& component : stripes["components"]) {
    const Json& osts = component["osts"];
    PrintValues(arguments, static_cast<int64_t>(osts.size()), component["stripe_size"].get<uint64_t>(),
                osts.empty() ? kAny : osts[0].get<int64_t>());
  }
  return OkStatus();
}

// Shows each path as the arguments say.
class Shower {
 public:
  explicit Shower(const Arguments& arguments) : arguments_(arguments) {}

  int Run() {
    for (const std::string& path : arguments_.paths) {
      Note(Show(path));
      if (arguments_.recursive) ShowBelow(path);
    }
    if (arguments_.json) std::puts(JsonText(all_).c_str());
    return exit_;
  }

 private:
  void Note(const Status& status) {
    if (status.ok()) return;
    Fail(status);
    exit_ = kFailure;
  }

  Status Show(const std::string& path) {
    ASSIGN_OR_RETURN(Json stripes, Read(path));
    if (!arguments_.values_only() && !arguments_.quiet) chains_.AddTo(path, &stripes);
    if (arguments_.json)
      all_.push_back(std::move(stripes));
    else if (arguments_.values_only())
      return PrintValues(arguments_, stripes);
    else if (arguments_.quiet)
      PrintObjects(stripes);
    else
      PrintGetstripe(stripes);
    return OkStatus();
  }

  // The files and directories below one; nothing else has a layout. Symbolic links are not followed.
  void ShowBelow(const std::string& path) {
    namespace fs = std::filesystem;
    std::error_code error;
    if (fs::symlink_status(path, error).type() != fs::file_type::directory) return;
    fs::directory_iterator entries(path, error);
    for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
      const fs::file_type type = entries->symlink_status(error).type();
      if (type != fs::file_type::directory && type != fs::file_type::regular) continue;
      Note(Show(entries->path()));
      if (type == fs::file_type::directory) ShowBelow(entries->path());
    }
    if (error) Note(ErrnoError(error.value(), absl::StrFormat("%s: %s", path, error.message())));
  }

  const Arguments& arguments_;
  KnownChains chains_;
  Json all_ = Json::array();
  int exit_ = kOk;
};

}  // namespace

void AddGetstripe(CLI::App& app, int* exit) {
  CLI::App* command = app.add_subcommand("getstripe", "Show how files are spread over the OSTs");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("path", arguments->paths, "files and directories on a mount")
      ->required()
      ->type_name("PATH");
  command->add_flag("-r,--recursive", arguments->recursive, "everything below a directory too");
  CLI::Option* quiet =
      command->add_flag("-q,--quiet", arguments->quiet, "only the OST and object of each stripe");
  auto value = [&](const char* names, bool& wanted, const char* help) {
    return command->add_flag(names, wanted, help)->excludes(quiet);
  };
  CLI::Option* values[] = {
      value("-c,--stripe-count", arguments->count, "only this number; a line for each component"),
      value("-S,--stripe-size", arguments->size, "only this number of bytes, likewise"),
      value("-i,--stripe-index", arguments->first_ost, "only the first stripe's OST, likewise; -1: any"),
  };
  CLI::Option* json = command->add_flag("--json", arguments->json, "print JSON")->excludes(quiet);
  for (CLI::Option* option : values) json->excludes(option);
  command->footer(kGetstripeExamples);
  command->callback([=] { *exit = Shower(*arguments).Run(); });
}

}  // namespace nacre::cli
