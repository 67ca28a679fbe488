// Moves a file from its objects to others while it is in use (docs/decisions/0068-migration.md): a change of
// two commits with the work of OSTs between them, as move_out.h.
//
//   intended    a record says which new objects are about to be written (new_objects.h).
//   copied      they have the bytes of the old ones, on stable storage.
//   committed   one commit gives the file the new layout, with a higher generation, if the old objects are as
//               they were when the copying began and nobody has given the file another layout meanwhile. Else
//               the new objects are withdrawn, and it begins anew.
//   left        a record that the same commit makes (Table::kMoved) says that the old objects are the file's
//               no more. It becomes one of the destroy queue when no client reads by them any more
//               (left_objects.h).
//
// A write that is under way while this commits has gone to the old objects; it is acknowledged only when the
// MDS has been told of it (UpdateSize), which refuses it by the layout's generation, and then it is written
// anew. A writer that may have been answered before the MDS was told has a lease, which is taken back before.
//
// The first attempt copies without holding anything. The second keeps the file's directory without leases
// meanwhile, and the third also makes everybody wait who tells the MDS of a write, for some seconds at most;
// if that does not suffice, the file is left where it is.
//
// A restart withdraws a migration that had not committed. One that had is finished. Thread-safe.
#pragma once

#include "server/metadata/object_copy.h"

namespace nacre::mds {

struct MigrationWish {
  LayoutTemplate layout;        // empty: components and stripes as the file has them
  std::vector<OstIndex> osts;   // where its objects may lie; empty: on any that takes new files
  std::optional<OstIndex> off;  // only if it has objects there
  // Only if its objects are of this sequence: else it has been moved, or emptied, since it was looked at.
  std::optional<uint64_t> from;
  // With `from`, and instead of the three above: the OST of each stripe, by the stripes' numbers.
  std::vector<OstIndex> stripes;
  // False: nobody waits while it is copied. A file that is written meanwhile stays where it is.
  bool holds_writers = true;
};

// OK: the file has its new layout, or is no more. EINVAL: it is no regular file, or the wish cannot be met;
// EBUSY: it is written all the time; CANCELLED: given up; UNAVAILABLE: an OST or a client's lease keeps it
// up; EIO, ENOSPC and others: of an OST.
Task<Status> Migrate(MdsPtr mds, Fid fid, MigrationWish wish, std::shared_ptr<CopyProgress> progress);

}  // namespace nacre::mds
