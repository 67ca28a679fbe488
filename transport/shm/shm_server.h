// The server's end of a shared-memory connection: a ServerConnection over a unix socket whose two sides see
// each other's registered memory. A put out of registered memory is announced and lasts until the client says
// that it has copied the bytes, or has been cut off because it did not in time; a get copies them out of the
// client's memory. Everything else goes through the socket. Thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string>

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

  // Until the client has copied them, or the connection has ended.
  Task<Status> PutShared(uint64_t id, uint64_t offset, uint32_t length, std::string pieces);

  // Whether the client may have given up its calls by now, and with them their memory.
  bool ClientHasGone() const;

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
  const int fd_;
  std::shared_ptr<Watchdog> watchdog_;
  Shown shown_;  // these two from Prepare on
  Views views_;
};

class ShmIncomingCall : public TcpIncomingCall {
 public:
  // `source`: the caller's memory as this side sees it, where it does.
  ShmIncomingCall(std::shared_ptr<ShmServerConnection> connection, const FrameHeader& header,
                  std::string body, std::unique_ptr<std::byte[]> eager, std::vector<iovec> source);

  Task<Status> Put(uint64_t memory_offset, std::span<const std::span<const std::byte>> buffers) override;
  Task<Status> Get(uint64_t memory_offset, std::span<const std::span<std::byte>> buffers) override;

 private:
  const std::shared_ptr<ShmServerConnection> connection_;
  const std::vector<iovec> source_;
};

}  // namespace nacre::shm
