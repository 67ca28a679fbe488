#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/ops/ops.h"

namespace nacre::mds {
namespace {

constexpr uint32_t kMaxEntries = 4096;  // in one reply
constexpr uint32_t kDefaultEntries = 1024;

}  // namespace

Task<Reply> Readdir(const Op& op, const proto::Readdir& request) {
  Mds& mds = *op.mds;
  CO_ASSIGN_OR_RETURN(InodePtr directory, GetDirectory(mds, FromProto(request.fid())));
  uint32_t limit = std::min(request.limit() == 0 ? kDefaultEntries : request.limit(), kMaxEntries);
  CO_ASSIGN_OR_RETURN(auto entries, mds.tables->ListEntries(directory->fid, request.cookie(), limit));
  proto::MetadataReply reply;
  proto::ReaddirReply* out = reply.mutable_readdir();
  out->set_end(entries.size() < limit);
  for (Entry& entry : entries) {
    proto::DirEntry* e = out->add_entries();
    e->set_name(std::move(entry.name));
    *e->mutable_fid() = nacre::ToProto(entry.fid);
    e->set_type(entry.type);
    e->set_cookie(entry.cookie);
    if (!request.plus()) continue;
    auto inode = mds.tables->GetInode(entry.fid);
    if (inode.ok())
      *e->mutable_attr() = ToProto(**inode);
    else if (absl::IsNotFound(inode.status()))
      out->mutable_entries()->RemoveLast();  // unlinked meanwhile
    else
      co_return inode.status();
  }
  co_return reply;
}

}  // namespace nacre::mds
