// Hostile requests to an MDS, by a client that has a session: each is answered, with an error or not, and
// nothing breaks. The input is a sequence of requests, each behind two bytes of length.
#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <optional>

#include "common/ids.h"
#include "common/log.h"
#include "server/kv/mem_kv.h"
#include "server/metadata/metadata_server.h"
#include "transport/inproc/inproc_transport.h"

namespace nacre {
namespace {

class SilentPeer : public MetadataPeer {
 public:
  void Send(proto::Push) override {}
  void Close() override {}
  std::string name() const override { return "fuzz"; }
};

class FuzzedServer {
 public:
  FuzzedServer() {
    SetLogLevel(LogLevel::kError);
    MetadataEnvironment environment{context_.get_executor(), RealClock(), random_, kv_, *transport_};
    std::optional<StatusOr<std::unique_ptr<MetadataServer>>> started;
    asio::co_spawn(context_, MetadataServer::Start(environment, MetadataOptions{}),
                   [&](std::exception_ptr, StatusOr<std::unique_ptr<MetadataServer>> server) {
                     started = std::move(server);
                   });
    Poll();
    if (!started.has_value() || !started->ok()) std::abort();
    server_ = **std::move(started);
    proto::MetadataRequest connect;
    connect.mutable_connect()->set_version(1);
    session_ = Send(connect).value().connect().session();
  }

  // Nothing: the request waits (a lock, an OST that does not exist).
  std::optional<proto::MetadataReply> Send(proto::MetadataRequest request) {
    auto reply = std::make_shared<std::optional<proto::MetadataReply>>();
    asio::co_spawn(context_, server_->Handle(peer_, std::move(request)),
                   [reply](std::exception_ptr exception, proto::MetadataReply value) {
                     if (exception) std::abort();
                     *reply = std::move(value);
                   });
    Poll();
    return *reply;
  }

  void SendRaw(std::string_view bytes) {
    proto::MetadataRequest request;
    if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
    if (request.has_disconnect()) return;  // this session is needed
    request.set_session(session_);
    if (request.sequence() != 0) request.set_sequence(++sequence_);
    request.set_low_water(sequence_);
    (void)Send(std::move(request));
  }

 private:
  void Poll() {
    context_.restart();
    context_.poll();
  }

  asio::io_context context_;
  SeededRandom random_{1};
  MemKv kv_;
  std::shared_ptr<Transport> transport_ =
      MakeInprocTransport(MakeInprocNetwork(), context_.get_executor(), RealClock());
  std::shared_ptr<SilentPeer> peer_ = std::make_shared<SilentPeer>();
  std::unique_ptr<MetadataServer> server_;
  SessionId session_ = 0;
  uint64_t sequence_ = 0;
};

}  // namespace
}  // namespace nacre

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  nacre::FuzzedServer server;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  while (rest.size() >= 2) {
    size_t length = static_cast<uint8_t>(rest[0]) | static_cast<size_t>(static_cast<uint8_t>(rest[1])) << 8;
    rest.remove_prefix(2);
    length = std::min(length, rest.size());
    server.SendRaw(rest.substr(0, length));
    rest.remove_prefix(length);
  }
  return 0;
}
