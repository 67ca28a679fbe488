// A call that came over a connection. One coroutine uses it, see IncomingCall. Small puts are kept and leave
// with the reply in one system call.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "transport/tcp/server_connection.h"
#include "transport/transport.h"

namespace nacre {

class TcpIncomingCall : public IncomingCall {
 public:
  // `eager`: the caller's memory, if it came with the call.
  TcpIncomingCall(std::shared_ptr<ServerConnection> connection, const FrameHeader& header, std::string body,
                  std::unique_ptr<std::byte[]> eager);
  ~TcpIncomingCall() override;

  const std::string& body() const override { return body_; }
  CallMemory memory_kind() const override { return kind_; }
  uint64_t memory_size() const override { return memory_size_; }
  Task<Status> Put(uint64_t memory_offset, std::span<const std::span<const std::byte>> buffers) override;
  Task<Status> Get(uint64_t memory_offset, std::span<const std::span<std::byte>> buffers) override;
  Task<Status> Reply(std::string body) override;

 protected:
  // Frames that leave with the next put or the reply.
  void KeepFrames(std::string_view frames) { kept_ += frames; }
  uint64_t id() const { return id_; }
  bool replied() const { return replied_; }

 private:
  void KeepPut(uint64_t offset, uint64_t length, std::span<const std::span<const std::byte>> buffers);
  Task<Status> GetPieces(uint64_t offset, uint32_t length, std::span<iovec> pieces);

  const std::shared_ptr<ServerConnection> connection_;
  const uint64_t id_;
  const CallMemory kind_;
  const uint64_t memory_size_;
  const std::string body_;
  const std::unique_ptr<std::byte[]> eager_;
  std::string kept_;  // frames of small puts, and KeepFrames
  bool replied_ = false;
};

}  // namespace nacre
