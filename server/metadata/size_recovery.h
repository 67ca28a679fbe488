// Finding files that reach further in their objects than the MDT knows, after a writer was lost whose open
// files nobody knows (it held the filesystem lease, or went away together with the MDS). All objects of all
// OSTs are listed, in the background, a page at a time; the wish is recorded, so that a restart takes it up
// again. Until it is through, a file is looked at when somebody asks for it: nobody goes on from a size
// behind which bytes are hidden, which would show when the file grows. Thread-safe.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// Records the wish and starts a scan.
Task<Status> RequestSizeScan(MdsPtr mds);

// Before the request is carried out: the file that it opens, looks at or resizes has the size of its objects.
// Does nothing when no scan is running. The request must outlive the task.
Task<void> RecoverNamed(MdsPtr mds, const proto::MetadataRequest& request);

// At the start: a scan that was wished for and not finished.
Status ResumeSizeScan(MdsPtr mds);

}  // namespace nacre::mds
