#include "daemon/client_daemon.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "common/log.h"
#include "daemon/background.h"
#include "daemon/client_role.h"
#include "daemon/directory.h"
#include "daemon/ending.h"
#include "daemon/place.h"
#include "daemon/watchdog.h"
#include "fuse/mount.h"
#include "rpc/grpc_channel.h"
#include "transport/data_plane.h"

namespace nacre {
namespace {

constexpr int kEndSeconds = 120;
constexpr int kSilentSeconds = 2;
constexpr int kExitWithLoss = 3;  // systemd does not start it again: nacre-client@.service

Status MakeParent(const std::string& file) {
  return MakeDirectories(std::filesystem::path(file).parent_path());
}

int Complain(const Status& status) {
  std::fprintf(stderr, "nacre: %s\n", std::string(status.message()).c_str());
  return 1;
}

Status Prepare(ClientDaemonOptions* options) {
  const std::string& mountpoint = options->config.mount;
  if (options->log_file.empty()) {
    std::filesystem::path name = std::filesystem::path(PlaceFile(mountpoint)).stem();
    options->log_file = absl::StrCat("/var/log/nacre/", name.string(), ".log");
  }
  struct stat found;  // one whose daemon is dead is there, though it answers with an error
  if (options->make_mountpoint && ::lstat(mountpoint.c_str(), &found) != 0 && errno == ENOENT) {
    RETURN_IF_ERROR(MakeDirectories(mountpoint));
  }
  if (!options->pid_file.empty()) RETURN_IF_ERROR(MakeParent(options->pid_file));
  return options->background ? MakeParent(options->log_file) : OkStatus();
}

// Tells whoever waits for the mount why it takes long: the first time that the MDS does not answer.
class TellingConnector : public MetadataConnector {
 public:
  // The background must outlive the first connection that succeeds.
  TellingConnector(std::shared_ptr<MetadataConnector> inner, Background* background, std::string log_file)
      : inner_(std::move(inner)), background_(background), log_file_(std::move(log_file)) {}

  Task<StatusOr<std::shared_ptr<MetadataChannel>>> Connect(MetadataChannelEvents events,
                                                           Duration timeout) override {
    auto channel = co_await inner_->Connect(std::move(events), timeout);
    if (!told_.exchange(true) && !channel.ok()) {
      background_->Note(absl::StrFormat("nacre: %s\nnacre: trying again; Ctrl-C ends that (messages: %s)\n",
                                        channel.status().message(), log_file_));
    }
    co_return channel;
  }
  std::string address() const override { return inner_->address(); }

 private:
  const std::shared_ptr<MetadataConnector> inner_;
  Background* const background_;
  const std::string log_file_;
  std::atomic<bool> told_{false};
};

int Serve(const ClientDaemonOptions& options, Background& background) {
  ApplyLogLevel(options.config.log);
  Runtime runtime(static_cast<int>(options.config.threads));
  StatusOr<std::unique_ptr<Transport>> transport =
      MakeDataPlane(runtime.executor(), RealClock(), options.config.transport);
  if (!transport.ok()) return background.Failed(transport.status());
  StatusOr<std::shared_ptr<MetadataConnector>> metadata = NewGrpcConnector(options.config.mds);
  if (!metadata.ok()) return background.Failed(metadata.status());
  auto telling = std::make_shared<TellingConnector>(*metadata, &background, options.log_file);
  StatusOr<std::unique_ptr<ClientRole>> role =
      ClientRole::Start(runtime, **transport, telling, options.config);
  if (!role.ok()) return background.Failed(role.status());
  background.Ready(absl::StrFormat("%s mounted at %s\n", options.config.mds, options.config.mount));
  StartWatchdog(runtime);
  WaitForEnd(runtime, (*role)->ended());
  NotifySystemd("STOPPING=1");
  Status stopped = (*role)->Stop();
  if (!stopped.ok()) {
    std::string why(stopped.message());
    if (ToErrno(stopped) != EBUSY) why = "not everything could be written back: " + why;
    LogError("%s", why);
    LeaveLastWords(options.config.mount, why);
    std::_Exit(kExitWithLoss);  // requests may still be waiting in what the destructors would take apart
  }
  LogInfo("%s: unmounted; everything is with the servers", options.config.mount);
  role->reset();
  runtime.Stop();
  return 0;
}

void SayWhatIsWaitedFor(const std::string& mountpoint, pid_t client,
                        const StatusOr<fuse::MountEntry>& entry) {
  std::string why = "which is still sending what was written; Ctrl-C ends this waiting, not the sending";
  std::optional<fuse::MountUser> elsewhere;
  if (entry.ok()) elsewhere = fuse::MountedElsewhere(entry->device);
  if (elsewhere) {
    why = absl::StrFormat(
        "which serves it as long as it is mounted at %s in the mount namespace of process %d (%s)",
        elsewhere->path, elsewhere->pid, elsewhere->program);
  }
  std::fprintf(stderr, "nacre: %s: unmounted; waiting for its client (process %d), %s\n", mountpoint.c_str(),
               static_cast<int>(client), why.c_str());
}

}  // namespace

int RunClientDaemon(ClientDaemonOptions options) {
  Status status = Prepare(&options);
  if (!status.ok()) return Complain(status);
  std::unique_ptr<Background> background = Background::Foreground();
  if (options.background) {
    StatusOr<std::unique_ptr<Background>> forked = Background::Fork(options.log_file);
    if (!forked.ok()) return Complain(forked.status());
    background = *std::move(forked);
  }
  SetLogName("client");
  StatusOr<std::unique_ptr<PidFile>> held = std::unique_ptr<PidFile>();
  if (!options.pid_file.empty()) held = PidFile::Hold(options.pid_file);
  if (!held.ok()) return background->Failed(held.status());
  return Serve(options, *background);
}

int UnmountClient(const std::string& mountpoint, bool lazy) {
  const std::string place = PlaceFile(mountpoint);
  StatusOr<pid_t> client = FindProcess(place);  // before somebody mounts there again
  StatusOr<fuse::MountEntry> entry = fuse::FindMount(mountpoint);
  Status status = fuse::UnmountPath(mountpoint, lazy);
  if (!status.ok()) return Complain(status);
  if (!client.ok())
    return client.status().code() == absl::StatusCode::kNotFound ? 0 : Complain(client.status());
  status = WaitForProcess(place, *client, kSilentSeconds);
  if (ToErrno(status) == ETIMEDOUT) {
    SayWhatIsWaitedFor(mountpoint, *client, entry);
    status = WaitForProcess(place, *client, kEndSeconds - kSilentSeconds);
  }
  if (!status.ok()) return Complain(status);
  const std::string last_words = TakeLastWords(mountpoint, *client);
  if (last_words.empty()) return 0;
  return Complain(ErrnoError(EIO, absl::StrFormat("%s: unmounted, but %s", mountpoint, last_words)));
}

}  // namespace nacre
