#include "gpu/device_state.h"

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
  ASSIGN_OR_RETURN(state->engine_,
                   CopyEngine::Start(state->context_, kernels, pins->ranges(), info.numa_node));
  return state;
}

}  // namespace nacre::gpu
