// Changes of objects by the MDS (cut, write, destroy) over the OSTs' stubs. Thread-safe.
//
// UNAVAILABLE when the MDS stops. How long a call waits for an OST that does not answer is said at each: only
// those may wait without a bound whose caller is a queue for that OST alone.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// One object of a file, and the OST that has it.
struct Stripe {
  OstIndex ost = 0;
  ObjectId object;
};
std::vector<Stripe> StripesOf(const Layout& layout);

// A call of an object, with its memory.
struct ObjectCall {
  proto::ObjectRequest request;
  CallMemory kind = CallMemory::kNone;
  std::vector<MemorySpan> memory;
};
// UNAVAILABLE if the OST has not answered within `patience`. A mutation that is abandoned is not carried out
// any more once a later one has reached the OST: that goes by the same stub, whose low water says so.
Task<StatusOr<proto::ObjectReply>> CallWithin(MdsPtr mds, ObjectCall call, Duration patience);

// Cuts the object so that nothing lies behind `size`, durably, and returns the blocks that are left of it.
// May be repeated. UNAVAILABLE if the OST has not answered for 30 s; it may have been done or not then.
Task<StatusOr<uint64_t>> CutObject(MdsPtr mds, Stripe stripe, uint64_t size);

// Bytes of the file, as many as the piece has, durably. Returns how many more blocks the object has then. May
// be repeated; UNAVAILABLE as above.
Task<StatusOr<uint64_t>> WritePiece(MdsPtr mds, Fid fid, Layout layout, LayoutPiece piece, std::string data);
// The file's first bytes, all within stripe 0: the same.
Task<StatusOr<uint64_t>> WriteFirstBytes(MdsPtr mds, Fid fid, Layout layout, std::string data);

// Destroys these objects of one OST and makes that durable there. Waits for an OST that is away: what is
// called again would be carried out beside the first call, which may take long.
Task<Status> DestroyObjects(MdsPtr mds, OstIndex ost, std::vector<ObjectId> objects);

}  // namespace nacre::mds
