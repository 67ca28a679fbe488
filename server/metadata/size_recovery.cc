#include "server/metadata/size_recovery.h"

#include <sys/stat.h>

#include "common/log.h"
#include "rpc/convert.h"
#include "server/metadata/eviction.h"

namespace nacre::mds {
namespace {

constexpr uint32_t kPage = 1024;

// Which wish the scan serves: a newer one starts it again.
StatusOr<uint64_t> WishedScan(Mds& mds) {
  auto value = mds.tables->Get(TableKey(Table::kSizeRecovery));
  if (absl::IsNotFound(value.status())) return 0;
  RETURN_IF_ERROR(value.status());
  return ParseNumber(*value);
}

bool ReachesTooFar(Mds& mds, const proto::ListedObject& listed) {
  auto inode = mds.tables->GetInode(FromProto(listed.parent()));
  if (!inode.ok() || !S_ISREG((*inode)->mode) || (*inode)->inline_data) return false;
  const Layout& layout = (*inode)->layout;
  if (layout.object_sequence != listed.object().sequence()) return false;
  return FileSizeFor(layout, listed.object().stripe(), listed.size()) > (*inode)->size;
}

Task<Status> ScanOst(MdsPtr mds, OstIndex ost) {
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectStub> stub, mds->osts.Stub(ost));
  proto::ObjectRequest request;
  request.set_ost(ost);
  request.mutable_list()->set_limit(kPage);
  for (bool end = false; !end && !mds->closed;) {
    std::vector<MemorySpan> none;
    CO_ASSIGN_OR_RETURN(proto::ObjectReply reply,
                        co_await stub->Call(request, CallMemory::kNone, std::move(none)));
    end = reply.list().end() || reply.list().objects().empty();
    for (const proto::ListedObject& listed : reply.list().objects()) {
      *request.mutable_list()->mutable_after() = listed.object();
      if (!ReachesTooFar(*mds, listed)) continue;
      CO_RETURN_IF_ERROR(co_await RecoverSize(mds, FromProto(listed.parent())));
    }
  }
  co_return OkStatus();
}

Task<Status> ScanAll(MdsPtr mds, uint64_t wish) {
  for (OstIndex ost : mds->osts.Known()) CO_RETURN_IF_ERROR(co_await ScanOst(mds, ost));
  CO_ASSIGN_OR_RETURN(uint64_t newest, WishedScan(*mds));
  if (newest != wish) co_return OkStatus();
  KvBatch batch;
  batch.Erase(TableKey(Table::kSizeRecovery));
  co_return mds->tables->CommitBatch(std::move(batch));
}

Task<void> RunScan(MdsPtr mds, uint64_t wish) {
  Status status = co_await ScanAll(mds, wish);
  if (!status.ok() && !mds->closed)
    LogError("looking for files that reach too far failed: %s", std::string(status.message()));
}

}  // namespace

Status RequestSizeScan(MdsPtr mds) {
  ASSIGN_OR_RETURN(uint64_t before, WishedScan(*mds));
  KvBatch batch;
  batch.Put(TableKey(Table::kSizeRecovery), EncodeNumber(before + 1));
  RETURN_IF_ERROR(mds->tables->CommitBatch(std::move(batch)));
  Spawn(mds->env.executor, RunScan(mds, before + 1));
  return OkStatus();
}

Status ResumeSizeScan(MdsPtr mds) {
  ASSIGN_OR_RETURN(uint64_t wish, WishedScan(*mds));
  if (wish != 0) Spawn(mds->env.executor, RunScan(mds, wish));
  return OkStatus();
}

}  // namespace nacre::mds
