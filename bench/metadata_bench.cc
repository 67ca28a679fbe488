// The cost of an MDS, without network and client: creates, lookups, stats and unlinks a second of
// MetadataServer::Handle on a real RocksDB.
//
//   metadata_bench DIRECTORY [FILES [IN_FLIGHT]]
//
// FILES (default 100,000) are made in one directory with IN_FLIGHT (default 16) requests at a time, by one
// thread. The DIRECTORY is created and must not hold an MDT yet.
#include <fcntl.h>

#include <boost/asio/io_context.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>

#include "common/log.h"
#include "rpc/convert.h"
#include "rpc/versions.h"
#include "server/kv/rocks_kv.h"
#include "server/metadata/metadata_server.h"
#include "transport/inproc/inproc_transport.h"

namespace nacre {
namespace {

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
    proto::MetadataRequest connect;
    connect.mutable_connect()->set_version(kClientVersions.newest);
    const proto::MetadataReply connected = Run(server_->Handle(peer_, connect));
    if (connected.status().error() != 0) Die(FromProto(connected.status()));
    session_ = connected.connect().session();
  }

  // Sends `count` requests, `in_flight` at a time, and prints how many a second.
  void Measure(const char* name, int count, bool mutation,
               const std::function<proto::MetadataRequest(int)>& make) {
    const Duration begin = RealClock().Now();
    int sent = 0, done = 0;
    std::function<void()> next = [&] {
      if (sent == count) return;
      proto::MetadataRequest request = make(sent++);
      request.set_session(session_);
      request.mutable_credentials();
      if (mutation) request.set_sequence(++sequence_);
      if (mutation)
        request.set_low_water(sequence_ > static_cast<uint64_t>(in_flight_) ? sequence_ - in_flight_ : 1);
      Spawn(context_.get_executor(), server_->Handle(peer_, std::move(request)),
            [&](proto::MetadataReply reply) {
              if (reply.status().error() != 0) Die(FromProto(reply.status()));
              ++done;
              next();
            });
    };
    for (int i = 0; i < in_flight_; ++i) next();
    while (done < count) context_.run_one();
    double seconds = std::chrono::duration<double>(RealClock().Now() - begin).count();
    std::printf("%-10s %9.0f /s  %6.1f us\n", name, count / seconds, seconds / count * 1e6);
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
  SessionId session_ = 0;
  uint64_t sequence_ = 0;
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
