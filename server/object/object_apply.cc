// Operations of an ObjectStore for the chain (server/object/chain.h): applying a change that another member
// has made, and reading blocks and mappings to hand them on.
#include <algorithm>
#include <cerrno>

#include "common/crc32c.h"
#include "server/object/object_store.h"

namespace nacre::ost {
namespace {

constexpr uint64_t kTakenAtOnce = 256;                         // Admission::kLeastPart
constexpr uint64_t kLargeHole = 256 * uint64_t{kChunkBlocks};  // is unmapped by commits of its own

}  // namespace

// One Apply of an ObjectStore. The object's lock is held by the caller. Written blocks are numbered from 0 in
// the order of the edits.
class ChangeApplier {
 public:
  ChangeApplier(ObjectStore* store, ObjectState* object, const ApplyArgs* args, DataSource* source,
                BufferPool* pool, Allotment* memory)
      : store_(store), object_(object), args_(args), source_(source), pool_(pool), memory_(memory) {}

  Task<Status> Run() {
    if (args_->destroy) co_return co_await Destroy();
    CO_RETURN_IF_ERROR(co_await CutLargeHoles());
    CO_RETURN_IF_ERROR(Plan());
    Space::Request request;
    request.blocks = written_.size() + unwritten_;
    request.replaces = true;  // the others have room for it; what it replaces becomes free
    if (request.blocks > 0) {
      auto runs = co_await store_->space_.Allocate(request);
      if (!runs.ok()) co_return runs.status();
      allocated_ = *std::move(runs);
    }
    for (const BlockRun& run : allocated_) {
      for (uint64_t i = 0; i < run.count; ++i) physical_.push_back(run.first + i);
    }
    // The read cache may still have what these blocks held for another object.
    for (const BlockRun& run : allocated_) store_->pool_->Drop(store_->slot_, run);
    Status status = co_await Fetch();
    if (status.ok()) status = co_await Commit();
    if (!status.ok()) store_->space_.allocator().Free(allocated_);
    co_return status;
  }

 private:
  struct Written {
    uint64_t block = 0;   // of the object
    uint64_t source = 0;  // number
  };

  Task<Status> Destroy() {
    ObjectChange last = Change();
    last.destroy = true;
    if (!object_->Record()) {
      if (args_->applied.before.value_or(ObjectVersion{}) == ObjectVersion{}) co_return OkStatus();
      auto made = co_await store_->journal_.Commit(object_, last);
      co_return made.status();
    }
    StatusOr<int64_t> delta = co_await store_->Unmap(object_, 0, kMaxObjectBlocks, std::move(last));
    if (delta.ok()) --store_->object_count_;
    co_return delta.status();
  }

  ObjectChange Change() const {
    ObjectChange change;
    change.parent = args_->parent;
    change.by = args_->by;
    change.ends_request = args_->ends_request;
    change.applied = &args_->applied;
    return change;
  }

  // Only of an object that is being filled: elsewhere no commit is so large.
  Task<Status> CutLargeHoles() {
    for (const ApplyArgs::Edit& edit : args_->edits) {
      if (edit.kind != ApplyArgs::Edit::kHole || edit.count < kLargeHole || !object_->Record()) continue;
      ObjectChange cut;
      cut.applied = &kIncomplete;
      cut.by = args_->by;
      auto delta = co_await store_->Unmap(object_, edit.first, edit.first + edit.count, std::move(cut));
      if (!delta.ok()) co_return delta.status();
    }
    co_return OkStatus();
  }

  // Leaves out what an object that is being filled has already.
  Status Plan() {
    uint64_t source = 0;
    ChunkWalk walk(&store_->chunks_, object_->id);
    for (const ApplyArgs::Edit& edit : args_->edits) {
      if (edit.kind == ApplyArgs::Edit::kUnwritten) unwritten_ += edit.count;
      if (edit.kind != ApplyArgs::Edit::kWritten) continue;
      for (uint64_t block = edit.first; block < edit.first + edit.count; ++block, ++source) {
        if (!args_->applied.before) {
          RETURN_IF_ERROR(walk.To(block));
          const auto i = static_cast<uint32_t>(block % kChunkBlocks);
          if (walk.chunk()->is_written(i) && walk.chunk()->crc[i] == args_->crc[source]) continue;
        }
        written_.push_back({block, source});
      }
    }
    return OkStatus();
  }

  Task<Status> Fetch() {
    for (size_t at = 0; at < written_.size(); at += kTakenAtOnce) {
      const size_t count = std::min<size_t>(kTakenAtOnce, written_.size() - at);
      Allotment::Share share = co_await memory_->Take(count);
      BufferPool::Pages pages = pool_->Take(std::move(share), count);
      CO_RETURN_IF_ERROR(co_await FetchInto(at, pages));
      std::span<const uint64_t> physical(physical_.data() + at, count);
      CO_RETURN_IF_ERROR(co_await store_->StoreBlocks(physical, &pages));
    }
    co_return OkStatus();
  }

