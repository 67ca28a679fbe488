#include "gpu/device_state.h"

#include <algorithm>
#include <cerrno>

namespace nacre::gpu {

StatusOr<std::shared_ptr<DeviceState>> DeviceState::Make(std::shared_ptr<const CudaLibrary> cuda,
                                                         std::shared_ptr<HostPins> pins,
                                                         const DeviceInfo& info, const Options& options) {
  std::shared_ptr<DeviceState> state(new DeviceState);
  ASSIGN_OR_RETURN(state->context_, Context::Retain(std::move(cuda), info.ordinal));
  if (options.kernels)
    state->kernels_ = Kernels::Load(state->context_);
  else
    state->kernels_ = ErrnoError(EOPNOTSUPP, "kernels are switched off");
  std::shared_ptr<const Kernels> kernels = state->kernels_.ok() ? *state->kernels_ : nullptr;
  state->staging_ = std::make_shared<Staging>(state->context_, pins->ranges(), options.staging_bytes);
  state->flags_ = std::make_shared<StreamFlagPool>(state->context_);
  ASSIGN_OR_RETURN(state->engine_, CopyEngine::Start(state->context_, kernels, pins->ranges(), state->waits_,
                                                     info.numa_node));
  return state;
}

StatusOr<std::span<std::byte>> DeviceState::TrialMemory(size_t size) {
  std::lock_guard lock(trial_mutex_);
  if (trial_ == nullptr) {
    UseContext use(*context_);
    RETURN_IF_ERROR(use.status());
    CudaAddress address = 0;
    const size_t whole = std::max<size_t>(size, 2 << 20);  // begins with a page: nothing else is in it
    RETURN_IF_ERROR(context_->cuda().Check(context_->cuda()->MemAlloc(&address, whole), "cuMemAlloc"));
    auto free = [context = context_](void* memory) {
      if (!context->Usable()) return;
      UseContext use(*context);
      if (use.status().ok()) context->cuda()->MemFree(reinterpret_cast<CudaAddress>(memory));
    };
    trial_ = std::shared_ptr<void>(reinterpret_cast<void*>(address), free);
  }
  return std::span(static_cast<std::byte*>(trial_.get()), size);
}

}  // namespace nacre::gpu
