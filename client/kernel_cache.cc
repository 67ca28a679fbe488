#include "client/kernel_cache.h"

namespace nacre::client {

void KernelCache::Set(Invalidation invalidation) {
  std::lock_guard lock(mutex_);
  invalidation_ = std::move(invalidation);
}

Task<void> KernelCache::Forget(Fid fid, uint64_t begin, uint64_t end) {
  Invalidation invalidation;
  {
    std::lock_guard lock(mutex_);
    invalidation = invalidation_;
  }
  if (invalidation.data_and_attributes) co_await invalidation.data_and_attributes(fid, begin, end);
}

Task<void> KernelCache::ForgetAll(std::vector<Fid> fids) {
  std::vector<Task<Unit>> files;
  for (const Fid& fid : fids) {
    files.push_back([](KernelCache* cache, Fid fid) -> Task<Unit> {
      co_await cache->Forget(fid, 0, UINT64_MAX);
      co_return Unit{};
    }(this, fid));
  }
  co_await WhenAll(std::move(files));
}

void KernelCache::ForgetAttributes(const Fid& fid) {
  std::function<void(Fid)> attributes;
  {
    std::lock_guard lock(mutex_);
    attributes = invalidation_.attributes;
  }
  if (attributes) attributes(fid);
}

}  // namespace nacre::client
