#include "api/connection.h"

#include <absl/strings/str_format.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <future>
#include <list>
#include <thread>
#include <tuple>

#include "api/call.h"
#include "common/host.h"
#include "common/log.h"
#include "common/random.h"
#include "rpc/grpc_channel.h"
#include "transport/data_plane.h"

namespace nacre::api {
namespace {

constexpr Duration kPatienceAtExit = 10s;

struct Connections {
  std::mutex mutex;
  std::list<std::shared_ptr<Connection>> open;
};

Connections& All() {
  static auto& all = *new Connections;  // threads may outlive static objects
  return all;
}

int Threads(unsigned wanted) {
  if (wanted > 0) return static_cast<int>(wanted);
  const unsigned cpus = std::max(std::thread::hardware_concurrency(), 1u);
  return static_cast<int>(std::clamp(cpus / 2, std::min(cpus, 4u), 6u));  // more gain little: performance.md
}

// No other session's, or one of the two would take the other's place when that loses its stream.
std::string SessionName(const std::string& name) {
  static std::atomic<int> count{0};
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  StatusOr<std::string> boot = BootId();
  return absl::StrFormat("%s:%s.%d.%d@%s", host, name.empty() ? program_invocation_short_name : name,
                         ::getpid(), ++count, boot.ok() ? boot->substr(0, 8) : "");
}

// A library is silent unless it is asked not to be.
void SetLog() {
  const char* wanted = std::getenv("NACRE_LOG");
  const std::string level = wanted == nullptr ? "error" : wanted;
  SetLogName("libnacre");
  SetLogLevel(level == "debug"     ? LogLevel::kDebug
              : level == "info"    ? LogLevel::kInfo
              : level == "warning" ? LogLevel::kWarning
                                   : LogLevel::kError);
}

void StartLibrary() {
  static std::once_flag once;
  std::call_once(once, [] {
    SetLog();
    WatchForForks();
    std::atexit([] {
      if (CheckProcess().ok()) Connection::CloseAll(kPatienceAtExit);
    });
  });
}

}  // namespace

bool ConnectionOptions::operator==(const ConnectionOptions& other) const {
  auto key = [](const ConnectionOptions& options) {
    const client::Options& client = options.client;
    return std::tie(options.mds, options.name, options.transport, options.threads, client.retry.hard,
                    client.retry.soft_timeout, client.cache_bytes, client.caching, client.verify);
  };
  return key(*this) == key(other);
}

Connection::Connection(ConnectionOptions options)
    : options_(std::move(options)), runtime_(Threads(options_.threads)) {}

Connection::~Connection() {
  runtime_.Stop();  // first the threads, then what they used
}

void Connection::Destroy(Connection* connection) {
  const Executor executor = connection->executor();
  if (executor.target<asio::io_context::executor_type>()->running_in_this_thread()) {
    std::thread([connection] { delete connection; }).detach();
  } else {
    delete connection;
  }
}

StatusOr<std::shared_ptr<Connection>> Connection::Open(ConnectionOptions options) {
  StartLibrary();
  const std::shared_ptr<Connection> connection = Join(std::move(options));
  // The second one that opens the address waits for the first, and tries by itself if that failed.
  std::unique_lock turn(connection->connecting_);
  const Status connected = connection->connected_ ? OkStatus() : connection->Connect();
  connection->connected_ = connected.ok();
  turn.unlock();
  if (connected.ok()) return connection;
  connection->Drop();
  return connected;
}

// One user more of the one that is there, or of a new one.
std::shared_ptr<Connection> Connection::Join(ConnectionOptions options) {
  Connections& all = All();
  std::lock_guard lock(all.mutex);
  for (const std::shared_ptr<Connection>& connection : all.open) {
    if (!(connection->options_ == options)) continue;
    ++connection->users_;
    return connection;
  }
  std::shared_ptr<Connection> connection(new Connection(std::move(options)), Destroy);
  connection->users_ = 1;
  all.open.push_back(connection);
  return connection;
}

// One user less; whether that was the last.
bool Connection::Drop() {
  Connections& all = All();
  std::lock_guard lock(all.mutex);
  if (--users_ > 0) return false;
  all.open.remove_if([this](const auto& connection) { return connection.get() == this; });
  return true;
}

Status Connection::Connect() {
  ASSIGN_OR_RETURN(transport_, MakeDataPlane(runtime_.executor(), RealClock(), options_.transport));
  ASSIGN_OR_RETURN(std::shared_ptr<MetadataConnector> metadata, NewGrpcConnector(options_.mds));
  client::Options options = options_.client;
  options.name = SessionName(options_.name);
  options.transport = options_.transport;
  client::Environment environment{runtime_.executor(), RealClock(), SystemRandom(), *transport_,
                                  std::move(metadata)};
  ASSIGN_OR_RETURN(filesystem_,
                   runtime_.Run(client::FileSystem::Mount(std::move(environment), std::move(options))));
  return OkStatus();
}

void Connection::Start(Task<void> task) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;  // its session is gone, and with it what there was to do
    ++started_;
  }
  Spawn(runtime_.executor(), std::move(task), [this] {
    std::lock_guard lock(mutex_);
    if (--started_ == 0) none_started_.notify_all();
  });
}

Status Connection::Leave() { return Drop() ? Close() : OkStatus(); }

Status Connection::Close() {
  {
    std::unique_lock lock(mutex_);
    none_started_.wait(lock, [this] { return started_ == 0; });
    if (std::exchange(closed_, true)) return OkStatus();
  }
  return runtime_.Run(filesystem_->Unmount());
}

void Connection::CloseAll(Duration patience) {
  std::list<std::shared_ptr<Connection>> open;
  {
    std::lock_guard lock(All().mutex);
    open.swap(All().open);
  }
  for (const std::shared_ptr<Connection>& connection : open) {
    if (!connection->connected_) continue;
    auto* keep = new std::shared_ptr<Connection>(connection);  // its threads may still be at work at the end
    auto done = std::make_shared<std::promise<void>>();
    std::future<void> closed = done->get_future();
    Spawn(connection->executor(), connection->filesystem().Unmount(),
          [done](const Status&) { done->set_value(); });
    if (closed.wait_for(patience) == std::future_status::ready) continue;
    LogError("%s: what was written last could not be sent before the end of the process",
             (*keep)->options_.mds);
  }
}

}  // namespace nacre::api
