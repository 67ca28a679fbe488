// The configuration of the daemons: from a TOML file, from flags of the same names, or from the program that
// embeds them. Plain values with their defaults; the Describe functions declare the keys
// (docs/man/nacre.toml.5 explains them).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/filesystem.h"
#include "common/status.h"
#include "daemon/config_section.h"
#include "server/coordination/etcd_options.h"
#include "server/metadata/metadata_server.h"
#include "server/object/object_server.h"

namespace nacre {

inline constexpr char kDefaultMdsAddress[] = "127.0.0.1:7710";
inline constexpr char kDefaultOssAddress[] = "127.0.0.1:7720";

// This MDS as one of several that hold copies of one MDT (docs/replication.md).
struct CopiesConfig {
  std::string name;                      // empty: the machine's
  std::string address;                   // empty: the first that is listened at
  std::vector<std::string> coordinator;  // members of an etcd; none: this MDS is the only one
  std::string prefix = "/nacre/";
  std::string ca, certificate, key;  // files
  std::string user, password_file;
  bool accept_loss = false;        // of the command line alone
  coordination::EtcdOptions etcd;  // what these come to

  bool several() const { return !coordinator.empty(); }
};

struct MdsConfig {
  std::string directory;  // of the MDT
  std::vector<std::string> listen = {kDefaultMdsAddress};
  bool insecure = false;
  uint64_t memory = 256 << 20;  // for the store and the records that are kept beside it, half each
  uint64_t inline_limit = 16 << 10;
  unsigned threads = 2;
  std::string transport = "auto";
  std::string log = "info";
  CopiesConfig copies;
  MetadataOptions options;

  uint64_t StoreMemory() const { return memory / 2; }
};

struct OstConfig {
  OstIndex index = 0;
  std::string directory;
  uint64_t size = 0;    // 0: all of the filesystem below but 256 MiB
  uint32_t copies = 1;  // members of this index in the cluster, each on a server of its own
};

struct OssConfig {
  OssConfig() { options.scrub_every = std::chrono::hours(24 * 7); }

  std::string mds = kDefaultMdsAddress;
  std::string listen = kDefaultOssAddress;
  std::string advertise;
  bool insecure = false;
  std::vector<OstConfig> osts;
  uint64_t pool = 64 << 20;
  uint64_t memory = 32 << 20;  // of each OST's metadata store
  unsigned threads = 2;
  std::string transport = "auto";
  std::string log = "info";
  ObjectOptions options;
};

struct ClientConfig {
  std::string mds = kDefaultMdsAddress;
  std::string mount;
  std::string recovery = "hard";
  unsigned threads = 4;
  bool read_only = false;
  bool nosuid = false, nodev = false, noexec = false;
  uint64_t dirty = 0;  // 0: a quarter of the cache
  std::string direct_writes = "behind";
  std::string transport = "auto";
  std::string log = "info";
  client::Options options;
};

ConfigSection Describe(MdsConfig* config);  // without its copies
ConfigSection Describe(CopiesConfig* config);
ConfigSection Describe(OssConfig* config);
ConfigSection Describe(ClientConfig* config);

// All sections that a daemon reads for itself, its own first.
std::vector<ConfigSection> Sections(MdsConfig* config);
std::vector<ConfigSection> Sections(OssConfig* config);
std::vector<ConfigSection> Sections(ClientConfig* config);

// The value of --ost: "3=/var/lib/nacre/ost3", with ",100GiB", its size, and ",copies=2" behind it or not.
StatusOr<OstConfig> ParseOstFlag(const std::string& text);

// Checks what one key alone does not show, and fills in what follows from several keys (options.*). Errors
// say which keys.
Status Finish(MdsConfig* config);
Status Finish(OssConfig* config);
Status Finish(ClientConfig* config);

// Every section of nacre.toml may stand in one file: the daemon's are read, the others are checked.
Status ReadConfig(const std::string& path, MdsConfig* config);
Status ReadConfig(const std::string& path, OssConfig* config);
Status ReadConfig(const std::string& path, ClientConfig* config);

// A part of Finish(MdsConfig*).
Status Finish(CopiesConfig* config, const std::vector<std::string>& listen);

// Refuses an address that other machines can reach unless `insecure` is set: there is no authentication yet.
Status CheckExposure(const std::string& address, bool insecure);

// Whether a server that listens there does so at all addresses of its machine, so that nobody can be told to
// go there.
bool StandsForEveryAddress(const std::string& host);

// Sets the level of the log: debug, info, warning, error.
void ApplyLogLevel(const std::string& level);

}  // namespace nacre
