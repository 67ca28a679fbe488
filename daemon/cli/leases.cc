#include "daemon/cli/leases.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "daemon/cli/command.h"
#include "daemon/cli/xattr.h"
#include "fuse/mountinfo.h"
#include "rpc/convert.h"

namespace nacre::cli {
namespace {

constexpr Duration kLeasesPatience = std::chrono::seconds(5);

std::string For(uint64_t milliseconds) {
  return milliseconds < 10'000 ? absl::StrFormat("%.1f s", static_cast<double>(milliseconds) / 1e3)
                               : absl::StrFormat("%d s", milliseconds / 1000);
}

std::string Whom(uint64_t session, const std::string& client) {
  if (session == 0) return "the MDS";
  return client.empty() ? absl::StrFormat("session %d", session)
                        : absl::StrFormat("%s (session %d)", client, session);
}

std::string OfWhat(const std::string& name) {
  return name.empty() ? std::string("the directory") : absl::StrFormat("file '%s'", name);
}

Json JsonOfHeld(const proto::LeaseHeld& held) {
  Json out = {
      {"name", held.name()},       {"session", held.session()},
      {"client", held.client()},   {"mode", absl::AsciiStrToLower(proto::LeaseHeld::Mode_Name(held.mode()))},
      {"held_ms", held.held_ms()}, {"asked_back_ms", nullptr}};
  if (held.asked_back()) out["asked_back_ms"] = held.asked_back_ms();
  return out;
}

struct Asked {
  ClusterTarget target;
  std::string path;
};

StatusOr<Asked> WhomToAsk(const ClusterTarget& target, const std::string& path) {
  if (!target.mds.empty() || !target.directory.empty()) return Asked{target, path};
  std::ifstream file("/proc/self/mountinfo");
  std::stringstream mountinfo;
  mountinfo << file.rdbuf();
  std::string absolute = std::filesystem::absolute(path).lexically_normal().string();
  if (absolute.size() > 1 && absolute.back() == '/') absolute.pop_back();
  ASSIGN_OR_RETURN(MountedPath mounted, FindMount(mountinfo.str(), absolute));
  ClusterTarget found;
  ASSIGN_OR_RETURN(found.mds, ReadXattr(mounted.mountpoint, "nacre.mds"));
  return Asked{found, mounted.path};
}

}  // namespace

std::string LeaseCounts(const proto::SessionState& session) {
  std::string text = absl::StrFormat("%d leases", session.leases());
  if (session.leases() == 0) return text;
  text += absl::StrFormat(" (%d for writing", session.write_leases());
  if (session.leases_asked_back() > 0)
    text += absl::StrFormat(", %d asked back", session.leases_asked_back());
  return text + ")";
}

StatusOr<MountedPath> FindMount(const std::string& mountinfo, const std::string& path) {
  MountedPath best;
  bool on_fuse = false;
  const std::vector<std::string> lines = absl::StrSplit(mountinfo, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    const auto mount = fuse::ParseMountinfo(line);
    if (!mount) continue;
    const std::string& mountpoint = mount->mountpoint;
    // Of several at one place the last one is on top.
    if (!fuse::LiesBelow(path, mountpoint) || mountpoint.size() < best.mountpoint.size()) continue;
    const std::string below = mountpoint == "/" ? path : path.substr(mountpoint.size());
    best = {mountpoint, (mount->root == "/" ? "" : mount->root) + below};
    on_fuse = absl::StartsWith(mount->type, "fuse");
  }
  if (best.path.empty()) best.path = "/";
  if (on_fuse) return best;
  return ErrnoError(
      ENOENT,
      absl::StrFormat("%s lies on no Nacre mount; with --mds ADDRESS, a path from the root is meant", path));
}

std::vector<std::string> LeaseLines(const proto::LeasesOfReply& leases) {
  std::vector<std::string> lines;
  for (const proto::LeaseHeld& held : leases.held()) {
    std::string line =
        absl::StrFormat("%s of %s: %s, for %s", proto::LeaseHeld::Mode_Name(held.mode()), OfWhat(held.name()),
                        Whom(held.session(), held.client()), For(held.held_ms()));
    if (held.asked_back())
      line += absl::StrFormat("; asked back %s ago, not given back yet", For(held.asked_back_ms()));
    lines.push_back(std::move(line));
  }
  if (leases.held().empty()) lines.push_back("nobody holds a lease");
  for (const proto::LeaseAwaited& awaited : leases.awaited()) {
    lines.push_back(absl::StrFormat("waiting for %s, %s of %s: %s", For(awaited.waited_ms()),
                                    awaited.change() ? "a change" : "a look", OfWhat(awaited.name()),
                                    Whom(awaited.session(), awaited.client())));
  }
  if (leases.changes() > 0) lines.push_back(absl::StrFormat("%d changes under way", leases.changes()));
  if (leases.none_granted_ms() > 0) {
    lines.push_back(absl::StrFormat("after a conflict: no lease is granted for another %s",
                                    For(leases.none_granted_ms())));
  } else if (leases.no_write_granted_ms() > 0) {
    lines.push_back(absl::StrFormat("after a conflict: no WRITE is granted for another %s",
                                    For(leases.no_write_granted_ms())));
  }
  if (leases.more_files()) lines.push_back("the directory has more files than were looked at");
  return lines;
}

Json LeasesToJson(const std::string& path, const proto::LeasesOfReply& leases) {
  Json held = Json::array(), awaited = Json::array();
  for (const proto::LeaseHeld& one : leases.held()) held.push_back(JsonOfHeld(one));
  for (const proto::LeaseAwaited& one : leases.awaited()) {
    awaited.push_back({{"name", one.name()},
                       {"session", one.session()},
                       {"client", one.client()},
                       {"changes", one.change()},
                       {"waited_ms", one.waited_ms()}});
  }
  return {{"path", path},
          {"fid", FromProto(leases.directory()).ToString()},
          {"held", held},
          {"awaited", awaited},
          {"none_granted_ms", leases.none_granted_ms()},
          {"no_write_granted_ms", leases.no_write_granted_ms()},
          {"changes_under_way", leases.changes()},
          {"more_files", leases.more_files()}};
}

int ShowLeases(const ClusterTarget& target, const std::string& path, bool json) {
  auto asked = WhomToAsk(target, path);
  if (!asked.ok()) return FailWith(asked.status(), json);
  proto::AdminRequest request;
  request.mutable_leases_of()->set_path(asked->path);
  auto reply = Administer(asked->target, std::move(request), kLeasesPatience);
  if (!reply.ok()) return FailWith(reply.status(), json);
  const proto::LeasesOfReply& leases = reply->leases_of();
  if (json) {
    std::puts(JsonText(LeasesToJson(asked->path, leases)).c_str());
    return kOk;
  }
  std::printf("%s %s\n", asked->path.c_str(), FromProto(leases.directory()).ToString().c_str());
  for (const std::string& line : LeaseLines(leases)) std::printf("  %s\n", line.c_str());
  return kOk;
}

}  // namespace nacre::cli
