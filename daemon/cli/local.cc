#include "daemon/local.h"

#include "common/units.h"
#include "daemon/cli/command.h"

namespace nacre::cli {
namespace {

constexpr char kLocalHelp[] =
    "Examples:\n"
    "  nacre local --dir /tmp/n1 --mount /mnt/nacre --osts 4            until Ctrl-C\n"
    "  nacre local --dir /tmp/n1 --mount /mnt/nacre --osts 4 --daemon   in the background; end it with nacre "
    "stop\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.";

constexpr char kStopHelp[] =
    "Unmounts, waits until everything is on disk, ends the process.\n"
    "Example: nacre stop --dir /tmp/n1\n"
    "Exit status: 0 stopped, 1 not running or not stopped.";

struct LocalArguments {
  LocalOptions options;
  std::string ost_size;
  std::string cache;
};

Status ReadSize(const std::string& text, uint64_t* size) {
  if (text.empty()) return OkStatus();
  ASSIGN_OR_RETURN(*size, ParseSize(text));
  return OkStatus();
}

int RunLocal(LocalArguments arguments) {
  Status status = ReadSize(arguments.ost_size, &arguments.options.ost_bytes);
  if (status.ok()) status = ReadSize(arguments.cache, &arguments.options.cache_bytes);
  if (!status.ok()) return Fail(status);
  return RunLocal(std::move(arguments.options));
}

}  // namespace

void AddLocal(CLI::App& app, int* exit) {
  CLI::App* command =
      app.add_subcommand("local", "Run a whole filesystem on this machine in one process, and mount it");
  auto arguments = std::make_shared<LocalArguments>();
  LocalOptions& options = arguments->options;
  command->add_option("--dir", options.directory, "where its data lives; made when it is missing")
      ->required()
      ->type_name("DIR");
  command->add_option("--mount", options.mountpoint, "directory to mount at; made if missing")
      ->required()
      ->type_name("DIR");
  command->add_option("--osts", options.osts, "number of OSTs; may grow from one start to the next")
      ->capture_default_str();
  command
      ->add_option("--ost-size", arguments->ost_size,
                   "space of each new OST; by default its share of the disk")
      ->type_name("SIZE");
  command->add_option("--cache", arguments->cache, "memory of the client for file data; default 128M")
      ->type_name("SIZE");
  command->add_flag("--daemon", options.background, "go on in the background once it is mounted");
  command->footer(kLocalHelp);
  command->callback([=] { *exit = RunLocal(*arguments); });
}

void AddStop(CLI::App& app, int* exit) {
  CLI::App* command = app.add_subcommand("stop", "End a nacre local");
  auto directory = std::make_shared<std::string>();
  command->add_option("--dir", *directory, "the directory it was started with")->required()->type_name("DIR");
  command->footer(kStopHelp);
  command->callback([=] { *exit = StopLocal(*directory); });
}

}  // namespace nacre::cli
