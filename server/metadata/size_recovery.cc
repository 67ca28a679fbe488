#include "server/metadata/size_recovery.h"

#include <sys/stat.h>

#include "common/log.h"
#include "rpc/convert.h"
#include "server/metadata/eviction.h"

namespace nacre::mds {
namespace {

constexpr uint32_t kObjectsAtOnce = 1024;

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
  request.mutable_list()->set_limit(kObjectsAtOnce);
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
  co_return co_await mds->tables->CommitBatch(std::move(batch));
}

// None: no file that is there already, or none whose size matters.
Fid NamedFile(Mds& mds, const proto::MetadataRequest& request) {
  auto entry = [&mds](const proto::Fid& parent, const std::string& name) {
    auto found = mds.tables->FindEntry(FromProto(parent), name);
    return found.ok() ? found->fid : Fid{};
  };
  switch (request.op_case()) {
    case proto::MetadataRequest::kLookup:
      return entry(request.lookup().parent(), request.lookup().name());
    case proto::MetadataRequest::kCreate:
      return entry(request.create().parent(), request.create().name());
    case proto::MetadataRequest::kOpen:
      return FromProto(request.open().fid());
    case proto::MetadataRequest::kGetattr:
      return FromProto(request.getattr().fid());
    case proto::MetadataRequest::kSetattr:
      return FromProto(request.setattr().fid());
    case proto::MetadataRequest::kUpdateSize:
      return FromProto(request.update_size().fid());
    case proto::MetadataRequest::kAppend:
      return FromProto(request.append().fid());
    default:
      return {};
  }
}

// Until it is through: files are looked at one by one as long as it is not.
Task<void> RunScan(MdsPtr mds, uint64_t wish) {
  constexpr Duration kPause = std::chrono::seconds(5);
  Status status = co_await ScanAll(mds, wish);
  while (!status.ok() && !mds->closed) {
    LogError("looking for files that reach too far failed, trying again: %s", std::string(status.message()));
    co_await mds->env.clock.Sleep(kPause);
    status = co_await ScanAll(mds, wish);
  }
  mds->size_scan.End();
}

void StartScan(const MdsPtr& mds, uint64_t wish) {
  mds->size_scan.Begin();
  Spawn(mds->env.executor, RunScan(mds, wish));
}

}  // namespace

Task<void> RecoverNamed(MdsPtr mds, const proto::MetadataRequest& request) {
  if (!mds->size_scan.running()) co_return;
  const Fid fid = NamedFile(*mds, request);
  if (!fid || mds->size_scan.Knows(fid)) co_return;
  Status status = co_await RecoverSize(mds, fid);
  if (status.ok()) mds->size_scan.Know(fid);
  if (!status.ok() && !mds->closed)
    LogWarning("the size of %s could not be recovered: %s", fid.ToString(), std::string(status.message()));
}

Task<Status> RequestSizeScan(MdsPtr mds) {
  CO_ASSIGN_OR_RETURN(uint64_t before, WishedScan(*mds));
  KvBatch batch;
  batch.Put(TableKey(Table::kSizeRecovery), EncodeNumber(before + 1));
  CO_RETURN_IF_ERROR(co_await mds->tables->CommitBatch(std::move(batch)));
  StartScan(mds, before + 1);
  co_return OkStatus();
}

Status ResumeSizeScan(MdsPtr mds) {
  ASSIGN_OR_RETURN(uint64_t wish, WishedScan(*mds));
  if (wish != 0) StartScan(mds, wish);
  return OkStatus();
}

}  // namespace nacre::mds
