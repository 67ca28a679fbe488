// An RDMA device made of nothing but this process: what the transport over verbs asks of libibverbs, for
// reliable queue pairs with a shared receive queue, memory regions and windows of type 2B. It carries out
// each work request as it is posted, checks keys, ranges and access rights as a device does, and moves both
// queue pairs to their error state where a device would. So the transport is tested on machines without a
// device, and under the sanitizers. It ends the process at what the transport must never do: take back memory
// that a window is still bound to, use what has been destroyed, run over a queue.
//
// Devices "fake0", "fake1", …, each with one Ethernet port: the first at ::ffff:127.0.0.1, the second at .2.
// Thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "transport/verbs/ibverbs_library.h"

namespace nacre::verbs {

// The devices are what LoadIbverbs finds while this object lives, of which there may be one at a time.
class FakeRdma {
 public:
  struct Traits {
    bool windows = true;
    bool binds = true;                // the windows that it has
    bool last_receive_events = true;  // not every driver has them
    bool loses_receives = false;      // each queue pair takes one along when it is destroyed
    int devices = 1;
    bool isolated = false;  // packets arrive on the device alone that they were sent from
    bool nodes = false;     // each device is near to a NUMA node of its own: 0, 1, …
    bool dma_bufs = true;   // the library knows of them
  };
  // Where the bytes are that another device has at an address; null if it is none of its own.
  using PeerMemory = std::function<std::byte*(const std::byte* address, size_t size)>;

  FakeRdma() : FakeRdma(Traits{}) {}
  explicit FakeRdma(Traits traits);
  ~FakeRdma();
  FakeRdma(const FakeRdma&) = delete;
  FakeRdma& operator=(const FakeRdma&) = delete;

  // The one that lives; null: none.
  static FakeRdma* Current();

  // Gone from the list of devices and from sysfs, though who has it open can go on; and back again.
  void Remove(int device = 0);
  void Restore(int device = 0);

  // It says so to all who have it open; all its queue pairs go to their error state.
  void BreakDown(int device);

  // Queue pairs that are to be joined to an address that nobody has wait, with the thread that asks for it,
  // until this is called (then they fail). How many wait now.
  void LetJoinsFail();
  int waiting_joins() const;

  // From now on this queue pair seems to have no receive for what is sent to it.
  void MakeDeaf(uint32_t queue_pair);
  void MakeAllDeaf(std::optional<int> device = std::nullopt);  // that there are now, of all devices or one

  // Sets the error of ibv_reg_dmabuf_mr from now on; 0: it works, for files whose position is where their
  // range begins (tests/transport/fake_device.h, tests/gpu/fake_cuda). Of one device, or all (-1).
  void RefuseDmaBufs(int error, int device = -1);
  // Sets the error of ibv_reg_mr from now on; 0: it works. For any memory, or memory that begins there.
  void RefuseMemory(int error, const void* address = nullptr);
  // As with nvidia-peermem: what the CPU cannot reach can be registered if this function knows it.
  void UsePeerMemory(PeerMemory peer_memory);

  // The device does not answer any more when it is told to stop or destroy a queue pair, or to free a window:
  // from now on they stay and work until their device is closed. 0: it answers again.
  void RefuseToDestroy(int error);
  void RefuseToFreeWindows(int error);
  int refusals() const;  // that there have been
  int left() const;      // queue pairs and windows that are there against the will of their makers

  // Posting a binding of more than so many bytes says this from now on; 0: as mlx5, 2 GiB are the most.
  void RefuseBindings(int error, uint64_t longest);
  // Registering what begins there takes until this is called again with null.
  void HoldRegistration(const void* address);
  bool holds() const;  // somebody waits for that

  int regions() const;      // that are registered
  int queue_pairs() const;  // that exist
  int queue_pairs(int device) const;
  uint64_t most_bytes_under_way() const;  // of RDMA reads and writes whose end nobody had heard of yet
  int opened() const;                     // how often a device has been opened
  int open_contexts() const;              // while there are any, a device cannot go
  int bound_windows() const;              // over all memory
  int receives() const;                   // that are posted and not taken, in all queues

  class State;

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace nacre::verbs
