#include "daemon/local.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "common/log.h"
#include "common/units.h"
#include "daemon/background.h"
#include "daemon/client_role.h"
#include "daemon/directory.h"
#include "daemon/ending.h"
#include "daemon/mds_role.h"
#include "daemon/oss_role.h"
#include "daemon/process_transport.h"

namespace nacre {
namespace {

namespace fs = std::filesystem;

constexpr int kStopSeconds = 60;
constexpr uint64_t kMinOstBytes = 128 << 20;
constexpr uint64_t kStoreBytes = 16 << 20;  // memory of each store: everything shares one machine here
constexpr Duration kReadyPatience = 30s;

std::string PidPath(const std::string& directory) { return directory + "/local.pid"; }
std::string OstPath(const std::string& directory, uint32_t index) {
  return absl::StrCat(directory, "/ost.", index);
}

uint32_t CountOsts(const std::string& directory) {
  uint32_t count = 0;
  while (fs::exists(OstPath(directory, count))) ++count;
  return count;
}

// Of an OST that is there: what its files were made for. Of a new one: its share of what the disk has free.
StatusOr<uint64_t> OstBytes(const LocalOptions& options, uint32_t index, uint32_t count) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& file :
       fs::directory_iterator(OstPath(options.directory, index) + "/data", error)) {
    bytes += file.file_size(error);
  }
  if (bytes > 0) return bytes;
  if (options.ost_bytes > 0) return options.ost_bytes;
  struct statvfs disk;
  if (::statvfs(options.directory.c_str(), &disk) != 0) {
    return ErrnoError(errno, absl::StrFormat("%s: %s", options.directory, std::strerror(errno)));
  }
  uint64_t share = uint64_t{disk.f_bavail} * disk.f_frsize / 10 * 9 / count;  // a tenth for metadata and logs
  share -= share % (1 << 20);
  if (share >= kMinOstBytes) return share;
  return ErrnoError(ENOSPC,
                    absl::StrFormat("%s: %s free for each of %d OSTs; each needs %s", options.directory,
                                    HumanSize(share), count, HumanSize(kMinOstBytes)));
}

StatusOr<OssConfig> MakeOssConfig(const LocalOptions& options) {
  OssConfig config;
  config.mds = LocalMdsAddress(options.directory);
  config.listen = absl::StrCat("unix:", options.directory, "/oss.sock");
  config.memory = kStoreBytes;
  for (uint32_t i = 0; i < options.osts; ++i) {
    ASSIGN_OR_RETURN(uint64_t bytes, OstBytes(options, i, options.osts));
    config.osts.push_back({i, OstPath(options.directory, i), bytes});
  }
  RETURN_IF_ERROR(Finish(&config));
  return config;
}

StatusOr<MdsConfig> MakeMdsConfig(const LocalOptions& options) {
  MdsConfig config;
  config.directory = options.directory + "/mdt";
  config.listen = {LocalMdsAddress(options.directory)};
  config.memory = 2 * kStoreBytes;
  config.options.recovery_window = 2s;  // the client of before was in the process of before
  RETURN_IF_ERROR(Finish(&config));
  return config;
}

StatusOr<ClientConfig> MakeClientConfig(const LocalOptions& options) {
  ClientConfig config;
  config.mds = LocalMdsAddress(options.directory);
  config.mount = options.mountpoint;
  config.options.cache_bytes = options.cache_bytes;
  RETURN_IF_ERROR(Finish(&config));
  return config;
}

// Until the MGS counts every OST as up.
Task<Status> WaitForOsts(std::shared_ptr<ClusterChannel> cluster, uint32_t osts) {
  Duration end = RealClock().Now() + kReadyPatience;
  int up = 0;
  while (RealClock().Now() < end) {
    StatusOr<proto::ClusterStatus> status = co_await cluster->GetStatus();
    up = 0;
    if (status.ok()) {
      for (const proto::OstState& ost : status->map().osts()) up += ost.up() ? 1 : 0;
    }
    if (up >= static_cast<int>(osts)) co_return OkStatus();
    co_await RealClock().Sleep(5ms);
  }
  co_return ErrnoError(ETIMEDOUT, absl::StrFormat("%d of %d OSTs have registered within 30 s", up, osts));
}

// Everything that runs; taken down in the order in which the parts need each other.
class Local {
 public:
  explicit Local(LocalOptions options)
      : options_(std::move(options)),
        runtime_(DefaultThreads()),
        transport_(MakeProcessTransport(runtime_.executor(), RealClock())) {}

  ~Local() {
    client_.reset();
    oss_.reset();
    mds_.reset();
    runtime_.Stop();
  }

