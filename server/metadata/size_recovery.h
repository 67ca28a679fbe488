// Finding files that reach further in their objects than the MDT knows, after a writer was lost whose open
// files nobody knows (it held the filesystem lease, or went away together with the MDS). All objects of all
// OSTs are listed, in the background, a page at a time; the wish is recorded, so that a restart takes it up
// again. Thread-safe.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// Records the wish and starts a scan.
Status RequestSizeScan(MdsPtr mds);

// At the start: a scan that was wished for and not finished.
Status ResumeSizeScan(MdsPtr mds);

}  // namespace nacre::mds
