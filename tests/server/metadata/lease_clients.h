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

// The client has written so many bytes into its file, and the MDS has not heard of it. Returns the OST that
// has them, and knows.
inline OstIndex WriteUntold(Harness& harness, TestClient& writer, const Fid& file, size_t bytes) {
  proto::MetadataRequest out;
  *out.mutable_move_out()->mutable_fid() = ToProto(file);
  const proto::Layout layout = writer.Call(std::move(out)).moved_out().layout();
  const OstIndex ost = layout.components(0).ost_group(0);
  const ObjectId object{layout.object_sequence(), 0};
  harness.osts.objects[ost][object] = {std::string(bytes, 'x'), file};
  harness.osts.grown[ost].insert({writer.session, object});
  return ost;
}

}  // namespace nacre::mds
