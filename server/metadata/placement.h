// On which OSTs a file's objects come to lie, where that is not said by a template. Thread-safe.
//
// A layout is instantiated when its file is made, and used when the file gets objects. An OST that it names
// may be drained or have been removed by then; it gets others in its place. A request that does this, or
// chooses OSTs at all, keeps the UsableOsts that it chose from until its commit has returned
// (OstRegistry::MayYetPlaceOn).
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// Whether every OST that it names takes objects.
bool IsPlaceable(const Mds& mds, const Layout& layout);

// Components and stripes as in `like`, on OSTs with as many members, chosen anew; its generation. ENODEV:
// there are no such OSTs.
StatusOr<Layout> PlaceAnew(Mds& mds, const cluster::UsableOsts& osts, const Layout& like,
                           uint64_t object_sequence);

}  // namespace nacre::mds
