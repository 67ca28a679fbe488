#include "server/metadata/privileges.h"

#include "server/metadata/keys.h"

namespace nacre::mds {

Status TakeCapability(Tables& tables, Transaction* transaction, Inode* inode) {
  if (inode->xattrs == 0) return OkStatus();
  std::string key = XattrKey(inode->fid, kCapabilityXattr);
  StatusOr<std::string> value = tables.Get(key);
  if (absl::IsNotFound(value.status())) return OkStatus();
  RETURN_IF_ERROR(value.status());
  transaction->batch().Erase(std::move(key));
  --inode->xattrs;
  return OkStatus();
}

}  // namespace nacre::mds
