// An MDS in a simulated world, and the session of one client that hears nothing.
#pragma once

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "common/ids.h"
#include "rpc/versions.h"
#include "server/kv/mem_kv.h"
#include "server/metadata/metadata_server.h"
#include "tests/fuzz/simulated.h"

namespace nacre::fuzz {

class SilentPeer : public MetadataPeer {
 public:
  void Send(proto::Push) override {}
  void Close() override {}
  std::string name() const override { return "fuzz"; }
};

class SimulatedMds : public Simulated {
 public:
  // False: it says that it cannot serve this store.
  bool Start() {
    process_ = world.Start(0, "mds");
    std::shared_ptr<Transport> transport = sim::NewTransport(network, process_);
    process_->Own(transport);
    MetadataEnvironment environment{process_->executor(), world.clock(), process_->random(), store,
                                    *transport};
    auto started = Await(process_, MetadataServer::Start(environment, MetadataOptions{}));
    if (!started.has_value()) std::abort();
    if (!started->ok()) return Crash(), false;
    server = (*started)->get();
    process_->Own(std::shared_ptr<MetadataServer>(**std::move(started)));
    return true;
  }

  void Crash() {
    world.Kill(process_);
    store.CrashProcess();
  }

  // An OST that has room for files and is never there.
  void RegisterOst() {
    proto::RegisterOssRequest request;
    request.set_address("oss");
    request.set_instance(1);
    proto::OstInfo* info = request.add_osts();
    info->set_uuid("uuid");
    info->set_total_bytes(1 << 30);
    info->set_available_bytes(1 << 30);
    auto reply = Wait(server->RegisterOss(std::move(request)));
    if (!reply.has_value() || reply->status().error() != 0) std::abort();
  }

  void Connect() {
    proto::MetadataRequest connect;
    connect.mutable_connect()->set_version(kClientVersions.newest);
    session_ = sequence_ = 0;
    auto reply = Ask(std::move(connect));
    session_ = reply.has_value() ? reply->connect().session() : 0;
  }

  // As the next request of the session; nothing: it waits, for a lock or an OST.
  std::optional<proto::MetadataReply> Ask(proto::MetadataRequest request) {
    request.set_session(session_);
    if (!request.has_connect()) request.set_sequence(++sequence_);
    return Wait(server->Handle(peer_, std::move(request)));
  }

  template <typename T>
  std::optional<T> Wait(Task<T> task) {
    return Await(process_, std::move(task));
  }

  MemKv store;
  MetadataServer* server = nullptr;  // the process owns it

 private:
  sim::Process* process_ = nullptr;
  std::shared_ptr<SilentPeer> peer_ = std::make_shared<SilentPeer>();
  SessionId session_ = 0;
  uint64_t sequence_ = 0;
};

}  // namespace nacre::fuzz
