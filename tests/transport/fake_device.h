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

  // Copies wait from now on until Resume.
  void Hold();
  void Resume();
  int copies_waiting() const { return waiting_; }
  void FailCopies(Status status) { failure_ = std::move(status); }
  int pins() const { return pins_; }

  std::string name() const override { return "fake:0"; }
  Task<Status> CopyIn(std::vector<iovec> to, std::vector<iovec> from) override;
  Task<Status> CopyOut(std::vector<iovec> to, std::vector<iovec> from) override;
  Task<Status> Zero(std::vector<iovec> pieces) override;
  Task<StatusOr<std::vector<uint32_t>>> Crc32c(std::vector<iovec> pieces) override;
  Task<StatusOr<StagingBuffer>> Stage(size_t size) override;
  Task<StatusOr<std::shared_ptr<void>>> Pin(std::span<const std::byte> mapped) override;

 private:
  Task<void> Turn();  // waits for it
  std::vector<iovec> Seen(std::vector<iovec> pieces) const;

  const size_t size_;
  std::byte* data_ = nullptr;
  std::byte* alias_ = nullptr;
  Status failure_;
  std::atomic<int> waiting_ = 0;
  std::atomic<int> pins_ = 0;
  std::mutex mutex_;
  bool held_ = false;
  std::vector<OneShot<Unit>> waiters_;
};

}  // namespace nacre
