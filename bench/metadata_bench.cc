// Measures what an MDS does in a second: creates, stats and unlinks by clients in the same process, which
// reach it over a socket, each in a directory of its own. No cache of a client, no kernel: the MDS alone, on
// a real RocksDB.
//
//   metadata_bench DIRECTORY [--clients N] [--directories N] [--threads N] [--files N] [--batch N]
//   [--in-flight N] [--memory MIB] [--form FORM]
//
// Changes go as a client sends them that has answered its applications before (MetadataQueue): in batches, of
// which several are under way. Stats go one by one, --in-flight of them for each client. The CPU time is that
// of both sides. The DIRECTORY is created, must not be there before, and stays.
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <thread>

#include "common/log.h"
#include "common/runtime.h"
#include "rpc/convert.h"
#include "rpc/grpc_channel.h"
#include "rpc/grpc_server.h"
#include "rpc/inproc_channel.h"
#include "rpc/versions.h"
#include "server/kv/rocks_kv.h"
#include "server/metadata/metadata_server.h"
#include "transport/inproc/inproc_transport.h"

namespace nacre {
namespace {

struct Settings {
  std::string directory;
  std::string form = "unix";
  int clients = 4, directories = 1, threads = 2, files = 100000, batch = 64, batches = 4, in_flight = 64;
  uint64_t memory = 256;  // MiB, half for the store, as a daemon shares them out
};

// The processor time of this process, on all of its threads.
Duration CpuTime() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

[[noreturn]] void Die(const Status& status) {
  std::fprintf(stderr, "metadata_bench: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

template <typename T>
T OrDie(StatusOr<T> result) {
  if (!result.ok()) Die(result.status());
  return *std::move(result);
}

// An MDS with one OST that nobody uses, and a way to it.
class Servers {
 public:
  explicit Servers(const Settings& settings) : threads_(settings.threads) {
    const uint64_t half = (settings.memory << 20) / 2;
    RocksKvOptions store;
    store.memory_bytes = half;
    store_ = OrDie(OpenRocksKv(settings.directory, store));
    MetadataEnvironment environment{threads_.executor(), RealClock(), SystemRandom(), *store_, *transport_};
    MetadataOptions options;
    options.record_bytes = half;
    server_ = OrDie(threads_.Run(MetadataServer::Start(environment, options)));
    ost_.set_uuid("bench");
    ost_.set_total_bytes(uint64_t{1} << 40);
    ost_.set_available_bytes(uint64_t{1} << 40);
    proto::RegisterOssRequest oss;
    oss.set_address(kAddress);
    *oss.add_osts() = ost_;
    threads_.Run(server_->RegisterOss(oss));
    if (settings.form == "inproc") {
      inproc_ = std::make_unique<InprocServer>(threads_.executor(), *server_, *server_);
      return;
    }
    std::string address = "127.0.0.1:0";
    if (settings.form == "unix") address = absl::StrCat("unix:/tmp/nacre-metadata-bench.", getpid());
    GrpcServices services;
    services.metadata = server_.get();
    services.cluster = server_.get();
    grpc_ = OrDie(GrpcServer::Start(threads_.executor(), services, {address}));
  }

  ~Servers() {
    if (grpc_ != nullptr) grpc_->Stop();
    if (inproc_ != nullptr) inproc_->Stop();
    Status stopped = threads_.Run(server_->Stop());
    if (!stopped.ok()) Die(stopped);
    threads_.Stop();
  }

  std::shared_ptr<MetadataConnector> NewConnector() {
    return inproc_ != nullptr ? inproc_->NewConnector("bench")
                              : OrDie(NewGrpcConnector(grpc_->addresses()[0]));
  }

  // To be called more often than every five seconds, else the OST counts as down.
  void Heartbeat() {
    proto::HeartbeatRequest heartbeat;
    heartbeat.set_address(kAddress);
    *heartbeat.add_osts() = ost_;
    threads_.Run(server_->Heartbeat(heartbeat));
  }

 private:
  static constexpr char kAddress[] = "inproc:nobody";

  Runtime threads_;
  std::shared_ptr<Transport> transport_ =
      MakeInprocTransport(MakeInprocNetwork(), threads_.executor(), RealClock());
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<MetadataServer> server_;
  std::unique_ptr<InprocServer> inproc_;
  std::unique_ptr<GrpcServer> grpc_;
  proto::OstInfo ost_;
};

// One session. The files of its directory have the numbers from 0 on; several requests of it may be under
// way.
class Client {
 public:
  static Task<Unit> Connect(Client& self, Servers& servers, int number, const Settings& settings) {
    self.fids_.resize(static_cast<size_t>(settings.files / settings.clients));
    self.channel_ = OrDie(co_await servers.NewConnector()->Connect({}, 10s));
    proto::MetadataRequest connect;
    connect.mutable_connect()->set_version(kClientVersions.newest);
    connect.mutable_connect()->set_name(absl::StrCat("bench", number));
    connect.mutable_connect()->set_nonce(SystemRandom().Next());
    const proto::MetadataReply connected = co_await self.Ask(std::move(connect));
    self.session_ = connected.connect().session();
    self.own_fids_ = connected.connect().fid_sequence();
    for (int i = 0; i < settings.directories; ++i) {
      const std::string name = absl::StrCat("client", number, "-", i);
      proto::MetadataRequest mkdir = self.Make(kRootFid, name, S_IFDIR | 0755);
      mkdir.set_sequence(++self.sequence_);
      mkdir.set_low_water(self.sequence_);
      self.directories_.push_back(FromProto((co_await self.Ask(std::move(mkdir))).entry().attr().fid()));
    }
    co_return Unit{};
  }

  void Close() { channel_->Close(); }

  using MakeRequest = std::function<proto::MetadataRequest(Client&, int file)>;

  // Takes files as long as there are any, `batch` of them together, and changes them.
  static Task<Unit> Change(Client& self, std::atomic<int>& next, int batch, const MakeRequest& make) {
    const int files = static_cast<int>(self.fids_.size());
    for (;;) {
      proto::MetadataRequest request;
      const int first = self.Fill(&request, next, std::min(batch, files), make);
      if (first >= files) co_return Unit{};
      const uint64_t sequence = request.batch().requests(0).sequence();
      const proto::MetadataReply reply = co_await self.Ask(std::move(request));
      for (const proto::MetadataReply& one : reply.batch().replies())
        if (one.status().error() != 0) Die(FromProto(one.status()));
      self.Answered(sequence);
    }
  }

  // Takes files as long as there are any, and asks about each.
  static Task<Unit> AskEach(Client& self, std::atomic<int>& next, const MakeRequest& make) {
    for (int file; (file = next++) < static_cast<int>(self.fids_.size());)
      co_await self.Ask(make(self, file));
    co_return Unit{};
  }

  proto::MetadataRequest Create(int file) {
    proto::MetadataRequest request = Make(DirectoryOf(file), Name(file), S_IFREG | 0644);
    fids_[static_cast<size_t>(file)] = request.mknod().fid();
    return request;
  }
  proto::MetadataRequest Stat(int file) const {
    proto::MetadataRequest request;
    *request.mutable_getattr()->mutable_fid() = fids_[static_cast<size_t>(file)];
    return request;
  }
  proto::MetadataRequest Unlink(int file) const {
    proto::MetadataRequest request;
    *request.mutable_unlink()->mutable_parent() = ToProto(DirectoryOf(file));
    request.mutable_unlink()->set_name(Name(file));
    return request;
  }

 private:
  static std::string Name(int file) { return absl::StrCat("file", file); }
  Fid DirectoryOf(int file) const { return directories_[static_cast<size_t>(file) % directories_.size()]; }

  proto::MetadataRequest Make(Fid parent, std::string name, uint32_t mode) {
    proto::MetadataRequest request;
    proto::Mknod* mknod = request.mutable_mknod();
    *mknod->mutable_parent() = ToProto(parent);
    mknod->set_name(std::move(name));
    mknod->set_mode(mode);
    mknod->mutable_fid()->set_sequence(own_fids_);
    mknod->mutable_fid()->set_object(++fids_given_);
    return request;
  }

  // The next files become a batch behind the last one; returns the first of them.
  int Fill(proto::MetadataRequest* request, std::atomic<int>& next, int batch, const MakeRequest& make) {
    std::lock_guard lock(mutex_);
    const int first = next.fetch_add(batch);
    const int end = std::min(first + batch, static_cast<int>(fids_.size()));
    if (first >= end) return first;
    request->mutable_batch()->set_after(under_way_.empty() ? 0 : sequence_);
    for (int file = first; file < end; ++file) {
      proto::MetadataRequest* one = request->mutable_batch()->add_requests();
      *one = make(*this, file);
      one->mutable_credentials();
      one->set_change_only(true);
      one->set_sequence(++sequence_);
    }
    under_way_.insert(request->batch().requests(0).sequence());
    request->set_low_water(*under_way_.begin());
    return first;
  }

  void Answered(uint64_t first_sequence) {
    std::lock_guard lock(mutex_);
    under_way_.erase(first_sequence);
  }

  Task<proto::MetadataReply> Ask(proto::MetadataRequest request) {
    request.set_session(session_);
    request.mutable_credentials();
    proto::MetadataReply reply = OrDie(co_await channel_->Call(std::move(request)));
    if (reply.status().error() != 0) Die(FromProto(reply.status()));
    co_return reply;
  }

  std::shared_ptr<MetadataChannel> channel_;
  SessionId session_ = 0;
  uint64_t own_fids_ = 0;
  std::vector<Fid> directories_;
  std::vector<proto::Fid> fids_;  // by file
  std::mutex mutex_;              // for the rest, but in Connect
  uint64_t fids_given_ = 0, sequence_ = 0;
  std::set<uint64_t> under_way_;  // the first sequences of what is
};

class Bench {
 public:
  explicit Bench(const Settings& settings)
      : settings_(settings),
        servers_(settings),
        threads_(settings.threads),
        clients_(static_cast<size_t>(settings.clients)) {
    std::vector<Task<Unit>> connecting;
    for (int i = 0; i < settings.clients; ++i)
      connecting.push_back(Client::Connect(clients_[static_cast<size_t>(i)], servers_, i, settings));
    threads_.Run(WhenAll(std::move(connecting)));
  }

  ~Bench() {
    for (Client& client : clients_) client.Close();
    beat_.request_stop();
    beat_.join();
    threads_.Stop();
  }

  void Change(const char* name, const Client::MakeRequest& make) {
    Measure(name, settings_.batches, [&](Client& client, std::atomic<int>& next) {
      return Client::Change(client, next, settings_.batch, make);
    });
  }
  void AskEach(const char* name, const Client::MakeRequest& make) {
    Measure(name, settings_.in_flight,
            [&](Client& client, std::atomic<int>& next) { return Client::AskEach(client, next, make); });
  }

 private:
  using Begin = std::function<Task<Unit>(Client&, std::atomic<int>& next)>;

  // Prints how many files a second all clients have worked off, each with so many tasks.
  void Measure(const char* name, int tasks, const Begin& begin) {
    std::vector<std::atomic<int>> next(clients_.size());
    std::vector<Task<Unit>> working;
    for (size_t i = 0; i < clients_.size(); ++i)
      for (int task = 0; task < tasks; ++task) working.push_back(begin(clients_[i], next[i]));
    const Duration start = RealClock().Now(), cpu_start = CpuTime();
    threads_.Run(WhenAll(std::move(working)));
    const double seconds = std::chrono::duration<double>(RealClock().Now() - start).count();
    const double cpu = std::chrono::duration<double>(CpuTime() - cpu_start).count();
    const int files = settings_.files / settings_.clients * settings_.clients;
    std::printf("%-8s %9.0f /s  %6.1f us of CPU each\n", name, files / seconds, cpu / files * 1e6);
  }

  void Beat(std::stop_token stop) {
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, stop, 1s, [] { return false; }) && !stop.stop_requested())
      servers_.Heartbeat();
  }

  const Settings settings_;
  Servers servers_;
  Runtime threads_;
  std::vector<Client> clients_;
  std::jthread beat_{[this](std::stop_token stop) { Beat(std::move(stop)); }};
};

Settings Parse(int argc, char** argv) {
  Settings settings;
  CLI::App app{"Creates, stats and unlinks that an MDS does in a second, for clients of the same process"};
  const CLI::Range any(1, 1 << 20);
  app.add_option("DIRECTORY", settings.directory, "of the MDT; is created")->required();
  app.add_option("--clients", settings.clients, "each in directories of its own")
      ->check(any)
      ->capture_default_str();
  app.add_option("--directories", settings.directories, "of each client, by turns")
      ->check(any)
      ->capture_default_str();
  app.add_option("--threads", settings.threads, "of the MDS, and as many of all clients")
      ->check(any)
      ->capture_default_str();
  app.add_option("--files", settings.files, "of all clients together")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app.add_option("--batch", settings.batch, "changes in a batch")->check(any)->capture_default_str();
  app.add_option("--batches", settings.batches, "of each client under way")
      ->check(any)
      ->capture_default_str();
  app.add_option("--in-flight", settings.in_flight, "stats of each client")
      ->check(any)
      ->capture_default_str();
  app.add_option("--memory", settings.memory, "of the MDS, MiB")
      ->check(CLI::Range(8, 1 << 20))
      ->capture_default_str();
  app.add_option("--form", settings.form, "how clients reach the MDS")
      ->check(CLI::IsMember({"unix", "tcp", "inproc"}))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  if (std::filesystem::exists(settings.directory)) {
    Die(absl::AlreadyExistsError(absl::StrCat(settings.directory, " exists already: name a new directory")));
  }
  return settings;
}

void Main(const Settings& settings) {
  SetLogLevel(LogLevel::kError);
  Bench bench(settings);
  bench.Change("create", [](Client& client, int file) { return client.Create(file); });
  bench.AskEach("stat", [](Client& client, int file) { return client.Stat(file); });
  bench.Change("unlink", [](Client& client, int file) { return client.Unlink(file); });
}

}  // namespace
}  // namespace nacre

int main(int argc, char** argv) { nacre::Main(nacre::Parse(argc, argv)); }
