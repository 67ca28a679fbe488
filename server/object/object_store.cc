#include "server/object/object_store.h"

#include <algorithm>
#include <cerrno>

#include "common/log.h"
#include "common/metrics.h"
#include "server/kv/kv_pages.h"
#include "server/kv/losses.h"

namespace nacre::ost {
namespace {

// A chunk has 64 blocks; of those that are read at random few are in the pool. So the chunks take 1.4 % of
// what the pool takes at most.
constexpr uint64_t kCachedBlocksForEachChunk = 16;

std::string MakeUuid(Random* random) {
  uint64_t a = random->Next(), b = random->Next();
  return absl::StrFormat("%08x-%04x-%04x-%04x-%012x", a >> 32, a >> 16 & 0xffff, a & 0xffff, b >> 48,
                         b & 0xffffffffffffu);
}

}  // namespace

ObjectStore::ObjectStore(OstDevices devices, std::shared_ptr<BufferPool> pool, uint32_t slot,
                         StoreOptions options)
    : devices_(std::move(devices)),
      pool_(std::move(pool)),
      slot_(slot),
      options_(options),
      space_(devices_.blocks, absl::StrCat("OST ", devices_.index, " (", devices_.directory, ")")),
      objects_(devices_.store, options.cached_objects),
      chunks_(devices_.store, pool_->bytes() / kBlockSize / kCachedBlocksForEachChunk),
      journal_(devices_.store, devices_.blocks, &space_, &chunks_,
               [this](const BlockRun& run) { pool_->Drop(slot_, run); }) {
  space_.SetReclaim([this] { return journal_.Reclaim(); });
}

Task<StatusOr<std::unique_ptr<ObjectStore>>> ObjectStore::Open(OstDevices devices,
                                                               std::shared_ptr<BufferPool> pool,
                                                               uint32_t slot, Random* random,
                                                               StoreOptions options) {
  std::unique_ptr<ObjectStore> store(new ObjectStore(std::move(devices), std::move(pool), slot, options));
  CO_RETURN_IF_ERROR(co_await store->LoadSuperblock(random));
  std::string losses_key(kLossesKey);
  CO_ASSIGN_OR_RETURN(const bool lost, MayHaveLost(store->devices_.store, losses_key, options.boot));
  StatusOr<Journal::Recovered> recovered = co_await store->journal_.Recover(lost);
  if (!recovered.ok()) {
    co_return Status(recovered.status().code(), absl::StrCat("recovery of the OST in ", store->directory(),
                                                             ": ", recovered.status().message()));
  }
  if (recovered->rolled_back > 0) {
    LogWarning("OST %d (%s): %d changes whose data had not reached the disk were taken back",
               store->devices_.index, store->directory(), recovered->rolled_back);
  }
  CO_ASSIGN_OR_RETURN(const uint64_t losses,
                      co_await CountLosses(store->devices_.store, losses_key, options.boot));
  store->losses_.store(losses);
  CO_RETURN_IF_ERROR(store->ScanExtents());
  CO_RETURN_IF_ERROR(co_await store->space_.DiscardUnbacked());
  co_return store;
}

Task<Status> ObjectStore::LoadSuperblock(Random* random) {
  StatusOr<std::string> value = devices_.store->Get(kSuperblockKey);
  if (value.ok()) {
    StatusOr<Superblock> parsed = ParseSuperblock(*value);
    if (!parsed.ok()) {
      co_return Status(parsed.status().code(),
                       absl::StrCat(devices_.directory, ": ", parsed.status().message()));
    }
    superblock_ = *parsed;
    if (superblock_.index == devices_.index) {
      if (superblock_.version == kFormatVersion) co_return OkStatus();
      superblock_.version = kFormatVersion;  // what it has is as it was; answers come to it
      KvBatch batch;
      batch.UseReserve();
      batch.Put(std::string(kSuperblockKey), Encode(superblock_));
      co_return co_await devices_.store->Commit(std::move(batch));
    }
    co_return absl::FailedPreconditionError(absl::StrCat(devices_.directory, " holds OST ", superblock_.index,
                                                         ", not OST ", devices_.index,
                                                         ": correct the index in the configuration"));
  }
  if (!absl::IsNotFound(value.status())) co_return value.status();
  CO_ASSIGN_OR_RETURN(std::vector<KvEntry> others, devices_.store->Scan("", "", 1));
  if (!others.empty()) {
    co_return absl::DataLossError(absl::StrCat(devices_.directory,
                                               ": the database has records but no OST superblock; "
                                               "it is damaged or belongs to something else"));
  }
  superblock_.index = devices_.index;
  superblock_.uuid = MakeUuid(random);
  KvBatch batch;
  batch.UseReserve();
  batch.Put(std::string(kSuperblockKey), Encode(superblock_));
  LogInfo("OST %d: formatted %s as %s", devices_.index, devices_.directory, superblock_.uuid);
  co_return co_await devices_.store->Commit(std::move(batch));
}

Task<Status> ObjectStore::JoinCluster(std::string cluster_uuid) {
  if (superblock_.cluster_uuid == cluster_uuid) co_return OkStatus();
  if (!superblock_.cluster_uuid.empty()) {
    co_return ErrnoError(EINVAL,
                         absl::StrCat(devices_.directory, " belongs to cluster ", superblock_.cluster_uuid,
                                      ", the MGS is that of ", cluster_uuid));
  }
  superblock_.cluster_uuid = cluster_uuid;
  KvBatch batch;
  batch.UseReserve();
  batch.Put(std::string(kSuperblockKey), Encode(superblock_));
  co_return co_await devices_.store->Commit(std::move(batch));
}

Status ObjectStore::ScanExtents() {
  RETURN_IF_ERROR(
      ForEachEntry(*devices_.store, "E", [this](const KvEntry& entry) { return MarkChunkUsed(entry); }));
  space_.allocator().FinishScan();
  for (KvPages<KvStore> pages(*devices_.store, "O"); pages.more();) {
    ASSIGN_OR_RETURN(std::vector<KvEntry> objects, pages.Next());
    object_count_ += objects.size();
  }
  return OkStatus();
}

Status ObjectStore::MarkChunkUsed(const KvEntry& entry) {
  ASSIGN_OR_RETURN(ExtentPlace place, ParseExtentKey(entry.key));
  Chunk chunk;
  RETURN_IF_ERROR(ParseChunk(entry.value, &chunk));
  for (uint32_t i = 0; i < kChunkBlocks; ++i) {
    if (!chunk.is_mapped(i) || space_.allocator().MarkUsed(chunk.physical[i])) continue;
    if (chunk.physical[i] >= devices_.blocks->block_count()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "object ", place.object.ToString(), " of ", devices_.directory, " uses block ", chunk.physical[i],
          ", the OST has only ", devices_.blocks->block_count(), ": raise its size limit"));
    }
    std::string text = absl::StrCat("block ", chunk.physical[i], " belongs to several objects, one is ",
                                    place.object.ToString(), ": stop the OST and run `nacre doctor ",
                                    devices_.directory, "`");
    if (problems_.Add(text)) LogError("OST %d: %s", devices_.index, text);
  }
  return OkStatus();
}

