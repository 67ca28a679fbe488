// The parts of the fake device: the objects behind libibverbs' types and the device that carries out work
// requests between them. For fake_rdma.cc and fake_ibverbs.cc alone. The device's mutex guards the objects.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/transport/verbs/fake_rdma.h"

namespace nacre::verbs::fake {

inline void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fake RDMA device: %s\n", what);
  std::abort();
}

struct Context;
struct QueuePair;

constexpr uint32_t kWindowKey = 1u << 31;  // in the keys of windows
constexpr int kMaxCompletions = 1 << 16, kMaxReceives = 1 << 16, kMaxWindows = 1 << 16;

struct Device {
  ibv_device listed{};
  std::string path;  // of a directory as it has in sysfs
  bool removed = false;
  std::set<Context*> open;
};

struct Context : ibv_context {
  size_t number = 0;  // of its device
  ibv_device own{};
  std::deque<ibv_async_event> events;
};

struct Events : ibv_comp_channel {
  std::deque<ibv_cq*> ready;
};

struct Completions : ibv_cq {
  std::deque<ibv_wc> done;
  bool armed = false;
  int users = 0;
};

struct Receive {
  uint64_t id = 0;
  ibv_sge piece{};
};

struct Receives : ibv_srq {
  std::deque<Receive> posted;
  int users = 0;
};

struct Region : ibv_mr {
  unsigned access = 0;
  int windows = 0;                // bound to it
  uint64_t start = 0;             // as work requests address it
  std::byte* memory = nullptr;    // where its bytes are
  std::span<std::byte> mapped{};  // of a dma-buf

  std::byte* At(uint64_t address) const { return memory + (address - start); }
  bool Contains(uint64_t address, uint64_t size) const {
    return address >= start && size <= length - std::min<uint64_t>(length, address - start);
  }
};

struct Window : ibv_mw {
  uint32_t key = 0;          // as the device knows it
  Region* region = nullptr;  // null: not bound
  QueuePair* bound_by = nullptr;
  uint64_t address = 0, length = 0;
  unsigned access = 0;
  bool left = false;  // it was to be freed
};

struct Work {
  ibv_send_wr request{};
  std::vector<ibv_sge> pieces;
  std::string inlined;
  uint32_t window_key = 0;  // of the window to be bound, as the caller knows it
};

struct QueuePair : ibv_qp {
  unsigned access = 0;
  uint32_t peer = 0, room = 0;
  ibv_gid peer_gid{};
  uint32_t pieces = 0, inline_bytes = 0;
  std::deque<Work> work;  // that cannot be done yet: the other side has no receive
  bool left = false;      // it was to be destroyed
};

inline void Signal(int fd) {
  const uint64_t one = 1;
  Require(::write(fd, &one, sizeof one) == sizeof one, "an event cannot be told");
}

inline bool TakeSignal(int fd) {
  uint64_t value = 0;
  return ::read(fd, &value, sizeof value) == sizeof value;
}

inline int MakeEvents() {
  const int fd = ::eventfd(0, EFD_NONBLOCK | EFD_SEMAPHORE | EFD_CLOEXEC);
  Require(fd >= 0, "no eventfd");
  return fd;
}

inline ibv_gid GidOf(size_t device) {
  return {.raw = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, static_cast<uint8_t>(device + 1)}};
}

inline bool IsAt(const ibv_gid& gid, size_t device) {
  return std::memcmp(gid.raw, GidOf(device).raw, sizeof gid.raw) == 0;
}

inline size_t DeviceOf(const ibv_context* context) { return static_cast<const Context*>(context)->number; }

}  // namespace nacre::verbs::fake

namespace nacre::verbs {

// All devices. The functions of the table find them by Current().
class FakeRdma::State {
 public:
  using Region = fake::Region;
  using Window = fake::Window;
  using QueuePair = fake::QueuePair;
  using Context = fake::Context;
  using Work = fake::Work;
  using Receives = fake::Receives;

  explicit State(Traits traits);
  ~State();

  // Under the mutex.
  ibv_wc_status Carry(QueuePair* from, const Work& work);
  void Drain(QueuePair* pair);
  void DrainAll();
  void Fail(QueuePair* pair);
  static uint64_t BytesOf(const Work& work);  // of an RDMA read or write
  void Complete(QueuePair* pair, const Work& work, ibv_wc_status status);
  void Push(ibv_cq* queue, const ibv_wc& completion);
  void Tell(Context* context, ibv_event_type type, ibv_qp* pair);
  ibv_wc_status SendTo(QueuePair* to, const Work& work);
  ibv_wc_status Bind(QueuePair* pair, const Work& work);
  ibv_wc_status Invalidate(QueuePair* pair, uint32_t key);
  const Region* FindRemote(const QueuePair& at, uint32_t key, uint64_t address, uint64_t length,
                           unsigned access);
  bool LocalIsFine(const QueuePair& pair, const ibv_sge& piece, unsigned access);
  std::string Gather(const Work& work);
  void Unbind(Window* window);
  void Forget(QueuePair* pair);
  void CloseAllOf(const Context* context);  // as the kernel does with what its maker has left

  const Traits traits;
  std::string directory;  // of the devices' own
  mutable std::mutex mutex;
  std::vector<fake::Device> devices;
  int opened = 0;  // as FakeRdma::opened
  int destroy_error = 0, window_error = 0, refusals = 0;
  int binding_error = 0;  // as RefuseBindings
  uint64_t longest_binding = 0;
  int memory_error = 0;                        // as RefuseMemory
  const void* refused_memory = nullptr;        // null: all
  int dma_buf_error = 0, dma_buf_device = -1;  // as RefuseDmaBufs
  PeerMemory peer_memory;                      // null: none
  uint32_t next_number = 17, next_key = 1;
  std::map<uint32_t, QueuePair*> pairs;
  std::map<uint32_t, Region*> regions;
  std::map<uint32_t, Window*> windows;  // by key without its low byte
  std::set<Receives*> receives;
  std::set<fake::Completions*> completions;
  std::set<fake::Events*> channels;
  std::set<ibv_pd*> domains;
  std::set<uint32_t> deaf;
  uint64_t under_way = 0, most_under_way = 0;

  // Not under that mutex, which the others go on with.
  std::mutex join_mutex;
  std::condition_variable join_change;
  int waiting = 0;
  bool fail_joins = false;
  const void* held_memory = nullptr;  // as HoldRegistration
  bool holding = false;
};

namespace fake {

// Stays after the FakeRdma itself for what outlives it, as connections that are still ending do.
FakeRdma::State& Devices();

// The tables for LoadIbverbs to find; the old one is without dma-bufs.
extern const Ibverbs kTable, kOldTable;

}  // namespace fake
}  // namespace nacre::verbs
