// The server's end of a shared-memory connection: a ServerConnection over a unix socket whose two sides see
// each other's registered memory. A put out of registered memory is announced, together with the reply if its
// buffers stay (Lend), and lasts until the client says that it has copied the bytes, or has been cut off
// because it did not in time; a get copies them out of the
// client's memory. Everything else goes through the socket. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "transport/shm/pieces.h"
#include "transport/shm/shm_memory.h"
#include "transport/tcp/incoming_call.h"
#include "transport/tcp/server_connection.h"

namespace nacre::shm {

struct ShmServerOptions {
  Duration taking_timeout = std::chrono::seconds(10);  // for a client to copy what was put
};

class ShmServerConnection : public ServerConnection {
 public:
  ShmServerConnection(StreamSocket socket, std::string name, std::shared_ptr<CallSink> sink, Clock& clock,
                      const TcpOptions& options, absl::AnyInvocable<void()> lost,
                      std::shared_ptr<ShmMemory> memory, ShmServerOptions shm_options);

  // Pieces of what this side shows, as they travel; false: not all of the buffers lie there.
  bool Locate(std::span<const std::span<const std::byte>> buffers, std::string* pieces) const;

  // Memory that is shown to the client and not taken yet.
  struct Lent {
    uint32_t length = 0;
    Duration deadline = kNoDeadline;
    std::shared_ptr<void> keep;
    OneShot<Status> over;
  };
  // From now on, until the client has taken it or the connection has ended, which `over` tells. Returns the
  // frame that tells the client. Empty: it has too much to take already. UNAVAILABLE: it is gone. The
  // client's time begins with Told.
  StatusOr<std::string> Announce(uint64_t id, uint64_t offset, Lent lent, std::string pieces);
  // The bytes that were announced for this call are about to be sent.
  void Told(uint64_t id);
  void SendNow(std::string frame) { SendBytes(std::move(frame)); }

  void CountGot(uint64_t bytes) { count().server_bytes_got.Add(static_cast<int64_t>(bytes)); }

 private:
  Task<Status> Prepare() override;
  Task<Status> OnFrame(FrameHeader header) override;
  void OnClosed(const Status& why) override;
  Task<Status> OnTaken(FrameHeader header);
  StatusOr<std::shared_ptr<IncomingCall>> NewCall(const FrameHeader& header, std::string body,
                                                  std::unique_ptr<std::byte[]> eager) override;
  Duration Expire(Duration now);

  const std::shared_ptr<ShmMemory> memory_;
  const ShmServerOptions shm_options_;
  std::shared_ptr<Watchdog> watchdog_;
  Shown shown_;  // these two from Prepare on
  Views views_;
  std::mutex mutex_;
  bool closed_ = false;
  std::map<std::pair<uint64_t, uint64_t>, Lent> lent_;  // by call and offset
};

class ShmIncomingCall : public TcpIncomingCall {
 public:
  // `source`: the caller's memory as this side sees it, where it does.
  ShmIncomingCall(std::shared_ptr<ShmServerConnection> connection, const FrameHeader& header,
                  std::string body, std::unique_ptr<std::byte[]> eager, Pieces source);

  Task<Status> Put(uint64_t memory_offset, std::span<const std::span<const std::byte>> buffers) override;
  Task<Status> Lend(uint64_t memory_offset, std::span<const std::span<const std::byte>> buffers,
                    std::shared_ptr<void> keep) override;
  Task<Status> Get(uint64_t memory_offset, std::span<const std::span<std::byte>> buffers) override;
  Task<Status> Reply(std::string body) override;

 private:
  // Lends that follow each other in the caller's memory: shown as one, for each costs the client as much as
  // many of its bytes.
  struct Gathered {
    uint64_t offset = 0;
    uint64_t length = 0;
    std::vector<std::span<const std::byte>> buffers;
    std::vector<std::shared_ptr<void>> keep;
  };

  bool MayGather(uint64_t memory_offset, uint64_t length, size_t buffers) const;
  Task<Status> LendGathered();
  Task<Status> LendAll(uint64_t memory_offset, std::span<const std::span<const std::byte>> buffers,
                       std::shared_ptr<void> keep);
  // Shows the buffers to the client. The frame that tells it; empty: they go through the socket.
  StatusOr<std::string> Show(uint64_t memory_offset, std::span<const std::span<const std::byte>> buffers,
                             ShmServerConnection::Lent lent);

  const std::shared_ptr<ShmServerConnection> connection_;
  const Pieces source_;
  bool lends_ = false;  // the client has not been told of all that is lent
  Gathered gathered_;
};

}  // namespace nacre::shm
