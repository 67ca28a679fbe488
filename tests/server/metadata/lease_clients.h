// Several clients of one MDS that grants leases.
#pragma once

#include "tests/server/metadata/harness.h"

namespace nacre::mds {

inline MetadataOptions WithLeases() {
  MetadataOptions options;
  options.leases = true;
  return options;
}

inline void Release(TestClient& client, uint64_t id) {
  proto::MetadataRequest request;
  request.mutable_release_lease()->set_id(id);
  EXPECT_THAT(client.Call(std::move(request)), IsOk());
}

}  // namespace nacre::mds
