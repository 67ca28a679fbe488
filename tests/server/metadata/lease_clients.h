// Several clients of one MDS that grants leases.
#pragma once

#include "tests/server/metadata/harness.h"

namespace nacre::mds {

inline MetadataOptions WithLeases() {
  MetadataOptions options;
  options.leases = true;
  return options;
}

// `answered`: how many requests the client says it has answered under the lease.
inline void Release(TestClient& client, uint64_t id, uint64_t answered = 0) {
  proto::MetadataRequest request;
  request.mutable_release_lease()->set_id(id);
  request.mutable_release_lease()->set_answered(answered);
  EXPECT_THAT(client.Call(std::move(request)), IsOk());
}

// A second client comes only when the first has given the filesystem's lease back.
inline TestClient Beside(Harness& harness, TestClient& first) {
  proto::MetadataRequest request;
  *request.mutable_acquire_lease()->mutable_resource() = ToProto(kFilesystemFid);
  request.mutable_acquire_lease()->set_mode(proto::LEASE_WRITE);
  Release(first, first.Call(std::move(request)).lease().lease().id());
  return TestClient(harness);
}

}  // namespace nacre::mds
