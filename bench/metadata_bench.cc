// The cost of an MDS, without network and client: creates, lookups, stats and unlinks a second of
// MetadataServer::Handle on a real RocksDB.
//
//   metadata_bench DIRECTORY [FILES [IN_FLIGHT]]
//
// FILES (default 100,000) are made in one directory with IN_FLIGHT (default 16) requests at a time, by one
// thread. The DIRECTORY is created and must not hold an MDT yet.
#include <fcntl.h>
#include <time.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>

#include "common/log.h"
#include "rpc/convert.h"
#include "rpc/versions.h"
#include "server/kv/rocks_kv.h"
#include "server/metadata/metadata_server.h"
#include "transport/inproc/inproc_transport.h"

namespace nacre {
namespace {

// What the processors have worked for this process, on all of its threads.
Duration CpuTime() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

class SilentPeer : public MetadataPeer {
 public:
  void Send(proto::Push) override {}
  void Close() override {}
  std::string name() const override { return "bench"; }
};

class Bench {
 public:
  Bench(KvStore& store, int in_flight) : in_flight_(in_flight) {
    MetadataEnvironment environment{context_.get_executor(), RealClock(), SystemRandom(), store, *transport_};
    MetadataOptions options;
    options.leases = true;
    auto started = Run(MetadataServer::Start(environment, options));
    if (!started.ok()) Die(started.status());
    server_ = *std::move(started);
    proto::RegisterOssRequest oss;
    oss.set_address("inproc:nobody");
    proto::OstInfo* ost = oss.add_osts();
    ost->set_uuid("bench");
    ost->set_total_bytes(uint64_t{1} << 40);
    ost->set_available_bytes(uint64_t{1} << 40);
    Run(server_->RegisterOss(oss));
    heartbeat_.set_address(oss.address());
    *heartbeat_.mutable_osts() = oss.osts();
    proto::MetadataRequest connect;
    connect.mutable_connect()->set_version(kClientVersions.newest);
    const proto::MetadataReply connected = Run(server_->Handle(peer_, connect));
    if (connected.status().error() != 0) Die(FromProto(connected.status()));
    session_ = connected.connect().session();
  }

  // Sends `count` requests, `in_flight` at a time, and prints how many a second.
  void Measure(const char* name, int count, bool mutation,
               const std::function<proto::MetadataRequest(int)>& make) {
    const Duration begin = RealClock().Now(), cpu_begin = CpuTime();
    int sent = 0, done = 0;
    std::function<void()> next = [&] {
      if (sent == count) return;
      if (sent % 1000 == 0) Run(server_->Heartbeat(heartbeat_));
      proto::MetadataRequest request = make(sent++);
      request.set_session(session_);
      request.mutable_credentials();
      const uint64_t sequence = mutation ? ++sequence_ : 0;
      if (mutation) {
        request.set_sequence(sequence);
        under_way_.insert(sequence);
        request.set_low_water(*under_way_.begin());
      }
      Spawn(context_.get_executor(), server_->Handle(peer_, std::move(request)),
            [&, sequence](proto::MetadataReply reply) {
              if (reply.status().error() != 0) Die(FromProto(reply.status()));
              under_way_.erase(sequence);
              // Not from here: a handler that did not wait ends on the stack of its sender.
              asio::post(context_, [&] {
                ++done;
                next();
              });
            });
    };
    for (int i = 0; i < in_flight_; ++i) next();
    while (done < count) context_.run_one();
    double seconds = std::chrono::duration<double>(RealClock().Now() - begin).count();
    double cpu = std::chrono::duration<double>(CpuTime() - cpu_begin).count();
    std::printf("%-10s %9.0f /s  %6.1f us, of which the processor worked %6.1f us\n", name, count / seconds,
                seconds / count * 1e6, cpu / count * 1e6);
  }

  void Stop() { (void)Run(server_->Stop()); }

 private:
  template <typename T>
  T Run(Task<T> task) {
    std::optional<T> result;
    Spawn(context_.get_executor(), std::move(task), [&](T value) { result = std::move(value); });
    while (!result.has_value()) context_.run_one();
    return *std::move(result);
  }
  [[noreturn]] static void Die(const Status& status) {
    std::fprintf(stderr, "metadata_bench: %s\n", std::string(status.message()).c_str());
    std::exit(1);
  }

  asio::io_context context_;
  const int in_flight_;
  std::shared_ptr<Transport> transport_ =
      MakeInprocTransport(MakeInprocNetwork(), context_.get_executor(), RealClock());
  std::shared_ptr<SilentPeer> peer_ = std::make_shared<SilentPeer>();
  std::unique_ptr<MetadataServer> server_;
  proto::HeartbeatRequest heartbeat_;
  SessionId session_ = 0;
  uint64_t sequence_ = 0;
  std::set<uint64_t> under_way_;
};

int Main(const std::string& directory, int files, int in_flight) {
  SetLogLevel(LogLevel::kWarning);
  if (std::filesystem::exists(directory)) {
    std::fprintf(stderr, "metadata_bench: %s exists already\n", directory.c_str());
    return 1;
  }
  auto store = OpenRocksKv(directory, RocksKvOptions{});
  if (!store.ok()) {
    std::fprintf(stderr, "metadata_bench: %s\n", std::string(store.status().message()).c_str());
    return 1;
  }
  Bench bench(**store, in_flight);
  const proto::Fid root = ToProto(kRootFid);
  auto name = [](int i) { return "file" + std::to_string(i); };
  bench.Measure("create", files, true, [&](int i) {
    proto::MetadataRequest request;
    *request.mutable_create()->mutable_parent() = root;
    request.mutable_create()->set_name(name(i));
    request.mutable_create()->set_mode(0644);
    request.mutable_create()->set_flags(O_CREAT | O_WRONLY);
    request.mutable_create()->set_exclusive(true);
    return request;
  });
  bench.Measure("lookup", files, false, [&](int i) {
    proto::MetadataRequest request;
    *request.mutable_lookup()->mutable_parent() = root;
    request.mutable_lookup()->set_name(name(i));
    return request;
  });
  bench.Measure("unlink", files, true, [&](int i) {
    proto::MetadataRequest request;
    *request.mutable_unlink()->mutable_parent() = root;
    request.mutable_unlink()->set_name(name(i));
    return request;
  });
  bench.Stop();
  return 0;
}

}  // namespace
}  // namespace nacre

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: metadata_bench DIRECTORY [FILES [IN_FLIGHT]]\n");
    return 2;
  }
  return nacre::Main(argv[1], argc > 2 ? std::atoi(argv[2]) : 100000, argc > 3 ? std::atoi(argv[3]) : 16);
}
