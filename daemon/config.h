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
#include "server/metadata/metadata_server.h"
#include "server/object/object_server.h"

namespace nacre {

inline constexpr char kDefaultMdsAddress[] = "127.0.0.1:7710";
inline constexpr char kDefaultOssAddress[] = "127.0.0.1:7720";

struct MdsConfig {
  std::string directory;  // of the MDT
  std::vector<std::string> listen = {kDefaultMdsAddress};
  bool insecure = false;
  uint64_t memory = 64 << 20;
  uint64_t inline_limit = 16 << 10;
  unsigned threads = 2;
  std::string transport = "auto";
  std::string log = "info";
  MetadataOptions options;
};

struct OstConfig {
  OstIndex index = 0;
  std::string directory;
  uint64_t size = 0;    // 0: what the filesystem below has free when the OST is formatted
  uint32_t copies = 1;  // members of this index in the cluster, each on a server of its own
};

struct OssConfig {
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

ConfigSection Describe(MdsConfig* config);
ConfigSection Describe(OssConfig* config);
ConfigSection Describe(ClientConfig* config);

// The value of --ost: "3=/var/lib/nacre/ost3", with ",100GiB", its size, and ",copies=2" behind it or not.
StatusOr<OstConfig> ParseOstFlag(const std::string& text);

// Checks what one key alone does not show, and fills in what follows from several keys (options.*). Errors
// say which keys.
Status Finish(MdsConfig* config);
Status Finish(OssConfig* config);
Status Finish(ClientConfig* config);

// Every section of nacre.toml may stand in one file: this one is read, the others are checked.
Status ReadConfig(const std::string& path, MdsConfig* config);
Status ReadConfig(const std::string& path, OssConfig* config);
Status ReadConfig(const std::string& path, ClientConfig* config);

// Refuses an address that other machines can reach unless `insecure` is set: there is no authentication yet.
Status CheckExposure(const std::string& address, bool insecure);

// Sets the level of the log: debug, info, warning, error.
void ApplyLogLevel(const std::string& level);

}  // namespace nacre
