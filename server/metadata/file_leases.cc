#include "server/metadata/file_leases.h"

#include <sys/stat.h>

#include "rpc/mutation.h"

namespace nacre::mds {
namespace {

// Of the file, by its session, which has changed it.
std::optional<LeaseGrant> TryGrant(Mds& mds, SessionId session, const Fid& file, bool may_share) {
  auto inode = mds.tables->GetInode(file);
  if (!inode.ok() || !S_ISREG((*inode)->mode) || (*inode)->nlink != 1) return std::nullopt;
  if (mds.leases.GoodWrite(session, CoveringDirectory(**inode)) != 0) return std::nullopt;
  if (!mds.leases.HasAmpleRoom(session)) return std::nullopt;
  if (mds.opens.IsSoleWriter(session, file))
    return mds.leases.TryGrantFileWrite(session, file, mds.env.clock.Now());
  return may_share ? mds.leases.TryGrantShared(session, file) : std::nullopt;
}

}  // namespace

std::optional<LeaseGrant> GrantFileForChanging(Mds& mds, const SessionPtr& session,
                                               const proto::MetadataRequest& request,
                                               const proto::MetadataReply& reply, const ChangeGuard& guard) {
  const bool failed = reply.status().error() != 0;
  if (!request.want_file_lease() || failed || !mds.options.leases || mds.Recovering()) return std::nullopt;
  const Fid file = ChangedInode(request);
  if (!file || !guard.Has(file)) return std::nullopt;
  const bool may_share = request.may_share() && request.update_size().beside();
  auto grant = TryGrant(mds, session->id, file, may_share);
  if (!grant || !session->ended()) return grant;
  mds.leases.DropSession(session->id);  // its end has dropped the others already
  return std::nullopt;
}

}  // namespace nacre::mds
