// The data plane: calls from a client to an object server during which the server writes into ("puts") or
// reads from
// ("gets") memory that the caller has registered. One interface for TCP, verbs, shared memory and in-process
// use (DESIGN §7).
//
// The server names the caller's memory only by an offset into the flat concatenation of the spans that the
// call was given; keys and addresses stay inside the transport. Nothing here promises an order between calls,
// or between the puts of one call: only that a reply arrives after everything its call has put. All classes
// are thread-safe unless they say otherwise.
#pragma once

#include <absl/functional/any_invocable.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/task.h"

namespace nacre {

class BlockSums;     // transport/block_sums.h
class MemoryDevice;  // transport/memory_device.h
class SharedMemory;  // transport/shared_memory.h

// A registered range of local memory. Destroy it only when no call uses it. Shared by value.
class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // Where the memory is; null: here, for the CPU to touch. All spans of a call are of one kind.
  virtual const std::shared_ptr<MemoryDevice>& device() const;

 protected:
  MemoryRegion(std::byte* data, size_t size) : data_(data), size_(size) {}

 private:
  std::byte* data_;
  size_t size_;
};

// Part of a region.
struct MemorySpan {
  std::shared_ptr<MemoryRegion> region;
  uint64_t offset = 0;
  uint64_t length = 0;

  std::byte* data() const { return region->data() + offset; }
};

// Counts of a peer's calls over one path, or over one rail of it, since the first of them. Bytes are those of
// the memory that answered calls named: only the server knows how many of them an RDMA device has moved.
struct PathStats {
  std::string path;                         // as PathInfo's
  std::string rail;                         // device and port: "mlx5_0 port 1"; empty: the path has no rails
  int numa_node = -1;                       // of the rail's device; -1: not known
  bool down = false;                        // the rail carries nothing just now
  uint64_t reads = 0, read_bytes = 0;       // calls into whose memory the server could put
  uint64_t writes = 0, written_bytes = 0;   // out of whose memory it could get
  uint64_t other_calls = 0;                 // without memory
  uint64_t p50_micros = 0, p99_micros = 0;  // half of the calls, all but 1 % took no longer
  uint64_t credit_waits = 0;                // calls that could not be sent at once
  uint64_t lost = 0;                        // calls that ended without an answer
  uint64_t moved = 0;                       // calls that another rail took over before they were sent
  uint64_t registrations = 0;               // memory that is registered with the rail's device now
};

// Which way bytes take, and why not a better one (shown by nacre status).
struct PathInfo {
  std::string path;  // "tcp", "inproc", "rdma", …
  std::string reason;
  std::vector<PathStats> stats = {};  // of the paths that have been used, this one or not
};

enum class CallMemory { kNone, kPutTarget, kGetSource };

// Shared by calls that their caller may give up together: set to true, and then Peer::EndGivenUp. Null:
// never.
using GiveUpFlag = std::shared_ptr<std::atomic<bool>>;

inline bool IsGivenUp(const GiveUpFlag& flag) { return flag != nullptr && flag->load(); }

struct CallRequest {
  std::string body;  // an encoded ObjectRequest; at most kMaxBodySize
  CallMemory kind = CallMemory::kNone;
  std::vector<MemorySpan> memory;   // what the server may put into or get from while the call lasts
  std::shared_ptr<BlockSums> sums;  // of a device's memory, for a transport that can have it summed up
  GiveUpFlag given_up;
};

inline constexpr size_t kMaxBodySize = 1 << 20;

// A logical link to one server, made of as many connections as serve it. Connects at the first call and again
// after a loss.
class Peer {
 public:
  virtual ~Peer() = default;

  // The reply's body. After any return, error or not, the server can no longer touch the call's memory.
  // UNAVAILABLE: not connected or lost on the way (the request may or may not have been carried out);
  // DEADLINE_EXCEEDED: likewise, after `timeout`. ENOTSUP: this path does not reach the call's memory, a
  // device's or such as could not be registered; nothing was sent, and the message says why.
  virtual Task<StatusOr<std::string>> Call(CallRequest request, Duration timeout) = 0;

