#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "client/layout_text.h"
#include "daemon/cli/command.h"
#include "daemon/cli/layout_options.h"
#include "daemon/cli/xattr.h"

namespace nacre::cli {
namespace {

constexpr char kSetstripeHelp[] =
    "nacre setstripe [-E END] [-c COUNT] [-S SIZE] [-N COPIES] [-E END ...] PATH...\n"
    "nacre setstripe -d DIR...\n"
    "\n"
    "Options (in this order for each component):\n"
    "  -E, --component-end END     a component up to this byte of the file; -1 or eof: its end\n"
    "  -c, --stripe-count COUNT    stripes; -1: one on every OST\n"
    "  -S, --stripe-size SIZE      bytes of a stripe, a multiple of 64K\n"
    "  -N, --copies COPIES         on OSTs that have so many members, 1 to 3; 0: as few as there are\n"
    "  -d, --delete                directories: inherit again\n"
    "The MDS chooses the OSTs, by their free space; there are no pools of them. So of Lustre's other options "
    "-i is taken\n"
    "as -i -1 only, and -o and -p not at all.\n"
    "\n"
    "On a directory the layout is the default for what is made in it from then on. A file takes one only as "
    "long as it\n"
    "has no data; a file that does not exist is made. -c, -S and -N hold for the later components too "
    "until given again.\n"
    "\n"
    "Examples:\n"
    "  nacre setstripe -c 4 -S 1M /mnt/nacre/data             4 stripes of 1 MiB for what is made there\n"
    "  nacre setstripe -c -1 /mnt/nacre/wide                  one stripe on every OST\n"
    "  nacre setstripe -E 1M -c 1 -E 64M -c 4 -E -1 -c -1 /mnt/nacre/mixed\n"
    "                                                         progressive: the larger the file, the more "
    "OSTs\n"
    "  nacre setstripe -c 4 --copies 2 /mnt/nacre/dear        each stripe on two servers\n"
    "  nacre setstripe -d /mnt/nacre/data                     what the parent directory says, again\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.";

struct Request {
  std::string layout;  // as ParseLayout takes it
  bool remove = false;
  std::vector<std::string> paths;
};

// Options of Lustre's that say which OSTs a file gets. Here nobody can: what a user asks for has counts
// alone.
Status CheckOstOption(const std::string& word, const std::string& value) {
  if (IsOption(word, "-p", "--pool"))
    return ErrnoError(EINVAL, absl::StrFormat("%s %s: there are no OST pools here; the MDS chooses among all "
                                              "OSTs, by their free space",
                                              word, value));
  if (IsOption(word, "-i", "--stripe-index") && value == "-1") return OkStatus();
  return ErrnoError(EINVAL,
                    absl::StrFormat("%s %s: OSTs cannot be named; the MDS chooses them, by their free "
                                    "space",
                                    word, value));
}

bool IsOstOption(const std::string& word) {
  return IsOption(word, "-i", "--stripe-index") || IsOption(word, "-o", "--ost") ||
         IsOption(word, "-p", "--pool");
}

StatusOr<Request> Parse(const std::vector<std::string>& words) {
  Request request;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const std::string option = LayoutOption(word);
    if (!option.empty()) {
      if (++i == words.size()) return ErrnoError(EINVAL, absl::StrFormat("%s needs a value", word));
      absl::StrAppend(&request.layout, option, " ", words[i], " ");
    } else if (IsOstOption(word)) {
      if (++i == words.size()) return ErrnoError(EINVAL, absl::StrFormat("%s needs a value", word));
      RETURN_IF_ERROR(CheckOstOption(word, words[i]));
    } else if (word == "-d" || word == "--delete") {
      request.remove = true;
    } else if (word.size() > 1 && word[0] == '-') {
      return ErrnoError(EINVAL, absl::StrFormat("unknown option '%s'; see nacre setstripe --help", word));
    } else {
      request.paths.push_back(word);
    }
  }
  if (request.paths.empty()) return ErrnoError(EINVAL, "no path given; see nacre setstripe --help");
  if (request.remove == !request.layout.empty()) {
    return ErrnoError(EINVAL, request.remove
                                  ? "-d takes no layout"
                                  : "no layout given: say -c, -S, -N or -E, or -d to inherit again");
  }
  return request;
}

Status MakeFile(const std::string& path) {
  int fd = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
  if (fd < 0 && errno != EEXIST)
    return ErrnoError(errno, absl::StrFormat("%s: %s", path, std::strerror(errno)));
  if (fd >= 0) close(fd);
  return OkStatus();
}

int RunSetstripe(const std::vector<std::string>& words) {
  auto request = Parse(words);
  if (!request.ok()) return Fail(request.status());
  auto layout = ParseLayout(request->layout);
  if (!layout.ok()) return Fail(layout.status());
  int exit = kOk;
  for (const std::string& path : request->paths) {
    Status status = request->remove ? OkStatus() : MakeFile(path);
    if (status.ok()) status = WriteXattr(path, kLayoutXattr, FormatLayout(*layout));
    if (!status.ok()) exit = Fail(status) == kOk ? exit : kFailure;
  }
  return exit;
}

}  // namespace

void AddSetstripe(CLI::App& app, int* exit) {
  CLI::App* command = app.add_subcommand("setstripe", "Set how files are spread over the OSTs");
  // The order of the options matters and -1 is a value, which CLI11 does not know: they are taken as they
  // are.
  command->allow_extras();
  command->footer(kSetstripeHelp);
  command->callback([=] { *exit = RunSetstripe(command->remaining()); });
}

}  // namespace nacre::cli
