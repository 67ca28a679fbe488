#include "daemon/config.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>
#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "common/log.h"
#include "common/units.h"
#include "daemon/config_file.h"
#include "daemon/place.h"
#include "transport/data_plane.h"

namespace nacre {
namespace {

using std::chrono::hours;
using std::chrono::minutes;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kTiB = 1ull << 40;
constexpr OstIndex kMaxOstIndex = 65535;
constexpr uint32_t kMaxCopies = 3;

const std::vector<std::string> kLogLevels = {"debug", "info", "warning", "error"};

// 127.0.0.0/8, as a number: a name that begins like one may lead anywhere.
bool IsLoopback4(const std::string& host) {
  in_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

// Whether only processes of this machine reach it.
bool IsOfThisMachine(const std::string& address) {
  if (absl::StartsWith(address, "unix:") || absl::StartsWith(address, "inproc:")) return true;
  const std::string host = HostOf(address);
  return host == "localhost" || host == "[::1]" || IsLoopback4(host);
}

// Clients go where they are told. Without this check `nacre status` would be content, and each of their
// requests would wait for ever.
Status CheckToldAddress(const OssConfig& config) {
  const char* key = config.advertise.empty() ? "listen" : "advertise";
  const std::string& told = config.advertise.empty() ? config.listen : config.advertise;
  if (StandsForEveryAddress(HostOf(told))) {
    return ErrnoError(
        EINVAL,
        absl::StrFormat("[oss] %s '%s' stands for every address of this machine: say in advertise the one "
                        "by which clients and the MDS reach it, HOST:PORT",
                        key, told));
  }
  const std::vector<std::string> servers = absl::StrSplit(config.mds, ',');
  if (IsOfThisMachine(told) && !std::ranges::all_of(servers, IsOfThisMachine)) {
    LogWarning(
        "[oss] %s '%s' is this machine alone, and the MDS is at %s: clients on other machines will not reach "
        "these OSTs. Say in listen or advertise the address by which they do",
        key, told, config.mds);
  }
  return OkStatus();
}

Status Required(const std::string& value, const std::string& key, const std::string& what) {
  if (!value.empty()) return OkStatus();
  return ErrnoError(EINVAL, absl::StrFormat("%s is not set: %s", key, what));
}

// All sections, so that a file for several daemons is checked as a whole; only those of `own` are kept.
template <typename Config>
Status ReadOne(const std::string& path, Config* own) {
  MdsConfig mds;
  OssConfig oss;
  ClientConfig client;
  std::vector<ConfigSection> sections = Sections(own);
  auto add = [&sections](std::vector<ConfigSection> others) {
    for (ConfigSection& other : others) {
      auto same = [&](const ConfigSection& section) { return section.name() == other.name(); };
      if (std::none_of(sections.begin(), sections.end(), same)) sections.push_back(std::move(other));
    }
  };
  add(Sections(&mds));
  add(Sections(&oss));
  add(Sections(&client));
  return ReadConfigFile(path, sections);
}

}  // namespace

ConfigSection Describe(MdsConfig* config) {
  MetadataOptions& options = config->options;
  ConfigSection section("mds");
  section.Text("directory", &config->directory, "where the metadata target (MDT) lives");
  section.List("listen", &config->listen, "addresses to serve: HOST:PORT or unix:/PATH");
  section.Flag("insecure", &config->insecure,
               "serve addresses that other machines reach, without authentication");
  section.Size("memory", &config->memory, 8 * kMiB, kTiB,
               "memory for metadata: half for the store, half for files and names used lately");
  section.Number("threads", &config->threads, 1, 256, "threads that carry out requests");
  section.Size("inline_limit", &config->inline_limit, 0, 64 << 10,
               "files up to this size live in the MDT; 0: none");
  section.Time("lease", &options.lease, 1s, hours(1),
               "what a lost client held is given to others after so long, and a tenth more");
  section.Time("session_timeout", &options.session_timeout, 1s, hours(1),
               "a client that is silent for so long is evicted");
  section.Time("recovery_window", &options.recovery_window, 0s, hours(1),
               "after a restart: wait so long for known clients");
  section.Time("revoke_timeout", &options.revoke_timeout, 1s, hours(1),
               "a client that keeps a revoked lease longer is evicted");
  section.Time("sync_interval", &options.sync_interval, 10ms, minutes(1),
               "what a loss of power may take at most");
  section.Time("heartbeat", &options.heartbeat, 100ms, minutes(1), "between two signs of life of an OSS");
  section.Size("drain_rate", &options.drain_rate, 0, kTiB,
               "bytes a second that are moved off OSTs that are being drained, or to spread files over OSTs; "
               "0: as fast as it goes");
  section.Removed("kernel_cache", "the key of the same name in [client] counts");
  section.Flag("leases", &options.leases, "let clients cache under leases");
  section.Choice("transport", &config->transport, TransportChoices(), "how the MDS reaches object servers");
  section.Choice("log", &config->log, kLogLevels, "least important messages that are logged");
  return section;
}

ConfigSection Describe(OssConfig* config) {
  ObjectOptions& options = config->options;
  ConfigSection section("oss");
  section.Text("mds", &config->mds, "address of the MDS: HOST:PORT or unix:/PATH; of several: A,B");
  section.Text("listen", &config->listen, "address of the data plane: HOST:PORT or unix:/PATH");
  section.Text("advertise", &config->advertise, "address that clients are told, where it is another one");
  section.Flag("insecure", &config->insecure,
               "serve an address that other machines reach, without authentication");
  section.Size("pool", &config->pool, 8 * kMiB, kTiB, "buffers and read cache, for all OSTs of this server");
  section.Size("memory", &config->memory, 8 * kMiB, kTiB, "memory of each OST's metadata store");
  section.Number("threads", &config->threads, 1, 256, "threads that carry out requests");
  section.Time("sync_interval", &options.sync_interval, 10ms, minutes(1),
               "what a loss of power may take at most");
  section.Time("heartbeat", &options.heartbeat, 100ms, minutes(1), "between two signs of life to the MDS");
  section.Size("fill_rate", &options.fill_bytes_per_second, 0, kTiB,
               "bytes a second by which a member that joins an OST is filled; 0: as fast as it goes");
  section.Time("scrub_every", &options.scrub_every, 0s, hours(24 * 365),
               "everything is read and verified again after so long; 0: only by nacre scrub --now");
  section.Size("scrub_rate", &options.scrub_bytes_per_second, 0, kTiB,
               "bytes a second that a scrub reads of each OST; 0: as fast as it goes");
  section.Choice("transport", &config->transport, TransportChoices(), "paths that clients are offered");
  section.Choice("log", &config->log, kLogLevels, "least important messages that are logged");
  section.Tables("ost", [config] {
    // Described at once: a later [[oss.ost]] moves the vector.
    config->osts.emplace_back();
    OstConfig* ost = &config->osts.back();
    ConfigSection each("oss.ost");
    each.Number("index", &ost->index, 0, kMaxOstIndex, "number of the OST in the cluster, its own for ever");
    each.Text("directory", &ost->directory, "where the OST lives");
    each.Size("size", &ost->size, 0, 1ull << 50,
              "space for objects; 0: all of the filesystem in which it lies");
    each.Number("copies", &ost->copies, 1, kMaxCopies,
                "servers that have an OST of this index, each a copy of all of its objects");
    return each;
  });
  return section;
}

ConfigSection Describe(ClientConfig* config) {
  client::Options& options = config->options;
  ConfigSection section("client");
  section.Text("mds", &config->mds, "address of the MDS: HOST:PORT or unix:/PATH; of several: A,B");
  section.Text("mount", &config->mount, "directory to mount at");
  section.Text("name", &options.name, "what nacre status calls this client; by default host:mountpoint@boot");
  section.Choice("recovery", &config->recovery, {"hard", "soft"},
                 "a server is away: wait for it, or fail with EIO");
  section.Time("soft_timeout", &options.retry.soft_timeout, 1s, hours(24),
               "with recovery = \"soft\": fail after so long");
  section.Time("call_timeout", &options.retry.call_timeout, 1s, hours(1),
               "one attempt of a request to an OSS");
  section.Size("cache", &options.cache_bytes, kMiB, kTiB, "memory for file data, clean and dirty");
  section.Size("dirty", &config->dirty, 0, kTiB, "of these, not yet sent; 0: a quarter of the cache");
  section.Size("readahead", &options.readahead_bytes, 0, kTiB, "at most, per open file");
  section.Time("write_behind", &options.write_behind, 0s, minutes(1),
               "changes are sent after so long at the latest");
  section.Choice("direct_writes", &config->direct_writes, {"behind", "through"},
                 "an O_DIRECT write returns when it is on its way, or when the OSTs have it");
  section.Time("kernel_cache", &options.kernel_cache, 0s, minutes(1),
               "how long a lone client's kernel may trust an answer");
  section.Flag("caching", &options.caching, "cache under leases; false: every operation goes to the servers");
  section.Flag("verify", &options.verify, "check what arrives against its checksums");
  section.Number("threads", &config->threads, 1, 256, "threads that carry out requests");
  section.Choice("transport", &config->transport, TransportChoices(), "path to the object servers");
  section.Flag("read_only", &config->read_only, "mount read-only");
  section.Flag("nosuid", &config->nosuid, "programs get no rights by setuid and setgid bits or capabilities");
  section.Flag("nodev", &config->nodev, "device nodes do not open devices");
  section.Flag("noexec", &config->noexec, "no program is run from here");
  section.Choice("log", &config->log, kLogLevels, "least important messages that are logged");
  return section;
}

std::vector<ConfigSection> Sections(MdsConfig* config) {
  return {Describe(config), Describe(&config->copies)};
}
std::vector<ConfigSection> Sections(OssConfig* config) { return {Describe(config)}; }
std::vector<ConfigSection> Sections(ClientConfig* config) { return {Describe(config)}; }

namespace {

Status ParseCopies(const std::string& text, const std::string& value, uint32_t* copies) {
  if (absl::SimpleAtoi(value, copies) && *copies >= 1 && *copies <= kMaxCopies) return OkStatus();
  return ErrnoError(
      EINVAL, absl::StrFormat("--ost '%s': '%s' is not allowed; copies must be a number from 1 to %d", text,
                              value, kMaxCopies));
}

}  // namespace

StatusOr<OstConfig> ParseOstFlag(const std::string& text) {
  constexpr char kCopies[] = "copies=";
  OstConfig ost;
  std::vector<std::string> halves = absl::StrSplit(text, absl::MaxSplits('=', 1));
  if (halves.size() != 2 || !absl::SimpleAtoi(halves[0], &ost.index) || ost.index > kMaxOstIndex) {
    return ErrnoError(EINVAL, absl::StrFormat("--ost '%s': must be INDEX=DIRECTORY[,SIZE][,copies=N]", text));
  }
  std::vector<std::string> parts = absl::StrSplit(halves[1], ',');
  ost.directory = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    if (absl::StartsWith(parts[i], kCopies)) {
      RETURN_IF_ERROR(ParseCopies(text, parts[i].substr(sizeof kCopies - 1), &ost.copies));
    } else {
      ASSIGN_OR_RETURN(ost.size, ParseSize(parts[i]));
    }
  }
  return ost;
}

Status Finish(MdsConfig* config) {
  RETURN_IF_ERROR(Required(config->directory, "[mds] directory", "name the directory of the MDT"));
  if (config->listen.empty())
    return ErrnoError(EINVAL, "[mds] listen is empty: name an address, such as 127.0.0.1:7710");
  for (const std::string& address : config->listen) RETURN_IF_ERROR(CheckExposure(address, config->insecure));
  RETURN_IF_ERROR(Finish(&config->copies, config->listen));
  config->options.record_bytes = config->memory - config->StoreMemory();
  config->options.inline_limit = static_cast<uint32_t>(config->inline_limit);
  config->options.boot = BootName();
  return OkStatus();
}

Status Finish(OssConfig* config) {
  RETURN_IF_ERROR(Required(config->mds, "[oss] mds", "name the address of the MDS"));
  RETURN_IF_ERROR(CheckExposure(config->listen, config->insecure));
  RETURN_IF_ERROR(CheckToldAddress(*config));
  if (config->osts.empty())
    return ErrnoError(EINVAL, "no OST: add an [[oss.ost]] with index and directory, or --ost");
  std::set<OstIndex> indices;
  std::set<std::string> directories;
  for (const OstConfig& ost : config->osts) {
    RETURN_IF_ERROR(
        Required(ost.directory, absl::StrFormat("[[oss.ost]] directory of OST %d", ost.index), "name one"));
    if (!indices.insert(ost.index).second) {
      return ErrnoError(EINVAL, absl::StrFormat("[[oss.ost]] index %d is there twice: each OST has its own, "
                                                "and its copies are on other servers",
                                                ost.index));
    }
    if (!directories.insert(ost.directory).second) {
      return ErrnoError(
          EINVAL,
          absl::StrFormat("[[oss.ost]] directory %s is there twice: each OST has its own", ost.directory));
    }
  }
  config->options.listen = config->listen;
  config->options.boot = BootName();
  config->options.advertise = config->advertise;
  config->options.pool_bytes = config->pool;
  return OkStatus();
}

Status Finish(ClientConfig* config) {
  RETURN_IF_ERROR(Required(config->mds, "[client] mds", "name the address of the MDS"));
  RETURN_IF_ERROR(Required(config->mount, "[client] mount", "name the directory to mount at"));
  client::Options& options = config->options;
  options.dirty_bytes = config->dirty == 0 ? options.cache_bytes / 4 : config->dirty;
  if (options.dirty_bytes > options.cache_bytes) {
    return ErrnoError(
        EINVAL,
        "[client] dirty is larger than cache, of which it is a part: make it smaller, or cache larger");
  }
  options.retry.hard = config->recovery == "hard";
  options.direct_behind = config->direct_writes == "behind";
  options.transport = config->transport;
  if (options.name.empty()) options.name = PlaceName(config->mount);
  return OkStatus();
}

Status ReadConfig(const std::string& path, MdsConfig* config) { return ReadOne(path, config); }
Status ReadConfig(const std::string& path, OssConfig* config) { return ReadOne(path, config); }
Status ReadConfig(const std::string& path, ClientConfig* config) { return ReadOne(path, config); }

Status CheckExposure(const std::string& address, bool insecure) {
  if (insecure || IsOfThisMachine(address)) return OkStatus();
  return ErrnoError(
      EACCES,
      absl::StrFormat("refusing to serve %s: other machines can reach it, and there is no "
                      "authentication yet. Use 127.0.0.1, or say --insecure on a network that you trust",
                      address));
}

bool StandsForEveryAddress(const std::string& host) {
  return host == "0.0.0.0" || host == "[::]" || host == "*";
}

void ApplyLogLevel(const std::string& level) {
  constexpr LogLevel kLevels[] = {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError};
  for (size_t i = 0; i < kLogLevels.size(); ++i) {
    if (kLogLevels[i] == level) SetLogLevel(kLevels[i]);
  }
}

}  // namespace nacre
