// A BlockStore in memory for tests and the simulation: operations take time on a Clock, un-flushed writes may
// be lost when the power fails, a write that a crash interrupts is done in part, block by block. All choices
// come from the Random given. A flush that fails is as a kernel's: what was to be flushed is not written
// later either, though it is read until the process ends, and is gone then.
//
// Data outlives crashes: a "restarted server" opens the same store again. Thread-safe.
#pragma once

#include <absl/container/btree_map.h>
#include <absl/container/btree_set.h>
#include <absl/container/flat_hash_map.h>
#include <absl/functional/any_invocable.h>

#include <array>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "common/clock.h"
#include "common/random.h"
#include "server/object/block_store.h"

namespace nacre {

struct MemBlockStoreOptions {
  Clock* clock = nullptr;    // null: nothing takes time
  Random* random = nullptr;  // for delays; with a clock only
  Duration min_delay = std::chrono::microseconds(50);
  Duration max_delay = std::chrono::microseconds(500);
  uint64_t slow_one_in = 0;  // an operation takes up to max_slow instead; 0: none does
  Duration max_slow = std::chrono::milliseconds(20);
  uint64_t available_blocks = ~uint64_t{0};  // that the "disk below" gives to Preallocate
};

class MemBlockStore : public BlockStore {
 public:
  using Options = MemBlockStoreOptions;
  enum class Operation { kRead, kWrite, kFlush };
  // Asked before each operation; an error becomes its result.
  using FaultHook = absl::AnyInvocable<Status(Operation, uint64_t block, uint64_t count)>;

  explicit MemBlockStore(uint64_t block_count, Options options = {});

  uint64_t block_count() const override { return block_count_; }
  Task<Status> Read(uint64_t block, std::span<const std::span<std::byte>> buffers) override;
  Task<Status> Write(uint64_t block, std::span<const std::span<const std::byte>> buffers) override;
  Task<Status> Flush() override;
  Task<Status> Preallocate(uint64_t block, uint64_t count) override;
  uint64_t available_blocks() const override;
  bool shares_disk() const override { return true; }
  Task<Status> Discard(uint64_t block, uint64_t count) override;

  // The process ends: of each write under way a random part of the blocks arrives. Its caller gets ESHUTDOWN.
  // Blocks that a flush has failed to write are as they were before.
  void CrashProcess(Random& random);
  // The machine loses power: as above, and each block written since the last Flush has its content of then or
  // of any write since.
  void LosePower(Random& random);

  void SetFaultHook(FaultHook hook);
  void SetNoDelay();
  void FlipBit(uint64_t block, size_t byte);  // bit rot; survives everything
  // Whether the block has this checksum, whatever a loss of power would leave of it.
  bool SurelyHas(uint64_t block, uint32_t crc) const;

 private:
  using Content = std::array<std::byte, kBlockSize>;
  using ContentPtr = std::shared_ptr<const Content>;  // null: zeros
  struct Version {
    uint64_t sequence;
    ContentPtr content;
  };
  // The newest version is what a read sees; the first is what was there at the last flush.
  struct Block {
    std::vector<Version> versions;
  };
  struct Pending {
    uint64_t block;
    std::vector<ContentPtr> contents;
  };

  Task<Status> Begin(Operation operation, uint64_t block, uint64_t count);
  uint64_t AvailableLocked() const;
  void Apply(uint64_t block, ContentPtr content);
  ContentPtr Newest(uint64_t block) const;

  const uint64_t block_count_;
  Options options_;
  mutable std::mutex mutex_;
  absl::flat_hash_map<uint64_t, Block> blocks_;
  absl::btree_set<uint64_t> unflushed_;  // blocks of several versions
  absl::btree_set<uint64_t> unwritten_;  // of these: a flush has failed since they were written
  std::list<Pending> pending_;
  uint64_t sequence_ = 0;
  uint64_t incarnation_ = 0;
  absl::btree_map<uint64_t, uint64_t> preallocated_;  // first block and count of each run that was asked for
  FaultHook fault_hook_;
};

}  // namespace nacre
