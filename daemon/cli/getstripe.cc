#include <absl/strings/str_format.h>

#include <cerrno>
#include <cstdio>

#include "client/layout_text.h"
#include "common/units.h"
#include "daemon/cli/command.h"
#include "daemon/cli/status_json.h"
#include "daemon/cli/xattr.h"

namespace nacre::cli {
namespace {

constexpr char kGetstripeExamples[] =
    "Examples:\n"
    "  nacre getstripe /mnt/nacre/file       which OSTs hold it\n"
    "  nacre getstripe /mnt/nacre/dir        what is made there gets this layout\n"
    "  nacre getstripe --json /mnt/nacre/*\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.";

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
}

int RunGetstripe(const std::vector<std::string>& paths, bool json) {
  Json all = Json::array();
  int exit = kOk;
  for (const std::string& path : paths) {
    auto stripes = Read(path);
    if (!stripes.ok()) {
      Fail(stripes.status());
      exit = kFailure;
    } else if (json) {
      all.push_back(*stripes);
    } else {
      PrintGetstripe(*stripes);
    }
  }
  if (json) std::puts(all.dump(2).c_str());
  return exit;
}

}  // namespace

void AddGetstripe(CLI::App& app, int* exit) {
  CLI::App* command = app.add_subcommand("getstripe", "Show how files are spread over the OSTs");
  auto paths = std::make_shared<std::vector<std::string>>();
  auto json = std::make_shared<bool>(false);
  command->add_option("path", *paths, "files and directories on a mount")->required()->type_name("PATH");
  command->add_flag("--json", *json, "print JSON");
  command->footer(kGetstripeExamples);
  command->callback([=] { *exit = RunGetstripe(*paths, *json); });
}

}  // namespace nacre::cli
