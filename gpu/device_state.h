// The state of a Device once it is in use: context, kernels, copy engine, staging. Made and unmade in this
// order. Immutable but for its memory for trials; thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <span>

#include "gpu/context.h"
#include "gpu/copy_engine.h"
#include "gpu/device.h"
#include "gpu/host_pins.h"
#include "gpu/kernels.h"
#include "gpu/staging.h"
#include "gpu/stream_flags.h"
#include "gpu/stream_waits.h"

namespace nacre::gpu {

class DeviceState {
 public:
  static StatusOr<std::shared_ptr<DeviceState>> Make(std::shared_ptr<const CudaLibrary> cuda,
                                                     std::shared_ptr<HostPins> pins, const DeviceInfo& info,
                                                     const Options& options);

  const std::shared_ptr<Context>& context() const { return context_; }
  const StatusOr<std::shared_ptr<const Kernels>>& kernels() const { return kernels_; }
  CopyEngine& engine() { return *engine_; }
  Staging& staging() { return *staging_; }
  StreamFlagPool& flags() { return *flags_; }
  StreamWaits& waits() { return *waits_; }

  // As MemoryDevice::TrialMemory. Allocated once and kept: to free it would wait for whatever the GPU does.
  StatusOr<std::span<std::byte>> TrialMemory(size_t size);

  // Fails in a forked child.
  Status Check() const { return context_->cuda().CheckProcess(); }

 private:
  DeviceState() : kernels_(absl::UnknownError("not loaded")) {}

  std::shared_ptr<Context> context_;
  StatusOr<std::shared_ptr<const Kernels>> kernels_;  // or why there are none
  std::shared_ptr<Staging> staging_;
  std::shared_ptr<StreamFlagPool> flags_;
  std::shared_ptr<StreamWaits> waits_ = std::make_shared<StreamWaits>();
  std::unique_ptr<CopyEngine> engine_;

  std::mutex trial_mutex_;
  std::shared_ptr<void> trial_;
};

}  // namespace nacre::gpu