  Status Start() {
    ASSIGN_OR_RETURN(MdsConfig mds, MakeMdsConfig(options_));
    ASSIGN_OR_RETURN(OssConfig oss, MakeOssConfig(options_));
    ASSIGN_OR_RETURN(ClientConfig client, MakeClientConfig(options_));
    ASSIGN_OR_RETURN(mds_, MdsRole::Start(runtime_, *transport_, mds));
    ASSIGN_OR_RETURN(oss_, OssRole::Start(runtime_, *transport_, mds_->NewClusterChannel(), oss));
    RETURN_IF_ERROR(runtime_.Run(WaitForOsts(mds_->NewClusterChannel(), options_.osts)));
    ASSIGN_OR_RETURN(
        client_, ClientRole::Start(runtime_, *transport_, mds_->NewConnector(client.options.name), client));
    return OkStatus();
  }

  void WaitForEnd() { nacre::WaitForEnd(runtime_, client_->ended()); }

  // Goes on after an error: the servers are stopped whatever the client met. The first error.
  Status Stop() {
    Status first = OkStatus();
    auto note = [&first](Status status) {
      if (first.ok()) first = std::move(status);
    };
    if (client_ != nullptr) note(client_->Stop());
    if (oss_ != nullptr) note(oss_->Stop());
    if (mds_ != nullptr) note(mds_->Stop());
    return first;
  }

 private:
  const LocalOptions options_;
  Runtime runtime_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<MdsRole> mds_;
  std::unique_ptr<OssRole> oss_;
  std::unique_ptr<ClientRole> client_;
};

std::string ReadyMessage(const LocalOptions& options, bool fresh) {
  std::string out = absl::StrFormat(
      "%s %s with %d OST%s in %s, mounted at %s\n"
      "  look further:  nacre status --dir %s   nacre df --dir %s   nacre getstripe FILE\n",
      fresh ? "formatted" : "opened", "a Nacre filesystem", options.osts, options.osts == 1 ? "" : "s",
      options.directory, options.mountpoint, options.directory, options.directory);
  if (!options.background) return out + "  stop:          Ctrl-C\n";
  return out + absl::StrFormat("  stop:          nacre stop --dir %s\n  log:           %s/log/local.log\n",
                               options.directory, options.directory);
}

Status Prepare(LocalOptions* options) {
  if (options->osts == 0 || options->osts > 1000) {
    return ErrnoError(EINVAL, absl::StrFormat("--osts %d: from 1 to 1000", options->osts));
  }
  RETURN_IF_ERROR(MakeDirectories(options->directory + "/log"));
  struct stat mountpoint;  // one whose daemon is dead is there, though it answers with an error
  if (::lstat(options->mountpoint.c_str(), &mountpoint) != 0 && errno == ENOENT) {
    RETURN_IF_ERROR(MakeDirectories(options->mountpoint));
  }
  options->directory = fs::canonical(options->directory);
  uint32_t found = CountOsts(options->directory);
  if (found > options->osts) {
    LogInfo("%s has %d OSTs: all of them are served", options->directory, found);
    options->osts = found;
  }
  return OkStatus();
}

// With the pid file held: serves until the end.
int Serve(const LocalOptions& options, Background& background) {
  bool fresh = !fs::exists(options.directory + "/mdt");
  Local local(options);
  Status started = local.Start();
  if (!started.ok()) {
    Status stopped = local.Stop();
    if (!stopped.ok()) LogError("%s", std::string(stopped.message()));
    return background.Failed(started);
  }
  background.Ready(ReadyMessage(options, fresh));
  local.WaitForEnd();
  NotifySystemd("STOPPING=1");
  Status stopped = local.Stop();
  if (stopped.ok()) {
    LogInfo("stopped; everything is on disk");
    return 0;
  }
  LogError("not everything could be written back: %s", std::string(stopped.message()));
  std::_Exit(1);  // requests may still be waiting in what the destructors would take apart
}

int Complain(const Status& status) {
  std::fprintf(stderr, "nacre: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace

std::string LocalMdsAddress(const std::string& directory) {
  return absl::StrCat("unix:", directory, "/mds.sock");
}

int RunLocal(LocalOptions options) {
  Status status = Prepare(&options);
  if (!status.ok()) return Complain(status);
  std::unique_ptr<Background> background = Background::Foreground();
  if (options.background) {
    StatusOr<std::unique_ptr<Background>> forked = Background::Fork(options.directory + "/log/local.log");
    if (!forked.ok()) return Complain(forked.status());
    background = *std::move(forked);
  }
  SetLogName("local");
  StatusOr<std::unique_ptr<PidFile>> held = PidFile::Hold(PidPath(options.directory));
  if (!held.ok()) return background->Failed(held.status());
  return Serve(options, *background);
}

int StopLocal(const std::string& directory) {
  Status status = EndProcess(PidPath(directory), kStopSeconds);
  if (!status.ok()) return Complain(status);
  std::printf("stopped\n");
  return 0;
}

}  // namespace nacre
