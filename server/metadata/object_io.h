// What the MDS does to objects: cut, measure, write, destroy, over the OSTs' stubs. Calls wait for an OST
// that is away as long as the MDS runs (UNAVAILABLE when it stops). Thread-safe.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

struct ObjectSizes {
  uint64_t blocks = 0;  // of all objects, units of 512 bytes
  uint64_t end = 0;     // where the file would end by its objects
};

// Every object of the layout, at once.
Task<StatusOr<ObjectSizes>> MeasureObjects(MdsPtr mds, Layout layout);

// Cuts the objects so that nothing lies behind `size`; returns what is left.
Task<StatusOr<ObjectSizes>> CutObjects(MdsPtr mds, Layout layout, uint64_t size);

// The file's first bytes, all within stripe 0. Returns the blocks that they take.
Task<StatusOr<uint64_t>> WriteFirstBytes(MdsPtr mds, Fid fid, Layout layout, std::string data);

// Destroys these objects of one OST and makes that durable there.
Task<Status> DestroyObjects(MdsPtr mds, OstIndex ost, std::vector<ObjectId> objects);

}  // namespace nacre::mds
