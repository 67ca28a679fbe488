// A device for the transports' tests: memory that no CPU access survives (PROT_NONE) with an alias for its
// copy engine, which does nothing until it is let. Thread-safe.
#pragma once

#include <cstddef>
#include <span>

#include "transport/memory_device.h"

namespace nacre {

class FakeDevice : public MemoryDevice {
 public:
  explicit FakeDevice(size_t size);
  ~FakeDevice() override;

  std::byte* data() const { return data_; }                       // the device's address
  std::span<std::byte> alias() const { return {alias_, size_}; }  // what the device sees there

  // Copies, or pins, wait from now on until Resume.
  void Hold();
  void HoldPins();
  void Resume();
  int copies_waiting() const { return waiting_; }
  void FailCopies(Status status) { failure_ = std::move(status); }
  int pins() const { return pins_; }                             // calls
  std::span<const std::byte> pinned() const { return pinned_; }  // what the last of them named
  void FailPins(Status status) { pin_failure_ = std::move(status); }
  void FailExports(Status status) { export_failure_ = std::move(status); }
  // Of memory that lies in these bytes.
  void FailExportsOf(std::span<const std::byte> memory) { not_exported_ = memory; }
  int exports() const { return exports_; }
  void SetPeerMemory(Status status) { peer_memory_ = std::move(status); }
  void SetRdmaBudget(uint64_t bytes) { rdma_budget_ = bytes; }
  // As if the memory had been freed and given out again.
  void ChangeBufferId() { ++buffer_id_; }
  int flushes() const { return flushes_; }
  void SetStagingBytes(uint64_t bytes) { staging_bytes_ = bytes; }
  size_t staging_in_use();  // slots
  void FailFlushes(Status status) { flush_failure_ = std::move(status); }

  std::string name() const override { return "fake:0"; }
  int numa_node() const override { return 3; }
  Task<Status> CopyIn(std::vector<iovec> to, std::vector<iovec> from) override;
  Task<Status> CopyOut(std::vector<iovec> to, std::vector<iovec> from) override;
  Task<Status> Zero(std::vector<iovec> pieces) override;
  Task<StatusOr<std::vector<uint32_t>>> Crc32c(std::vector<iovec> pieces) override;
  Task<StatusOr<StagingBuffer>> Stage(size_t size) override;
  Task<StatusOr<uint64_t>> ReserveStaging(size_t) override { co_return staging_bytes_; }
  Task<StatusOr<std::shared_ptr<void>>> Pin(std::span<const std::byte> mapped) override;
  // A file whose position is where the range begins.
  StatusOr<DmaBuf> ExportDmaBuf(std::span<const std::byte> memory) override;
  // Beside what data() shows.
  StatusOr<std::span<std::byte>> TrialMemory() override {
    return std::span(data_ + mapped_ - kTrialBytes, kTrialBytes);
  }
  Status PeerMemory() override { return peer_memory_; }
  StatusOr<uint64_t> BufferId(std::span<const std::byte>) override { return buffer_id_; }
  uint64_t RdmaBudget() override { return rdma_budget_; }
  Status FlushRemoteWrites() override;

 private:
  Task<void> Turn(bool FakeDevice::*held);  // waits for it
  std::vector<iovec> Seen(std::vector<iovec> pieces) const;

  const size_t size_, mapped_;
  std::span<const std::byte> not_exported_;
  std::atomic<int> exports_ = 0;
  std::byte* data_ = nullptr;
  std::byte* alias_ = nullptr;
  int fd_ = -1;
  Status failure_, export_failure_, flush_failure_, peer_memory_ = ErrnoError(ENOTSUP, "nothing is loaded");
  uint64_t rdma_budget_ = UINT64_MAX, staging_bytes_ = UINT64_MAX;
  std::atomic<uint64_t> buffer_id_ = 1;
  std::atomic<int> flushes_ = 0;
  std::atomic<int> waiting_ = 0;
  std::atomic<int> pins_ = 0;
  std::span<const std::byte> pinned_;
  Status pin_failure_;
  std::mutex engine_;  // copies are made one after another: a hostile server puts twice into one place
  std::mutex mutex_;
  std::vector<std::unique_ptr<std::byte[]>> slots_;
  std::vector<std::byte*> free_slots_;
  bool held_ = false, pins_held_ = false;
  std::vector<OneShot<Unit>> waiters_;
};

}  // namespace nacre