  Task<Status> FetchInto(size_t at, const BufferPool::Pages& pages) {
    for (size_t i = 0; i < pages.size();) {
      const size_t begin = i;
      std::vector<std::span<std::byte>> buffers;
      do {
        AppendBuffer(&buffers, pages.data(i), kBlockSize);
        ++i;
      } while (i < pages.size() && written_[at + i].source == written_[at + begin].source + (i - begin));
      CO_RETURN_IF_ERROR(co_await source_->Fetch(written_[at + begin].source * kBlockSize, buffers));
    }
    for (size_t i = 0; i < pages.size(); ++i) {
      std::span<std::byte> page(pages.data(i), kBlockSize);
      const uint64_t source = written_[at + i].source;
      if (Crc32c(page) == args_->crc[source] || std::ranges::binary_search(args_->bad, source)) continue;
      CO_RETURN_IF_ERROR(co_await FetchOnceMore(written_[at + i], page));
    }
    co_return OkStatus();
  }

  // Of a block that was damaged on its way. To refuse it would cost this member its place in the chain.
  Task<Status> FetchOnceMore(Written written, std::span<std::byte> page) {
    std::vector<std::span<std::byte>> buffers(1, page);
    CO_RETURN_IF_ERROR(co_await source_->Fetch(written.source * kBlockSize, buffers));
    const uint32_t crc = Crc32c(page), expected = args_->crc[written.source];
    if (crc == expected) co_return OkStatus();
    co_return ErrnoError(
        EIO, absl::StrFormat("object %s block %d arrived damaged, twice: checksum is %08x, should "
                             "be %08x",
                             object_->id.ToString(), written.block, crc, expected));
  }

  Task<Status> Commit() {
    ObjectChange change = Change();
    std::vector<uint32_t> crc;
    for (const Written& written : written_) crc.push_back(args_->crc[written.source]);
    for (size_t n = 0; n < written_.size();) {
      const size_t begin = n;
      while (++n < written_.size() && written_[n].block == written_[n - 1].block + 1) {
      }
      change.edits.push_back({written_[begin].block, n - begin, &physical_[begin], &crc[begin]});
    }
    size_t next = written_.size();
    for (const ApplyArgs::Edit& edit : args_->edits) {
      if (edit.kind == ApplyArgs::Edit::kUnwritten) {
        change.edits.push_back({edit.first, edit.count, &physical_[next]});
        next += edit.count;
      } else if (edit.kind == ApplyArgs::Edit::kHole && edit.count < kLargeHole) {
        change.edits.push_back({edit.first, edit.count});
      }
    }
    std::ranges::sort(change.edits, {}, &ExtentEdit::first);
    auto committed = co_await store_->journal_.Commit(object_, change);
    if (committed.ok() && committed->made) ++store_->object_count_;
    co_return committed.status();
  }

  ObjectStore* const store_;
  ObjectState* const object_;
  const ApplyArgs* const args_;
  DataSource* const source_;
  BufferPool* const pool_;
  Allotment* const memory_;
  std::vector<Written> written_;
  uint64_t unwritten_ = 0;
  std::vector<BlockRun> allocated_;
  std::vector<uint64_t> physical_;  // of the written ones, then of the unwritten ones
};

Task<Status> ObjectStore::Apply(ApplyArgs args, DataSource* source, BufferPool* pool, Allotment* memory) {
  CO_RETURN_IF_ERROR(co_await LimitWaiting());
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectState> object, objects_.Acquire(args.object));
  RangeLock::Ranges locked;
  for (const ApplyArgs::Edit& edit : args.edits) locked.push_back({edit.first, edit.first + edit.count});
  if (args.destroy || locked.empty()) locked.assign(1, {0, RangeLock::kEnd});
  RangeLock::Guard guard = co_await object->locks.Lock(std::move(locked), true);
  ChangeApplier applier(this, object.get(), &args, source, pool, memory);
  Status status = co_await applier.Run();
  if (absl::IsAlreadyExists(status)) co_return OkStatus();
  co_return status;
}

// --- giving away ---

