// The bytes of a write in its caller's memory, from `base` on.
#pragma once

#include "server/object/object_store.h"
#include "transport/transport.h"

namespace nacre::ost {

class CallSource : public DataSource {
 public:
  CallSource(IncomingCall* call, uint64_t base) : call_(call), base_(base) {}

  Task<Status> Fetch(uint64_t offset, std::span<const std::span<std::byte>> buffers) override {
    co_return co_await call_->Get(base_ + offset, buffers);
  }

 private:
  IncomingCall* const call_;
  const uint64_t base_;
};

}  // namespace nacre::ost
