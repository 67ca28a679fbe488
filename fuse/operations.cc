#include "fuse/request.h"

namespace nacre::fuse {
namespace {

// Which of the kernel's offers are taken, and why: docs/decisions/0010-fuse-capabilities.md.
void Init(void*, fuse_conn_info* connection) {
  connection->max_write = 1 << 20;
  connection->max_read = 1 << 20;
  connection->want |=
      connection->capable &
      (FUSE_CAP_ASYNC_READ | FUSE_CAP_POSIX_LOCKS | FUSE_CAP_FLOCK_LOCKS | FUSE_CAP_ATOMIC_O_TRUNC |
       FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_ASYNC_DIO | FUSE_CAP_PARALLEL_DIROPS |
       FUSE_CAP_CACHE_SYMLINKS | FUSE_CAP_EXPLICIT_INVAL_DATA | FUSE_CAP_EXPORT_SUPPORT);
  connection->want &=
      ~static_cast<unsigned>(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE |
                             FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_WRITEBACK_CACHE | FUSE_CAP_HANDLE_KILLPRIV);
  connection->time_gran = 1;
}

void InitSession(void* userdata, fuse_conn_info* connection) {
  Init(userdata, connection);
  const MountOptions& options = static_cast<Session*>(userdata)->options();
  connection->max_readahead = options.read_ahead_bytes;
  connection->max_background = options.max_background;
  connection->congestion_threshold = options.max_background / 4 * 3;
}

}  // namespace

const fuse_lowlevel_ops& Operations() {
  static const fuse_lowlevel_ops kOperations = [] {
    fuse_lowlevel_ops ops{};
    ops.init = InitSession;
    AddNamespace(&ops);
    AddAttributes(&ops);
    AddDirectories(&ops);
    AddFiles(&ops);
    AddIo(&ops);
    AddLocks(&ops);
    AddXattrs(&ops);
    return ops;
  }();
  return kOperations;
}

}  // namespace nacre::fuse