Status ObjectStore::CheckRange(uint64_t offset, uint64_t length) const {
  constexpr uint64_t kLimit = kMaxObjectBlocks * kBlockSize;
  if (offset <= kLimit && length <= kLimit - offset) return OkStatus();
  return ErrnoError(EFBIG,
                    absl::StrCat("range of ", length, " bytes at ", offset, ": an object ends at ", kLimit));
}

StatusOr<std::optional<ObjectRecord>> ObjectStore::Stat(ObjectId id) {
  ASSIGN_OR_RETURN(std::shared_ptr<ObjectState> object, objects_.Acquire(id));
  return object->Record();
}

StatusOr<std::vector<ObjectStore::Listed>> ObjectStore::List(std::optional<ObjectId> after, size_t limit) {
  std::string from = after ? ObjectKey(*after) + '\0' : "O";
  ASSIGN_OR_RETURN(std::vector<KvEntry> entries, devices_.store->Scan(from, PrefixEnd("O"), limit));
  std::vector<Listed> listed;
  listed.reserve(entries.size());
  for (const KvEntry& entry : entries) {
    ASSIGN_OR_RETURN(ObjectId id, ParseObjectKey(entry.key));
    ASSIGN_OR_RETURN(ObjectRecord record, ParseObjectRecord(entry.value));
    listed.push_back({id, record});
  }
  return listed;
}

Task<Status> ObjectStore::TakeLosses(uint64_t losses) {
  if (losses == this->losses()) co_return OkStatus();
  std::string key(kLossesKey);
  CO_RETURN_IF_ERROR(co_await SetLosses(devices_.store, key, losses));
  losses_.store(losses);
  co_return OkStatus();
}

Task<Status> ObjectStore::Sync() {
  if (options_.plant_early_sync) co_return OkStatus();
  co_return co_await journal_.Sync();
}

Task<Status> ObjectStore::Maintain() {
  Status status = co_await journal_.Sync();
  if (status.ok()) status = co_await FlushRewritten();
  if (!status.ok()) co_return status;
  co_return co_await space_.Trim();
}

Task<Status> ObjectStore::SuspectLoss() {
  std::string losses_key(kLossesKey);
  co_return co_await nacre::SuspectLoss(devices_.store, losses_key);
}

Task<Status> ObjectStore::EndClean() {
  std::string losses_key(kLossesKey);
  co_return co_await nacre::EndClean(devices_.store, losses_key);
}

Task<Status> ObjectStore::LimitWaiting() {
  if (journal_.waiting_records() < options_.max_waiting_records) co_return OkStatus();
  co_return co_await journal_.Sync();
}

StoreSpace ObjectStore::GetSpace() const {
  StoreSpace out;
  uint64_t waiting = journal_.waiting_blocks();
  uint64_t free = space_.free_blocks() + waiting;
  uint64_t taken = space_.promised() + space_.reserve();
  out.total_bytes = devices_.blocks->block_count() * kBlockSize;
  out.free_bytes = free * kBlockSize;
  out.available_bytes = (free > taken ? free - taken : 0) * kBlockSize;
  out.objects = object_count_.load();
  return out;
}

Status ObjectStore::BadBlock(ObjectState* object, uint64_t block, uint64_t physical, std::string_view why) {
  static Counter& errors = GetCounter("ost.bad_blocks");
  errors.Add();
  std::optional<ObjectRecord> record = object->Record();
  std::string text = absl::StrCat("OST ", devices_.index, ": file ", record ? record->parent.ToString() : "?",
                                  " object ", object->id.ToString(), " block ", block, " (device block ",
                                  physical, "): ", AbslView(why));
  LogError("%s", text);
  problems_.Add(text, record ? record->parent : Fid{});
  return ErrnoError(EIO, text);
}

}  // namespace nacre::ost
