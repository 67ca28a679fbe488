// A cache without a mount, for tests of parts of the client by themselves.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "client/data_cache.h"
#include "tests/client/harness.h"

namespace nacre::client {

class CacheFixture : public testing::Test {
 protected:
  CacheFixture() : process_(harness_.world.Start(200, "client")) {
    transport_ = sim::NewTransport(harness_.network, process_);
    auto cache = DataCache::Make(*transport_, 8 << 20, 4 << 20);
    EXPECT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }

  Harness harness_;
  sim::Process* process_;
  std::unique_ptr<Transport> transport_;
  std::shared_ptr<DataCache> cache_;
};

}  // namespace nacre::client
