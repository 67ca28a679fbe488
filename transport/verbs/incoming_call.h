// A call that came over a queue pair. One coroutine uses it, see IncomingCall. Puts and gets are RDMA writes
// and reads between the caller's memory and the buffers as they lie, if those are registered; else they go
// through a staging chunk. Puts for a call that wants them with the reply leave with that: out of the buffers
// themselves if they were lent, are registered, and one fragment holds it all, else out of a copy.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/server_link.h"
#include "transport/verbs/transfer_plan.h"

namespace nacre::verbs {

class VerbsIncomingCall : public IncomingCall {
 public:
  VerbsIncomingCall(std::shared_ptr<ServerLink> link, uint64_t id, CallMessage call);
  ~VerbsIncomingCall() override;

  const std::string& body() const override { return body_; }
  CallMemory memory_kind() const override { return kind_; }
  uint64_t memory_size() const override { return memory_.size(); }
  Task<Status> Put(uint64_t memory_offset, std::span<const std::span<const std::byte>> buffers) override;
  Task<Status> Lend(uint64_t memory_offset, std::span<const std::span<const std::byte>> buffers,
                    std::shared_ptr<void> keep) override;
  Task<Status> Get(uint64_t memory_offset, std::span<const std::span<std::byte>> buffers) override;
  Task<Status> Reply(std::string body) override;

 private:
  using Buffers = absl::InlinedVector<std::span<std::byte>, 2>;

  static Buffers Sources(std::span<const std::span<const std::byte>> buffers);
  static absl::InlinedVector<iovec, 8> TakeFront(Buffers* buffers, uint64_t length);
  void PutWithReply(uint64_t offset, const LocalPieces& pieces, std::shared_ptr<void> keep);
  Status AddData(std::string* body, Trailer* trailer);
  Task<Status> Move(ibv_wr_opcode opcode, uint64_t offset, Buffers buffers);
  Task<Status> MoveStaged(ibv_wr_opcode opcode, uint64_t offset, Buffers buffers);
  std::vector<TransferPart> Cut(uint64_t offset, const LocalPieces& local) const;
  bool FindKeys(const Buffers& buffers, LocalPieces* pieces);
  Task<Status> Run(ibv_wr_opcode opcode, uint64_t offset, LocalPieces local);

  const std::shared_ptr<ServerLink> link_;
  const uint64_t id_;
  const CallMemory kind_;
  const bool with_reply_;
  const RemoteMemory memory_;
  const std::string body_;
  std::vector<OneShot<Unit>> lent_;  // set when the reply cannot overtake it
  // The data that goes with the reply.
  DataRanges ranges_;
  Trailer data_;
  bool copied_ = false;  // some of it is in memory that is not registered
  bool replied_ = false;
};

}  // namespace nacre::verbs
