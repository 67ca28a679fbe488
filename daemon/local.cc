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
#include <set>

#include "common/log.h"
#include "common/units.h"
#include "daemon/background.h"
#include "daemon/client_role.h"
#include "daemon/directory.h"
#include "daemon/ending.h"
#include "daemon/format.h"
#include "daemon/mds_role.h"
#include "daemon/oss_role.h"
#include "daemon/place.h"
#include "daemon/process_transport.h"
#include "daemon/target_directory.h"

namespace nacre {
namespace {

namespace fs = std::filesystem;

constexpr int kStopSeconds = 60;
constexpr uint64_t kMinOstBytes = 128 << 20;
// Everything shares one machine here.
constexpr uint64_t kStoreBytes = 16 << 20;      // memory of each OST's store
constexpr uint64_t kMetadataBytes = 128 << 20;  // of the MDS, for its store and the records beside it
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
  config.memory = kMetadataBytes;
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
Task<Status> WaitForOsts(std::shared_ptr<ClusterChannel> cluster, uint32_t osts, OneShot<Status> refused) {
  Duration end = RealClock().Now() + kReadyPatience;
  int up = 0;
  while (RealClock().Now() < end) {
    StatusOr<proto::ClusterStatus> status = co_await cluster->GetStatus();
    up = 0;
    if (status.ok()) {
      for (const proto::OstState& ost : status->map().osts()) up += ost.up() ? 1 : 0;
    }
    if (up >= static_cast<int>(osts)) co_return OkStatus();
    if (refused.IsSet()) co_return co_await refused.Wait();
    co_await RealClock().Sleep(5ms);
  }
  co_return ErrnoError(ETIMEDOUT, absl::StrFormat("%d of %d OSTs have registered within 30 s", up, osts));
}

// The numbers of the OSTs that the MGS has ever admitted.
Task<StatusOr<std::set<OstIndex>>> KnownOsts(std::shared_ptr<ClusterChannel> cluster) {
  CO_ASSIGN_OR_RETURN(proto::ClusterStatus status, co_await cluster->GetStatus());
  std::set<OstIndex> known;
  for (const proto::OstState& ost : status.map().osts()) known.insert(ost.info().index());
  co_return known;
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

  // The targets that Start has made, and whether the MDT is among them.
  const std::vector<std::string>& formatted() const { return formatted_; }
  bool is_new() const { return is_new_; }
  uint32_t osts() const { return options_.osts; }

  Status Start() {
    RETURN_IF_ERROR(fuse::PrepareMountpoint(options_.mountpoint));
    ASSIGN_OR_RETURN(ClientConfig client, MakeClientConfig(options_));
    RETURN_IF_ERROR(StartMds());
    RETURN_IF_ERROR(StartOss());
    RETURN_IF_ERROR(runtime_.Run(WaitForOsts(mds_->NewClusterChannel(), options_.osts, oss_->refused())));
    ASSIGN_OR_RETURN(
        client_, ClientRole::Start(runtime_, *transport_, mds_->NewConnector(client.options.name), client));
    return OkStatus();
  }

  // Ends as well when the OSTs would have to begin anew (object_server.h), which this process cannot.
  void WaitForEnd() {
    OneShot<Unit> end;
    const auto unmounted = [](OneShot<Unit> ended, OneShot<Unit> end) -> Task<void> {
      co_await ended.Wait();
      end.Set({});
    };
    const auto failed = [](OneShot<Status> begin_anew, OneShot<Unit> end) -> Task<void> {
      const Status why = co_await begin_anew.Wait();
      LogError("%s", std::string(why.message()));
      end.Set({});
    };
    Spawn(runtime_.executor(), unmounted(client_->ended(), end));
    Spawn(runtime_.executor(), failed(oss_->begin_anew(), end));
    nacre::WaitForEnd(runtime_, end);
  }

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
  // A new MDT is made where neither it nor an OST is: in the directory of a new filesystem.
  Status StartMds() {
    ASSIGN_OR_RETURN(MdsConfig config, MakeMdsConfig(options_));
    const bool fresh = LookAtTarget(TargetKind::kMdt, config.directory) == TargetState::kNone;
    if (fresh && CountOsts(options_.directory) == 0) {
      RETURN_IF_ERROR(FormatMdt(runtime_, config));
      formatted_.push_back(config.directory);
      is_new_ = true;
    } else if (fresh) {
      return ErrnoError(ENOENT, absl::StrFormat("%s has OSTs, but no MDT in %s: is its disk mounted?",
                                                options_.directory, config.directory));
    }
    RETURN_IF_ERROR(CheckTarget(TargetKind::kMdt, config.directory));
    ASSIGN_OR_RETURN(mds_, MdsRole::Start(runtime_, *transport_, config));
    return OkStatus();
  }

  // An OST that the filesystem knows must be there; those of higher numbers are made.
  Status StartOss() {
    ASSIGN_OR_RETURN(std::set<OstIndex> known, runtime_.Run(KnownOsts(mds_->NewClusterChannel())));
    const uint32_t found = std::max(CountOsts(options_.directory), known.empty() ? 0 : *known.rbegin() + 1);
    if (found > options_.osts) {
      LogInfo("%s has %d OSTs: all of them are served", options_.directory, found);
      options_.osts = found;
    }
    ASSIGN_OR_RETURN(OssConfig config, MakeOssConfig(options_));
    for (const OstConfig& ost : config.osts) {
      if (known.count(ost.index) == 0 &&
          LookAtTarget(TargetKind::kOst, ost.directory) == TargetState::kNone) {
        RETURN_IF_ERROR(FormatOst(runtime_, ost, config.memory));
        formatted_.push_back(ost.directory);
      }
      RETURN_IF_ERROR(CheckLocalOst(ost));
    }
    ASSIGN_OR_RETURN(oss_, OssRole::Start(runtime_, *transport_, mds_->NewClusterChannel(), config));
    return OkStatus();
  }

  static Status CheckLocalOst(const OstConfig& ost) {
    if (LookAtTarget(TargetKind::kOst, ost.directory) != TargetState::kNone) {
      return CheckTarget(TargetKind::kOst, ost.directory);
    }
    return ErrnoError(
        ENOENT, absl::StrFormat("the filesystem has an OST %d, but there is none in %s: is its disk mounted?",
                                ost.index, ost.directory));
  }

  LocalOptions options_;
  std::vector<std::string> formatted_;
  bool is_new_ = false;
  Runtime runtime_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<MdsRole> mds_;
  std::unique_ptr<OssRole> oss_;
  std::unique_ptr<ClientRole> client_;
};

std::string ReadyMessage(const LocalOptions& options, const Local& local) {
  std::string out = absl::StrFormat(
      "%s %s with %d OST%s in %s, mounted at %s\n"
      "  look further:  nacre status --dir %s   nacre df --dir %s   nacre getstripe FILE\n",
      local.is_new() ? "formatted" : "opened", "a Nacre filesystem", local.osts(),
      local.osts() == 1 ? "" : "s", options.directory, options.mountpoint, options.directory,
      options.directory);
  if (!options.background) return out + "  stop:          Ctrl-C\n";
  return out + absl::StrFormat("  stop:          nacre stop --dir %s\n  log:           %s/log/local.log\n",
                               options.directory, options.directory);
}

// `made`: the directories that were not there before.
Status Prepare(LocalOptions* options, std::vector<std::string>* made) {
  if (options->osts == 0 || options->osts > 1000) {
    return ErrnoError(EINVAL, absl::StrFormat("--osts %d: from 1 to 1000", options->osts));
  }
  RETURN_IF_ERROR(MakeDirectories(options->directory + "/log", made));
  struct stat mountpoint;  // one whose daemon is dead is there, though it answers with an error
  if (::lstat(options->mountpoint.c_str(), &mountpoint) != 0 && errno == ENOENT) {
    RETURN_IF_ERROR(MakeDirectories(options->mountpoint, made));
  }
  options->directory = fs::canonical(options->directory);
  return OkStatus();
}

// After a start that failed nothing is left of it: neither new targets nor new directories, unless somebody
// else has put something into them.
void RemoveMade(const LocalOptions& options, const std::vector<std::string>& made,
                const std::vector<std::string>& formatted) {
  std::error_code error;
  for (const std::string& target : formatted) fs::remove_all(target, error);
  for (auto path = made.rbegin(); path != made.rend(); ++path) {
    if (fs::path(*path).filename() == "log") fs::remove(options.directory + "/log/local.log", error);
    fs::remove(*path, error);
  }
}

// Serves until the end. `formatted`: the targets of a new filesystem whose start failed.
StatusOr<int> Serve(const LocalOptions& options, Background& background,
                    std::vector<std::string>* formatted) {
  Local local(options);
  Status started = local.Start();
  if (!started.ok()) {
    Status stopped = local.Stop();
    if (!stopped.ok()) LogError("%s", std::string(stopped.message()));
    // A new OST of an old filesystem stays: the filesystem may know it by now.
    if (local.is_new()) *formatted = local.formatted();
    return started;
  }
  background.Ready(ReadyMessage(options, local));
  local.WaitForEnd();
  NotifySystemd("STOPPING=1");
  Status stopped = local.Stop();
  if (stopped.ok()) {
    LogInfo("stopped; everything is on disk");
    return 0;
  }
  const std::string why = absl::StrCat("not everything could be written back: ", stopped.message());
  LogError("%s", why);
  LeaveLastWords(options.mountpoint, why);
  std::_Exit(1);  // requests may still be waiting in what the destructors would take apart
}

int Complain(const Status& status) {
  std::fprintf(stderr, "nacre: %s\n", std::string(status.message()).c_str());
  return 1;
}

std::vector<std::string> MountpointsOf(const std::string& directory) {
  std::error_code error;
  return fuse::MountpointsOf(LocalMdsAddress(fs::canonical(directory, error)));
}

// Their next call on it fails, and what they have mapped and changed since is lost: whoever stops it should
// know.
void NameUsers(const std::vector<std::string>& mountpoints) {
  for (const std::string& mountpoint : mountpoints) {
    const std::vector<fuse::MountUser> users = fuse::UsersOf(mountpoint);
    for (const fuse::MountUser& user : users) {
      std::fprintf(stderr, "nacre: process %d (%s) is still using %s\n", user.pid, user.program.c_str(),
                   user.path.c_str());
    }
    if (!users.empty())
      std::fprintf(stderr, "nacre: %s is taken off all the same; what they do there fails from now on\n",
                   mountpoint.c_str());
  }
}

}  // namespace

std::string LocalMdsAddress(const std::string& directory) {
  return absl::StrCat("unix:", directory, "/mds.sock");
}

int RunLocal(LocalOptions options) {
  std::vector<std::string> made, formatted;
  Status status = Prepare(&options, &made);
  if (!status.ok()) {
    RemoveMade(options, made, formatted);
    return Complain(status);
  }
  MakeFilesPrivate();
  std::unique_ptr<Background> background = Background::Foreground();
  if (options.background) {
    StatusOr<std::unique_ptr<Background>> forked = Background::Fork(options.directory + "/log/local.log");
    if (!forked.ok()) return Complain(forked.status());
    background = *std::move(forked);
  }
  SetLogName("local");
  StatusOr<std::unique_ptr<PidFile>> held = PidFile::Hold(PidPath(options.directory));
  if (!held.ok()) return background->Failed(held.status());
  StatusOr<int> exit = Serve(options, *background, &formatted);
  if (exit.ok()) return *exit;
  held->reset();
  RemoveMade(options, made, formatted);
  return background->Failed(exit.status());
}

int StopLocal(const std::string& directory) {
  const std::vector<std::string> mountpoints = MountpointsOf(directory);  // gone once it has ended
  NameUsers(mountpoints);
  const StatusOr<pid_t> process = FindProcess(PidPath(directory));
  if (!process.ok()) return Complain(process.status());
  Status status = EndProcess(PidPath(directory), kStopSeconds);
  if (!status.ok()) return Complain(status);
  for (const std::string& mountpoint : mountpoints) {
    const std::string last_words = TakeLastWords(mountpoint, *process);
    if (!last_words.empty()) return Complain(ErrnoError(EIO, absl::StrCat("stopped, but ", last_words)));
  }
  std::printf("stopped\n");
  return 0;
}

}  // namespace nacre
