// Hostile MDT records: each parser accepts or refuses, and what it accepts it writes back to the same
// meaning.
#include <cstdlib>
#include <string_view>

#include "server/cluster/ost_record.h"
#include "server/metadata/records.h"

namespace nacre::mds {
namespace {

template <typename Parse, typename Encode>
void RoundTrip(std::string_view data, Parse parse, Encode encode) {
  auto first = parse(data);
  if (!first.ok()) return;
  auto second = parse(encode(*first));
  if (!second.ok() || !(*second == *first)) std::abort();
}

void Try(std::string_view data) {
  const Fid fid{1, 2, 3};
  RoundTrip(
      data, [&](std::string_view in) { return ParseInode(fid, in); }, EncodeInode);
  RoundTrip(data, ParseBucket, EncodeBucket);
  RoundTrip(data, ParseSession, EncodeSession);
  RoundTrip(data, ParseReply, EncodeReply);
  RoundTrip(data, ParseDestroy, EncodeDestroy);
  RoundTrip(data, ParseDestroyAt, EncodeDestroyAt);
  RoundTrip(data, ParseTruncate, EncodeTruncate);
  RoundTrip(data, ParseNewObjects, EncodeNewObjects);
  RoundTrip(data, ParseMoved, EncodeMoved);
  RoundTrip(data, ParseNumber, EncodeNumber);
  RoundTrip(data, ParseSuperblock, EncodeSuperblock);
  auto ost = cluster::ParseOst(data);
  if (ost.ok() && cluster::EncodeOst(*ost) != data) std::abort();
}

}  // namespace
}  // namespace nacre::mds

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  nacre::mds::Try({reinterpret_cast<const char*>(data), size});
  return 0;
}