  // Ends the calls whose flag is set as if their time were over, those that are about to begin too: with
  // DEADLINE_EXCEEDED, or with UNAVAILABLE if they have not got as far as a connection. Where a server could
  // still touch the memory of such a call the connection goes with it, and with that other calls
  // (UNAVAILABLE), as after a timeout. Never waits, so it may be called under a lock. A peer whose calls end
  // soon by themselves need not have it.
  virtual void EndGivenUp() {}

  virtual PathInfo path() const = 0;
  // How the bytes of calls with this memory went last: the path, and for a device's memory whether they land
  // there by themselves ("rdma+gpu") or come by way of host memory ("tcp+staging").
  virtual std::string PathFor(const MemoryRegion& memory) const;

  // After a call was lost: the peer has other connections than the one that it was lost with, and repeating
  // it is worth while. A peer with one connection, or whose connections share their fate, says false.
  virtual bool connected() const { return false; }
  virtual std::string address() const = 0;

  // Ends all calls with UNAVAILABLE; later ones too.
  virtual void Close() = 0;
};

// One call, on the server. Valid until Reply has returned. Not thread-safe: one coroutine uses it.
class IncomingCall {
 public:
  virtual ~IncomingCall() = default;

  virtual const std::string& body() const = 0;
  virtual CallMemory memory_kind() const = 0;
  virtual uint64_t memory_size() const = 0;

  // Local buffers (of any alignment; registered memory spares a copy on some transports) -> caller's memory.
  // The buffers may be reused when the task has returned. INVALID_ARGUMENT beyond the caller's memory or of
  // the wrong kind.
  virtual Task<Status> Put(uint64_t memory_offset, std::span<const std::span<const std::byte>> buffers) = 0;

  // A put out of buffers that stay as they are while `keep` lives: it may return at once, and drops `keep`
  // when the bytes are with the caller, which has them before it sees the reply. If they do not get there,
  // neither does the reply.
  virtual Task<Status> Lend(uint64_t memory_offset, std::span<const std::span<const std::byte>> buffers,
                            [[maybe_unused]] std::shared_ptr<void> keep) {
    return Put(memory_offset, buffers);
  }

  // Caller's memory -> local buffers.
  virtual Task<Status> Get(uint64_t memory_offset, std::span<const std::span<std::byte>> buffers) = 0;

  virtual Task<Status> Reply(std::string body) = 0;
};

// Started as a task of its own for each call; replies before it ends.
using CallHandler = absl::AnyInvocable<Task<void>(std::shared_ptr<IncomingCall>)>;

class Listener {
 public:
  // Stops listening, starts no handler any more and ends all connections: what running handlers ask of their
  // calls fails from now on. Does not wait for those handlers, which need the executor to come to their end.
  virtual ~Listener() = default;
  virtual std::string address() const = 0;  // with the real port where 0 was asked for
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Registers memory of the caller's, which must outlive the region.
  virtual StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size) = 0;

  // Registers memory that a peer on the same machine may look at, which spares copies on some transports. The
  // region keeps it.
  virtual StatusOr<std::shared_ptr<MemoryRegion>> RegisterShared(std::shared_ptr<SharedMemory> memory);

  // Registers a device's memory, which calls may name for puts. It must outlive the region. ENOTSUP: this
  // transport reaches none.
  virtual StatusOr<std::shared_ptr<MemoryRegion>> RegisterDevice(std::shared_ptr<MemoryDevice> device,
                                                                 std::byte* data, size_t size);

  // Address forms: "host:port", "unix:/path", "inproc:name". Does not connect yet.
  virtual StatusOr<std::shared_ptr<Peer>> Connect(const std::string& address) = 0;

  virtual StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address, CallHandler handler) = 0;
};

}  // namespace nacre
