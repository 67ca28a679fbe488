// A device that is open, its protection domain, and what is registered with it. A Domain closes when the last
// thing that was made with it is gone. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

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
  ~Domain() { ibverbs_.dealloc_pd(pd_); }
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  const Ibverbs& ibverbs() const { return ibverbs_; }
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

 private:
  Domain(const Ibverbs& ibverbs, std::unique_ptr<DeviceContext> context, ibv_pd* pd)
      : ibverbs_(ibverbs), context_(std::move(context)), pd_(pd) {}

  const Ibverbs& ibverbs_;
  const std::unique_ptr<DeviceContext> context_;
  ibv_pd* const pd_;
  ibv_device_attr limits_{};
  bool windows_ = false;
  std::atomic<bool> retired_ = false;
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

  uint32_t local_key() const { return mr_->lkey; }
  uint32_t remote_key() const { return mr_->rkey; }
  ibv_mr* region() const { return mr_; }

 private:
  Registration(std::shared_ptr<Domain> domain, ibv_mr* mr);

  const std::shared_ptr<Domain> domain_;
  ibv_mr* const mr_;
};

}  // namespace nacre::verbs
