// A device that is open, its protection domain, and what is registered with it. A Domain closes when the last
// thing that was made with it is gone, or earlier if something of it cannot be destroyed. Thread-safe.
#pragma once

#include <absl/functional/any_invocable.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "common/metrics.h"
#include "common/status.h"
#include "transport/dma_buf.h"
#include "transport/verbs/ibverbs_library.h"
#include "transport/verbs/port.h"

namespace nacre::verbs {

class Domain {
 public:
  // UNAVAILABLE: the device is gone or refuses.
  static StatusOr<std::shared_ptr<Domain>> Open(const Ibverbs& ibverbs, const std::string& device);
  ~Domain();
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  const Ibverbs& ibverbs() const { return ibverbs_; }
  const std::string& device() const { return device_; }  // its name
  ibv_context* context() const { return context_->get(); }
  ibv_pd* pd() const { return pd_; }
  const ibv_device_attr& limits() const { return limits_; }
  // It has memory windows of type 2B, so that nobody reaches a region but through one.
  bool windows() const { return windows_; }

  // How much memory is registered now.
  const std::shared_ptr<Counter>& registrations() const { return registrations_; }

  // From now on nothing of the caller's is registered any more, so that the device can go.
  void Retire() { retired_.store(true); }
  bool retired() const { return retired_.load(); }

  // The device has refused to destroy something that it reads or writes memory for, and may go on doing so
  // until it is closed: the kernel then takes everything from it at once. Until then nothing is taken back
  // singly, since memory that is no longer registered would be somebody else's.
  // False: it was stranded before.
  bool Strand() { return !stranded_.exchange(true); }
  bool stranded() const { return stranded_.load(); }
  // Calls the function, with nothing held, when a stranded device has been closed: then nobody touches any
  // memory that it was told of.
  void AfterClose(absl::AnyInvocable<void()> function);
  // Closes a stranded device, while there still are things that were made with it. Nothing of it is polled,
  // posted to or waited for any more. May take as long as the kernel waits for a device that does not answer.
  // False: it was closed before.
  bool Close();

  // Keeps the device open while the caller makes or destroys something with it. Not to be held when a rail
  // fails. False: it has been, and with it everything that was made.
  std::shared_lock<std::shared_mutex> Use() const;

 private:
  Domain(const Ibverbs& ibverbs, std::string device, std::unique_ptr<DeviceContext> context, ibv_pd* pd)
      : ibverbs_(ibverbs), device_(std::move(device)), context_(std::move(context)), pd_(pd) {}

  const Ibverbs& ibverbs_;
  const std::string device_;
  mutable std::shared_mutex life_;  // guards context_
  std::unique_ptr<DeviceContext> context_;
  ibv_pd* const pd_;
  ibv_device_attr limits_{};
  bool windows_ = false;
  std::atomic<bool> retired_ = false, stranded_ = false;
  std::mutex mutex_;
  bool closed_ = false;
  std::vector<absl::AnyInvocable<void()>> after_close_;
  const std::shared_ptr<Counter> registrations_ = std::make_shared<Counter>();
};

// Memory registered with a domain while this object lives; the memory must outlive it.
class Registration {
 public:
  // `access`: ibv_access_flags. ENOTSUP: the device or the kernel refuses; it says what to raise if memory
  // may not be locked.
  static StatusOr<std::unique_ptr<Registration>> Make(std::shared_ptr<Domain> domain, std::byte* data,
                                                      size_t size, int access);
  // Of another device's memory, under the addresses that it has there; it stays registered when the dma-buf
  // is closed. ENOTSUP: the RDMA device or its driver cannot.
  static StatusOr<std::unique_ptr<Registration>> MakeDmaBuf(std::shared_ptr<Domain> domain,
                                                            const DmaBuf& exported, int access);
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  // Stay what they were when the domain has been closed, by whoever is late; no work request can be posted.
  uint32_t local_key() const { return local_key_; }
  uint32_t remote_key() const { return remote_key_; }
  ibv_mr* region() const { return mr_; }

 private:
  Registration(std::shared_ptr<Domain> domain, ibv_mr* mr);

  const std::shared_ptr<Domain> domain_;
  ibv_mr* const mr_;
  const uint32_t local_key_, remote_key_;
};

}  // namespace nacre::verbs
