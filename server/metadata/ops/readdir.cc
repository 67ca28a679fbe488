#include <dirent.h>

#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/directory_leases.h"
#include "server/metadata/ops/ops.h"

namespace nacre::mds {
namespace {

constexpr uint32_t kMaxEntries = 4096;  // in one reply
constexpr uint32_t kDefaultEntries = 1024;

// Adds an entry, with its attributes if they are wanted and known here: those of what another session holds
// WRITE of may not be. Entries that were unlinked meanwhile are left out.
Status AddEntry(const Op& op, Entry entry, bool plus, proto::ReaddirReply* out) {
  Mds& mds = *op.mds;
  proto::DirEntry* e = out->add_entries();
  e->set_name(std::move(entry.name));
  *e->mutable_fid() = nacre::ToProto(entry.fid);
  e->set_type(entry.type);
  e->set_cookie(entry.cookie);
  const bool untold = HasWriter(mds, op.session->id, entry.fid) && !mds.options.plant_listed;
  if (!plus || untold) return OkStatus();
  auto inode = mds.tables->GetInode(entry.fid);
  if (inode.ok())
    *e->mutable_attr() = ToProto(**inode);
  else if (absl::IsNotFound(inode.status()))
    out->mutable_entries()->RemoveLast();
  else
    return inode.status();
  return OkStatus();
}

}  // namespace

Task<Reply> Readdir(const Op& op, const proto::Readdir& request) {
  Mds& mds = *op.mds;
  CO_ASSIGN_OR_RETURN(InodePtr directory, GetDirectory(mds, FromProto(request.fid())));
  uint32_t limit = std::min(request.limit() == 0 ? kDefaultEntries : request.limit(), kMaxEntries);
  proto::MetadataReply reply;
  proto::ReaddirReply* out = reply.mutable_readdir();
  uint64_t cookie = request.cookie();
  do {  // a reply without entries would look like the end
    CO_ASSIGN_OR_RETURN(auto entries, mds.tables->ListEntries(directory->fid, cookie, limit));
    out->set_end(entries.size() < limit);
    for (Entry& entry : entries) {
      cookie = entry.cookie;
      CO_RETURN_IF_ERROR(AddEntry(op, std::move(entry), request.plus(), out));
    }
  } while (out->entries().empty() && !out->end());
  co_return reply;
}

}  // namespace nacre::mds
