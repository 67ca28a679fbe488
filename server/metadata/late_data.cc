#include "server/metadata/late_data.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "server/metadata/change_guard.h"

namespace nacre::mds {

StatusOr<proto::Lease> GrantLateData(Mds& mds, SessionId session, const Fid& fid) {
  ASSIGN_OR_RETURN(InodePtr inode, mds.tables->GetInode(fid));
  if (!S_ISREG(inode->mode)) {
    return ErrnoError(EINVAL, absl::StrFormat("%s is no regular file: mode %o", fid.ToString(), inode->mode));
  }
  const Fid directory = CoveringDirectory(*inode);
  if (mds.leases.HoldsWrite(session, directory) || mds.leases.MayHoldBack(session, fid))
    return mds.leases.GrantLate(session, fid).ToProto();
  return ErrnoError(ESTALE, absl::StrFormat("session %d holds WRITE neither of %s nor of its directory, %s",
                                            session, fid.ToString(), directory.ToString()));
}

bool WaitsForOst(Mds& mds, const LeaseGrant& grant) {
  auto inode = mds.tables->GetInode(grant.resource);
  if (!inode.ok() || !S_ISREG((*inode)->mode)) return false;
  auto down = [&mds](OstIndex ost) { return mds.osts.IsDown(ost); };
  return std::ranges::any_of((*inode)->layout.components, [&](const LayoutComponent& component) {
    return std::ranges::any_of(component.groups, down);
  });
}

}  // namespace nacre::mds