Task<StatusOr<ObjectStore::Gathered>> ObjectStore::Gather(const std::vector<ExtentEdit>& edits,
                                                          std::shared_ptr<BufferPool> pool, BadBlocks bad) {
  std::vector<uint64_t> physical;
  std::vector<uint32_t> crc;
  for (const ExtentEdit& edit : edits) {
    if (edit.physical == nullptr || edit.crc == nullptr) continue;
    physical.insert(physical.end(), edit.physical, edit.physical + edit.count);
    crc.insert(crc.end(), edit.crc, edit.crc + edit.count);
  }
  Gathered gathered;
  if (physical.empty()) co_return gathered;
  Allotment memory = co_await pool->admission().Admit(0, slot_, physical.size());
  if (!memory.whole()) {
    co_return ErrnoError(EMSGSIZE, absl::StrCat("a change of ", physical.size(),
                                                " blocks is too large for an OST with several members"));
  }
  for (size_t at = 0; at < physical.size(); at += kTakenAtOnce) {
    const size_t count = std::min<size_t>(kTakenAtOnce, physical.size() - at);
    Allotment::Share share = co_await memory.Take(count);
    BufferPool::Pages pages = pool->Take(std::move(share), count);
    std::span<const uint64_t> blocks(physical.data() + at, count);
    const Status loaded = co_await LoadBlocks(blocks, pages);
    if (!loaded.ok() && bad == BadBlocks::kRefused) co_return loaded;
    if (!loaded.ok()) CO_RETURN_IF_ERROR(co_await LoadReadable(blocks, pages));
    for (size_t i = 0; i < count; ++i) {
      const bool matches = Crc32c({pages.data(i), kBlockSize}) == crc[at + i];
      if (!matches && bad == BadBlocks::kTaken) gathered.bad.push_back(static_cast<uint32_t>(at + i));
      if (!matches && bad == BadBlocks::kRefused) {
        co_return ErrnoError(EIO, absl::StrCat("device block ", physical[at + i], " of ", directory(),
                                               " does not match its checksum"));
      }
      MemorySpan span = pool->SpanOf(pages.index(i));
      MemorySpan* last = gathered.memory.empty() ? nullptr : &gathered.memory.back();
      if (last != nullptr && last->offset + last->length == span.offset) {
        last->length += span.length;
      } else {
        gathered.memory.push_back(std::move(span));
      }
    }
    gathered.pages.push_back(std::move(pages));
  }
  co_return gathered;
}

// From the cache or the device, unverified.
Task<Status> ObjectStore::LoadBlocks(std::span<const uint64_t> physical, const BufferPool::Pages& pages) {
  for (size_t i = 0; i < physical.size();) {
    if (pool_->Copy(BufferPool::CacheKey(slot_, physical[i]), pages.data(i))) {
      ++i;
      continue;
    }
    const size_t begin = i;
    std::vector<std::span<std::byte>> buffers;
    do {
      AppendBuffer(&buffers, pages.data(i), kBlockSize);
      ++i;
    } while (i < physical.size() && physical[i] == physical[begin] + (i - begin));
    CO_RETURN_IF_ERROR(co_await devices_.blocks->Read(physical[begin], buffers));
  }
  co_return OkStatus();
}

// As LoadBlocks, with zeros where the device fails.
Task<Status> ObjectStore::LoadReadable(std::span<const uint64_t> physical, const BufferPool::Pages& pages) {
  for (size_t i = 0; i < physical.size(); ++i) {
    std::vector<std::span<std::byte>> buffers(1, std::span<std::byte>(pages.data(i), kBlockSize));
    const Status read = co_await devices_.blocks->Read(physical[i], buffers);
    if (ToErrno(read) == ESHUTDOWN) co_return read;
    if (!read.ok()) std::ranges::fill(buffers[0], std::byte{0});
  }
  co_return OkStatus();
}

StatusOr<ObjectStore::Mapping> ObjectStore::MapOf(const ObjectId& id, uint64_t first, uint64_t count) {
  Mapping map;
  map.physical.resize(count);
  map.crc.resize(count);
  Chunk chunk;
  for (uint64_t n = 0; n < count; ++n) {
    const uint64_t block = first + n;
    const auto i = static_cast<uint32_t>(block % kChunkBlocks);
    if (n == 0 || i == 0) RETURN_IF_ERROR(LoadChunk(devices_.store, id, block / kChunkBlocks, &chunk));
    ExtentEdit edit{block, 1};
    if (chunk.is_mapped(i)) {
      map.physical[n] = chunk.physical[i];
      edit.physical = &map.physical[n];
    }
    if (chunk.is_written(i)) {
      map.crc[n] = chunk.crc[i];
      edit.crc = &map.crc[n];
    }
    ExtentEdit* last = map.edits.empty() ? nullptr : &map.edits.back();
    const bool joins = last != nullptr && (last->physical == nullptr) == (edit.physical == nullptr) &&
                       (last->crc == nullptr) == (edit.crc == nullptr);
    if (joins) {
      ++last->count;
    } else {
      map.edits.push_back(edit);
    }
  }
  return map;
}

StatusOr<std::optional<uint64_t>> ObjectStore::NextChunk(const ObjectId& id, uint64_t block) {
  const std::string end = ExtentKey(id, kMaxObjectBlocks / kChunkBlocks);
  ASSIGN_OR_RETURN(std::vector<KvEntry> found,
                   devices_.store->Scan(ExtentKey(id, block / kChunkBlocks), end, 1));
  if (found.empty()) return std::optional<uint64_t>();
  ASSIGN_OR_RETURN(ExtentPlace place, ParseExtentKey(found.front().key));
  return std::optional<uint64_t>(place.chunk);
}

}  // namespace nacre::ost
