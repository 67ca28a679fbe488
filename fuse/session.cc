#include "fuse/session.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <future>
#include <thread>

#include "common/log.h"
#include "common/turn.h"

namespace nacre::fuse {
namespace {

constexpr size_t kBufferSize =
    (1 << 20) + 4096 + 4096;  // libfuse reads at most 1 MiB and a page for the headers
constexpr size_t kWholeBuffers =
    32;  // at most that tasks keep; then bytes are copied into memory of their size

// Of the request that this thread is handing out.
thread_local std::shared_ptr<std::byte> current_buffer;
thread_local std::shared_ptr<Answer> current_answer;
thread_local bool current_keeps_buffer = false;

unsigned ThreadCount(const MountOptions& options) {
  if (options.threads > 0) return options.threads;
  return std::clamp(std::thread::hardware_concurrency(), 1u, 4u);
}

std::string KernelOptions(const MountOptions& options) {
  std::string out = "-odefault_permissions,subtype=nacre,max_read=1048576,fsname=";
  for (char c : options.source) {
    if (c == ',' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  if (options.allow_other) out += ",allow_other";
  if (options.read_only) out += ",ro";
  if (::geteuid() == 0) {
    out += options.nodev ? ",nodev" : ",dev";
    out += options.nosuid ? ",nosuid" : ",suid";
  }
  if (options.noexec) out += ",noexec";
  return out;
}

// A mount whose daemon is dead answers ENOTCONN, as soon as it is asked for something that the kernel does
// not remember: space.
bool IsDead(const std::string& mountpoint) {
  struct statfs space;
  return ::statfs(mountpoint.c_str(), &space) != 0 && (errno == ENOTCONN || errno == ECONNABORTED);
}

}  // namespace

Status PrepareMountpoint(const std::string& mountpoint) {
  StatusOr<MountEntry> entry = FindMount(mountpoint);
  if (entry.ok() && entry->type == "fuse.nacre") {
    if (!IsDead(mountpoint)) {
      return ErrnoError(
          EBUSY, absl::StrFormat("%s: Nacre (%s) is already mounted there; nacre umount %s takes it off",
                                 mountpoint, entry->source, mountpoint));
    }
    LogWarning("%s: taking off a mount whose daemon is gone", mountpoint);
    return UnmountPath(mountpoint, true);
  }
  struct stat found;
  if (::stat(mountpoint.c_str(), &found) != 0) {
    if (errno == ENOENT) {
      return ErrnoError(
          ENOENT, absl::StrFormat("%s: no such directory to mount at; make it first: mkdir -p %s", mountpoint,
                                  mountpoint));
    }
    return ErrnoError(errno, absl::StrFormat("%s: %s", mountpoint, std::strerror(errno)));
  }
  if (!S_ISDIR(found.st_mode)) return ErrnoError(ENOTDIR, absl::StrFormat("%s: not a directory", mountpoint));
  return OkStatus();
}

Session::Session(client::FileSystem& filesystem, Executor executor, MountOptions options)
    : filesystem_(filesystem), executor_(StartExecutor::Over(executor)), options_(std::move(options)) {}

Session::~Session() {
  if (invalidator_ != nullptr) invalidator_->Stop();
  interrupts_.Stop();
  if (fuse_ != nullptr) fuse_session_destroy(fuse_);
}

void Session::Started(std::shared_ptr<Answer> answer) { current_answer = std::move(answer); }

std::shared_ptr<std::byte> Session::KeepBytes(std::span<const std::byte>* bytes) {
  if (buffers_.taken() <= kWholeBuffers) {
    current_keeps_buffer = true;
    return nullptr;
  }
  std::shared_ptr<std::byte[]> copy(new std::byte[bytes->size()]);
  std::memcpy(copy.get(), bytes->data(), bytes->size());
  *bytes = std::span<const std::byte>(copy.get(), bytes->size());
  return std::shared_ptr<std::byte>(copy, copy.get());
}

Status Session::Start() {
  RETURN_IF_ERROR(PrepareMountpoint(options_.mountpoint));
  RETURN_IF_ERROR(MountKernel());
  SetReadAhead();
  invalidator_ = std::make_unique<Invalidator>(fuse_);
  OfferInvalidation();
  const unsigned threads = ThreadCount(options_);
  serving_ = threads;
  for (unsigned i = 0; i < threads; ++i) {
    std::thread([self = shared_from_this()] { self->Serve(); }).detach();  // ends with the mount
  }
  return OkStatus();
}

Status Session::MountKernel() {
  std::string program = "nacre", options = KernelOptions(options_);
  char* arguments[] = {program.data(), options.data(), nullptr};
  fuse_args args = FUSE_ARGS_INIT(2, arguments);
  fuse_ = fuse_session_new(&args, &Operations(), sizeof(fuse_lowlevel_ops), this);
  fuse_opt_free_args(&args);
  if (fuse_ == nullptr) return ErrnoError(EINVAL, absl::StrFormat("libfuse refuses the options %s", options));
  if (fuse_session_mount(fuse_, options_.mountpoint.c_str()) != 0) {
    return ErrnoError(
        EPERM,
        absl::StrFormat("%s: cannot mount (see the lines above); is /dev/fuse there (modprobe fuse), and "
                        "is this root or, with user_allow_other in /etc/fuse.conf, a user with fusermount3?",
                        options_.mountpoint));
  }
  if (!options_.direct_maps) init_reply_.DeclineDirectMaps();
  RETURN_IF_ERROR(init_reply_.Attach(fuse_));
  ASSIGN_OR_RETURN(MountEntry entry, FindMount(options_.mountpoint));
  device_ = entry.device;
  return OkStatus();
}

// The kernel starts with 128 KiB whatever the daemon asks for.
void Session::SetReadAhead() {
  std::string path = absl::StrFormat("/sys/class/bdi/%s/read_ahead_kb", device_);
  std::ofstream file(path);
  file << options_.read_ahead_bytes / 1024 << std::endl;
  if (!file) LogWarning("cannot write %s: reads arrive in pieces of 128 KiB", path);
}

void Session::OfferInvalidation() {
  client::Invalidation invalidation;
  std::weak_ptr<Session> weak = weak_from_this();
  invalidation.data_and_attributes = [weak](Fid fid, uint64_t begin, uint64_t end) -> Task<void> {
    auto forget = [](std::shared_ptr<Session> self, Fid fid, uint64_t begin, uint64_t end) -> Task<void> {
      if (self == nullptr) co_return;
      if (std::optional<uint64_t> node = self->nodes().Find(fid)) {
        OneShot<Unit> done = self->invalidator().Inode(*node, begin, end);
        co_await done.Wait();
      }
    };
    return forget(weak.lock(), fid, begin, end);
  };
  invalidation.attributes = [weak](Fid fid) {
    std::shared_ptr<Session> self = weak.lock();
    if (self == nullptr) return;
    if (std::optional<uint64_t> node = self->nodes().Find(fid)) self->invalidator().Attributes(*node);
  };
  filesystem_.SetInvalidation(std::move(invalidation));
}

void Session::Serve() {
  {
    StartExecutor::Queue posted;
    fuse_buf request{};
    current_buffer = buffers_.Take(kBufferSize);
    request.mem = current_buffer.get();
    while (ServeOne(&request, &posted)) {
    }
    current_buffer.reset();
  }
  std::lock_guard lock(mutex_);
  if (--serving_ == 0) ended_.Set({});
  changed_.notify_all();
}

// False: the mount is gone.
bool Session::ServeOne(fuse_buf* request, StartExecutor::Queue* posted) {
  int size = fuse_session_receive_buf(fuse_, request);
  if (size == -EINTR || size == -EAGAIN) return true;
  if (size <= 0) {
    if (size < 0) LogError("%s: reading from /dev/fuse: %s", options_.mountpoint, std::strerror(-size));
    return false;
  }
  {
    const Turn turn(executor_, /*chains=*/0);
    fuse_session_process_buf(fuse_, request);
    posted->Drain();
  }
  std::shared_ptr<Answer> answer = std::move(current_answer);
  const bool keeps_buffer = std::exchange(current_keeps_buffer, false);
  if (answer != nullptr && !answer->task_ended()) {
    if (keeps_buffer) {
      answer->Keep(std::move(current_buffer));
      current_buffer = buffers_.Take(kBufferSize);
      request->mem = current_buffer.get();
    }
    interrupts_.Watch(answer);
  }
  return !fuse_session_exited(fuse_);
}

void Session::RequestEnds() {
  if (running_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

bool Session::WaitUntil(Duration patience, const std::function<bool()>& done) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, done);
}

Status Session::Stop(Duration patience) {
  TakeOff(patience);
  if (!WaitUntil(patience, [this] { return serving_ == 0; })) {
    return ErrnoError(EBUSY,
                      absl::StrFormat("%s: the kernel does not let go of the mount", options_.mountpoint));
  }
  invalidator_->Stop();
  interrupts_.CancelAll();
  if (!WaitUntil(patience, [this] { return running_ == 0; })) {
    return ErrnoError(EBUSY, absl::StrFormat("%s: %d requests are still waiting for a server",
                                             options_.mountpoint, running_.load()));
  }
  interrupts_.Stop();  // it may be telling the file system of a signal
  return OkStatus();
}

// Cleanly if nobody uses it; else what is mapped and dirty is written, the connection is cut (open files
// answer ENOTCONN) and the mount goes lazily.
void Session::TakeOff(Duration patience) {
  if (ended_.IsSet()) return;
  const std::string& path = options_.mountpoint;
  StatusOr<MountEntry> entry = FindMount(path);
  if (!entry.ok() || entry->device != device_) return;
  Status status = UnmountPath(path, false);
  if (status.ok()) return;
  LogWarning("%s; it is taken off all the same", std::string(status.message()));
  auto synced = std::make_shared<std::promise<void>>();
  std::thread([path, synced] {
    int directory = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory >= 0) {
      ::syncfs(directory);
      ::close(directory);
    }
    synced->set_value();
  }).detach();
  synced->get_future().wait_for(patience / 2);
  ::umount2(path.c_str(), MNT_FORCE);
  status = UnmountPath(path, true);
  if (!status.ok() && status.code() != absl::StatusCode::kNotFound)
    LogWarning("%s", std::string(status.message()));
}

}  // namespace nacre::fuse
