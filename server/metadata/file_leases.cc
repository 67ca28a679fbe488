#include "server/metadata/file_leases.h"

#include <sys/stat.h>

#include "rpc/mutation.h"

namespace nacre::mds {
namespace {

bool MayLease(Mds& mds, SessionId session, const Fid& file) {
  auto inode = mds.tables->GetInode(file);
  if (!inode.ok() || !S_ISREG((*inode)->mode) || (*inode)->nlink != 1) return false;
  if (mds.leases.GoodWrite(session, CoveringDirectory(**inode)) != 0) return false;
  return mds.opens.IsSoleWriter(session, file) && mds.leases.HasAmpleRoom(session);
}

}  // namespace

std::optional<LeaseGrant> GrantFileForChanging(Mds& mds, const SessionPtr& session,
                                               const proto::MetadataRequest& request,
                                               const proto::MetadataReply& reply, const ChangeGuard& guard) {
  const bool failed = reply.status().error() != 0;
  if (!request.want_file_lease() || failed || !mds.options.leases || mds.Recovering()) return std::nullopt;
  const Fid file = ChangedInode(request);
  if (!file || !guard.Has(file) || !MayLease(mds, session->id, file)) return std::nullopt;
  auto grant = mds.leases.TryGrantFileWrite(session->id, file, mds.env.clock.Now());
  if (!grant || !session->ended()) return grant;
  mds.leases.DropSession(session->id);  // its end has dropped the others already
  return std::nullopt;
}

}  // namespace nacre::mds
