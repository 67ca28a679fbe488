// The calls between MDSes that hold copies of one MDT, over simulated connections: each call has its own, as
// little as one call of gRPC has to do with the next.

#include <cerrno>

#include "tests/sim/network.h"

namespace nacre::sim {
namespace {

// For people who read the trace.
std::string Text(const proto::CopyRequest& request) {
  if (!request.has_apply() && !request.has_install()) return request.ShortDebugString();
  proto::CopyRequest brief = request;
  const auto changes =
      request.has_apply() ? request.apply().changes_size() : request.install().entries_size();
  brief.mutable_apply()->clear_changes();
  if (request.has_install()) {
    *brief.mutable_install() = request.install();
    brief.mutable_install()->clear_entries();
  }
  return absl::StrFormat("%s (%d changes)", brief.ShortDebugString(), changes);
}

void Note(const ConnectionPtr& connection, const char* way, const std::function<std::string()>& text) {
  connection->network().world().Note([&] {
    return absl::StrFormat("  %s %s %s: %s", connection->process(kClientSide)->name(), way,
                           connection->process(kServerSide)->name(), text());
  });
}

using Answer = OneShot<StatusOr<proto::CopyReply>>;

Task<void> Serve(ConnectionPtr connection, CopyHandler* handler, proto::CopyRequest request, Answer answer) {
  Note(connection, "->", [&] { return Text(request); });
  proto::CopyReply reply = co_await handler->Exchange(std::move(request));
  Note(connection, "<-", [&] { return reply.ShortDebugString(); });
  connection->Send(kServerSide, true,
                   [answer, reply = std::move(reply)]() mutable { answer.Set(std::move(reply)); });
}

class SimCopyChannel : public CopyChannel {
 public:
  SimCopyChannel(Network& network, Process* process, std::string address)
      : network_(network), process_(process), address_(std::move(address)) {}

  Task<StatusOr<proto::CopyReply>> Exchange(proto::CopyRequest request, Duration timeout) override {
    const Duration end = network_.world().clock().Now() + timeout;
    auto dialled = co_await network_.Dial(process_, address_, timeout);
    if (!dialled.ok()) co_return dialled.status();
    ConnectionPtr connection = *std::move(dialled);
    Answer answer;
    connection->OnLost(kClientSide,
                       [answer] { answer.Set(ErrnoError(ENOTCONN, "the connection to the MDS is lost")); });
    const Duration left = end - network_.world().clock().Now();
    auto timer = network_.world().clock().After(process_->executor(), left, [answer] {
      answer.Set(ErrnoError(ETIMEDOUT, "no answer from the MDS"));
    });
    auto deliver = [connection, request = std::move(request), answer]() mutable {
      const Service* service =
          connection->network().Find(connection->address(), connection->process(kServerSide));
      if (service == nullptr || service->copies == nullptr) return connection->Break();
      Spawn(service->process->executor(), Serve(connection, service->copies, std::move(request), answer));
    };
    connection->Send(kClientSide, true, std::move(deliver));
    co_return co_await answer.Wait();
  }

 private:
  Network& network_;
  Process* const process_;
  const std::string address_;
};

class SimCopyConnector : public CopyConnector {
 public:
  SimCopyConnector(Network& network, Process* process) : network_(network), process_(process) {}

  StatusOr<std::shared_ptr<CopyChannel>> Open(const std::string& address) override {
    return std::make_shared<SimCopyChannel>(network_, process_, address);
  }

 private:
  Network& network_;
  Process* const process_;
};

}  // namespace

std::shared_ptr<CopyConnector> NewCopyConnector(Network& network, Process* process) {
  return std::make_shared<SimCopyConnector>(network, process);
}

}  // namespace nacre::sim
