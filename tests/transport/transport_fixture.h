// The ground of the conformance suite: one server and one client transport of the kind under test, on an
// io_context with one or several threads. A new transport joins by adding its TransportKind to AllKinds() in
// transport_fixture.cc. Tearing down waits until nothing is left to run: a transport that forgets a pending
// operation hangs the test.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/random.h"
#include "common/task.h"
#include "transport/transport.h"

namespace nacre {

using CallPtr = std::shared_ptr<IncomingCall>;

// Makes transports that can reach each other.
class TransportSetup {
 public:
  virtual ~TransportSetup() = default;
  virtual std::unique_ptr<Transport> Make(Executor executor) = 0;
  virtual std::string ListenAddress() = 0;  // usable again after a listener has gone
};

struct TransportKind {
  std::string name;
  std::function<std::unique_ptr<TransportSetup>()> make;
  int threads = 1;
  bool copies = true;  // what is put into a device's memory is copied there by the device
};

std::vector<TransportKind> AllKinds();
std::vector<TransportKind> TcpKinds();
std::vector<TransportKind> ShmKinds();
// Over a device that is made up, and over the machine's own if it has one: tests/rdma/transport.sh runs
// these.
std::vector<TransportKind> VerbsKinds();
std::vector<TransportKind> FakeVerbsKinds();

class TransportTest : public ::testing::TestWithParam<TransportKind> {
 public:
  using Handler = std::function<Task<void>(CallPtr)>;

  void SetUp() override;
  void TearDown() override;

  void Listen(Handler handler);  // at the address of before, if there was one
  void StopListening() { listener_.reset(); }
  std::shared_ptr<Peer> Connect();

  // Runs a task on the context and waits for it.
  template <typename T>
  T Run(Task<T> task) {
    std::promise<T> promise;
    std::future<T> future = promise.get_future();
    Spawn(context_.get_executor(), std::move(task),
          [&promise](T value) { promise.set_value(std::move(value)); });
    return future.get();
  }
  template <typename T>
  T Run(OneShot<T> value) {
    return Run([](OneShot<T> value) -> Task<T> { co_return co_await value.Wait(); }(std::move(value)));
  }

  StatusOr<std::string> Call(Peer& peer, std::string body, CallMemory kind = CallMemory::kNone,
                             std::vector<MemorySpan> memory = {}, Duration timeout = 20s);

  std::shared_ptr<MemoryRegion> Register(std::vector<std::byte>& memory);
  std::vector<MemorySpan> Whole(std::vector<std::byte>& memory);

  Executor executor() { return context_.get_executor(); }
  Transport& client() { return *client_; }
  Transport& server() { return *server_; }
  const std::string& address() const { return address_; }

 private:
  asio::io_context context_;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_;
  std::vector<std::thread> threads_;
  std::unique_ptr<TransportSetup> setup_;
  std::unique_ptr<Transport> client_, server_;
  std::string address_;
  std::unique_ptr<Listener> listener_;
};

// A handler that answers with the call's own body.
Task<void> Echo(CallPtr call);

// Holds a handler until the test lets it go, and keeps what its operations returned then.
struct Gate {
  OneShot<Unit> open;
  OneShot<Unit> entered;
  OneShot<Status> outcome;
};

std::vector<std::byte> RandomBytes(size_t size, uint64_t seed);

// Waits (bounded) until the condition holds.
bool Eventually(const std::function<bool()>& condition);

}  // namespace nacre
