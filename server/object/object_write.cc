// Writing: source -> pages -> free blocks of the device, a piece of at most 1 MiB at a time, then one commit
// for all ranges of the write. Blocks that are scattered in the object lie side by side on the device.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/crc32c.h"
#include "common/log.h"
#include "common/metrics.h"
#include "server/object/object_store.h"

namespace nacre::ost {
namespace {

constexpr uint64_t kNoBlock = ~uint64_t{0};
constexpr size_t kPiecesInFlight = 4;
constexpr int kFetchAttempts = 3;  // of bytes that arrive damaged

uint64_t TotalLength(std::span<const ByteRange> ranges) {
  uint64_t length = 0;
  for (const ByteRange& range : ranges) length += range.length;
  return length;
}

}  // namespace

// One Write of an ObjectStore. The object's lock is held by the caller. Its blocks are numbered from 0 in the
// order of the ranges; its bytes from the begin of block 0.
class RangeWriter {
 public:
  RangeWriter(ObjectStore* store, ObjectState* object, const WriteArgs* args, DataSource* source,
              Allotment* memory)
      : store_(store),
        object_(object),
        args_(args),
        source_(source),
        memory_(memory),
        blocks_(BlocksOf(args->ranges)),
        count_(blocks_.size()),
        begin_(args->ranges.front().offset % kBlockSize),
        end_(begin_ + TotalLength(args->ranges)),
        physical_(count_, kNoBlock),
        crc_(count_) {}

  Task<StatusOr<int64_t>> Run() {
    Status status = co_await Place();
    if (!status.ok()) co_return status;
    if (store_->options_.plant_commit_before_data) co_return co_await CommitBeforeData();
    status = co_await Data();
    if (!status.ok()) co_return GiveUp(status);
    co_return co_await Commit();
  }

 private:
  // --- where the blocks go ---

  Task<Status> Place() {
    CO_RETURN_IF_ERROR(LookUp());
    Space::Request request;
    request.blocks = count_ - in_place_;
    request.goal = goal_;
    request.replaces = mapped_ == count_;
    request.grant = args_->grant;
    if (request.blocks == 0) co_return OkStatus();
    StatusOr<std::vector<BlockRun>> runs = co_await store_->space_.Allocate(request);
    if (!runs.ok()) co_return runs.status();
    allocated_ = *std::move(runs);
    size_t at = 0;
    for (const BlockRun& run : allocated_) {
      for (uint64_t i = 0; i < run.count; ++i) {
        while (physical_[at] != kNoBlock) ++at;
        physical_[at++] = run.first + i;
      }
    }
    co_return OkStatus();
  }

  static std::vector<uint64_t> BlocksOf(std::span<const ByteRange> ranges) {
    std::vector<uint64_t> blocks;
    for (const ByteRange& range : ranges) {
      for (uint64_t block = range.offset / kBlockSize; block * kBlockSize < range.end(); ++block)
        blocks.push_back(block);
    }
    return blocks;
  }

  // Finds out what the ranges map to now. Preallocated blocks are written in place: nothing of them is
  // visible before the commit.
  Status LookUp() {
    ChunkWalk walk(&store_->chunks_, object_->id);
    for (uint64_t n = 0; n < count_; ++n) {
      uint64_t block = blocks_[n];
      auto i = static_cast<uint32_t>(block % kChunkBlocks);
      RETURN_IF_ERROR(walk.To(block));
      const Chunk& chunk = *walk.chunk();
      if (n == 0) head_ = walk.chunk();
      if (n == 0 && i > 0 && chunk.is_mapped(i - 1)) goal_ = chunk.physical[i - 1] + 1;
      if (!chunk.is_mapped(i)) continue;
      ++mapped_;
      if (!chunk.is_unwritten(i)) continue;
      ++in_place_;
      physical_[n] = chunk.physical[i];
    }
    tail_ = walk.chunk();
    return OkStatus();
  }

  // --- the bytes ---

  Task<Status> Data() {
    if (count_ <= kPieceBlocks) {
      uint64_t count = count_;
      Status status = co_await LoadPiece(0, count);
      if (!status.ok()) co_return status;
      co_return co_await StorePiece(0, std::move(loaded_));
    }
    co_return co_await ManyPieces();
  }

  // The next piece comes over the network while those before go to the device.
  Task<Status> ManyPieces() {
    Executor executor = co_await CurrentExecutor();
    std::deque<OneShot<Status>> in_flight;
    Status result = OkStatus();
    for (uint64_t at = 0; at < count_ && result.ok(); at += kPieceBlocks) {
      if (in_flight.size() >= kPiecesInFlight) {
        result.Update(co_await in_flight.front().Wait());
        in_flight.pop_front();
      }
      uint64_t count = std::min(kPieceBlocks, count_ - at);
      Status loaded = co_await LoadPiece(at, count);
      result.Update(loaded);
      if (!result.ok()) break;
      OneShot<Status> done;
      in_flight.push_back(done);
      Spawn(executor, StorePiece(at, std::move(loaded_)),
            [done](Status status) { done.Set(std::move(status)); });
    }
    for (OneShot<Status>& done : in_flight) result.Update(co_await done.Wait());
    co_return result;
  }

  // Brings blocks [at, at + count) of the write into loaded_ and fills crc_ for them.
  Task<Status> LoadPiece(uint64_t at, uint64_t count) {
    loaded_ = BufferPool::Pages();
    Allotment::Share share = co_await memory_->Take(count);
    loaded_ = store_->pool_->Take(std::move(share), count);
    uint64_t start = at * kBlockSize;
    uint64_t from = std::max(start, begin_), to = std::min(start + count * kBlockSize, end_);
    bool cut_head = from > start, cut_tail = to < start + count * kBlockSize;
    if (cut_head) CO_RETURN_IF_ERROR(co_await FillOld(blocks_[at], head_.get(), loaded_.data(0)));
    if (cut_tail && !(cut_head && count == 1)) {
      CO_RETURN_IF_ERROR(co_await FillOld(blocks_[at + count - 1], tail_.get(), loaded_.data(count - 1)));
    }
    std::vector<std::span<std::byte>> buffers;
    for (uint64_t i = 0; i < count; ++i) {
      uint64_t block_start = start + i * kBlockSize;
      uint64_t begin = std::max(block_start, from), end = std::min(block_start + kBlockSize, to);
      AppendBuffer(&buffers, loaded_.data(i) + (begin - block_start), end - begin);
    }
    uint64_t source_offset = from - begin_;
    Status intact = ErrnoError(EIO, "nothing has arrived");
    for (int attempt = 0; attempt < kFetchAttempts && !intact.ok(); ++attempt) {
      Status fetched = co_await source_->Fetch(source_offset, buffers);
      if (!fetched.ok()) co_return fetched;
      intact = Verify(at, from, buffers);
    }
    if (!intact.ok()) co_return intact;
    if (cut_head) crc_[at] = Crc32c({loaded_.data(0), kBlockSize});
    if (cut_tail) crc_[at + count - 1] = Crc32c({loaded_.data(count - 1), kBlockSize});
    co_return OkStatus();
  }

  // The content that an incompletely written block has now.
  Task<Status> FillOld(uint64_t block, const Chunk* chunk, std::byte* page) {
    if (!chunk->is_written(static_cast<uint32_t>(block % kChunkBlocks))) {
      std::memset(page, 0, kBlockSize);
      co_return OkStatus();
    }
    co_return co_await store_->ReadBlock(object_, block, chunk, page);
  }

  Status Verify(uint64_t at, uint64_t from, const std::vector<std::span<std::byte>>& buffers) {
    uint64_t n = at;
    for (std::span<std::byte> buffer : buffers) {
      Crc32cBlocks(from, buffer, crc_.data() + n);
      n += CrcCount(from, buffer.size());
      from += buffer.size();
    }
    for (uint64_t i = at; i < n; ++i) {
      if (crc_[i] == args_->crc[i]) continue;
      static Counter& damaged = GetCounter("ost.damaged_arrivals");
      damaged.Add();
      std::string text =
          absl::StrFormat("object %s block %d arrived damaged: checksum is %08x, should be %08x",
                          object_->id.ToString(), blocks_[i], crc_[i], args_->crc[i]);
      LogError("%s", text);
      return ErrnoError(EIO, text);
    }
    return OkStatus();
  }

  Task<Status> StorePiece(uint64_t at, BufferPool::Pages pages) {
    std::span<const uint64_t> physical(physical_.data() + at, pages.size());
    Status status = co_await store_->StoreBlocks(physical, &pages);
    if (status.ok()) Publish(at, pages);
    co_return status;
  }

  void Publish(uint64_t at, const BufferPool::Pages& pages) {
    std::vector<uint64_t> keys(pages.size());
    std::vector<uint32_t> indexes(pages.size());
    for (size_t i = 0; i < pages.size(); ++i) {
      keys[i] = BufferPool::CacheKey(store_->slot_, physical_[at + i]);
      indexes[i] = pages.index(i);
    }
    store_->pool_->Publish(keys, indexes);
  }

  // --- the end ---

  Task<StatusOr<int64_t>> Commit() {
    ObjectChange change;
    for (uint64_t n = 0; n < count_;) {
      const uint64_t begin = n;
      while (++n < count_ && blocks_[n] == blocks_[n - 1] + 1) {
      }
      change.edits.push_back({blocks_[begin], n - begin, &physical_[begin], &crc_[begin]});
    }
    change.grow_to = args_->ranges.back().end();
    change.parent = args_->parent;
    change.by = args_->by;
    change.ends_request = args_->ends_request;
    StatusOr<Journal::Committed> committed = co_await store_->journal_.Commit(object_, change);
    if (!committed.ok()) co_return GiveUp(committed.status());
    if (committed->made) ++store_->object_count_;
    co_return committed->delta;
  }

  Status GiveUp(Status status) {
    store_->space_.allocator().Free(allocated_);
    return status;
  }

  // The planted bug: the checksums are there before their data.
  Task<StatusOr<int64_t>> CommitBeforeData() {
    if (count_ > kPieceBlocks) co_return GiveUp(ErrnoError(EINVAL, "planted bug: one piece at most"));
    uint64_t count = count_;
    Status status = co_await LoadPiece(0, count);
    if (!status.ok()) co_return GiveUp(status);
    StatusOr<int64_t> delta = co_await Commit();
    if (!delta.ok()) co_return delta;
    status = co_await StorePiece(0, std::move(loaded_));
    if (!status.ok()) co_return status;
    co_return delta;
  }

  ObjectStore* const store_;
  ObjectState* const object_;
  const WriteArgs* const args_;
  DataSource* const source_;
  Allotment* const memory_;
  const std::vector<uint64_t> blocks_;  // of the object
  const uint64_t count_;
  const uint64_t begin_, end_;  // bytes
  std::vector<uint64_t> physical_;
  std::vector<uint32_t> crc_;

  ChunkPtr head_, tail_;  // extents at the first and the last block
  uint64_t goal_ = 0;
  uint64_t mapped_ = 0;
  uint64_t in_place_ = 0;
  std::vector<BlockRun> allocated_;
  BufferPool::Pages loaded_;
};

// One device write for each run of blocks, side by side.
Task<Status> ObjectStore::StoreBlocks(std::span<const uint64_t> physical, const BufferPool::Pages* pages) {
  std::vector<Task<Status>> writes;
  for (size_t i = 0; i < pages->size();) {
    const size_t begin = i;
    std::vector<std::span<const std::byte>> buffers;
    do {
      const std::byte* data = pages->data(i);
      AppendBuffer(&buffers, data, kBlockSize);
      ++i;
    } while (i < pages->size() && physical[i] == physical[begin] + (i - begin));
    writes.push_back(StoreRun(physical[begin], std::move(buffers)));
  }
  if (writes.size() == 1) co_return co_await std::move(writes[0]);
  Status status = OkStatus();
  std::vector<Status> all = co_await WhenAll(std::move(writes));
  for (Status& one : all) status.Update(one);
  co_return status;
}

Task<Status> ObjectStore::StoreRun(uint64_t physical, std::vector<std::span<const std::byte>> buffers) {
  if (journal_.closed()) co_return ErrnoError(ESHUTDOWN, "the server is stopping");
  co_return co_await devices_.blocks->Write(physical, buffers);
}

Status ObjectStore::CheckWrite(const WriteArgs& args) const {
  size_t checksums = 0;
  for (const ByteRange& range : args.ranges) {
    RETURN_IF_ERROR(CheckRange(range.offset, range.length));
    const ByteRange* before = &range == &args.ranges.front() ? nullptr : &range - 1;
    if (before != nullptr &&
        (range.offset < before->end() || range.offset % kBlockSize != 0 || before->end() % kBlockSize != 0)) {
      return ErrnoError(EINVAL, absl::StrCat("a range at ", range.offset, " behind one that ends at ",
                                             before->end(), ": they must ascend by whole blocks"));
    }
    checksums += CrcCount(range.offset, range.length);
  }
  const uint64_t length = TotalLength(args.ranges);
  if (length > kMaxRequestBytes) {
    return ErrnoError(EINVAL,
                      absl::StrCat("write of ", length, " bytes: at most ", kMaxRequestBytes, " at once"));
  }
  if (args.crc.size() == checksums) return OkStatus();
  return ErrnoError(EINVAL, absl::StrCat(args.crc.size(), " checksums for ", length, " bytes in ", checksums,
                                         " blocks, the first at ", args.ranges.front().offset));
}

Task<StatusOr<int64_t>> ObjectStore::Write(WriteArgs args, DataSource* source, Allotment* memory) {
  args.ranges.erase(std::remove_if(args.ranges.begin(), args.ranges.end(),
                                   [](const ByteRange& range) { return range.length == 0; }),
                    args.ranges.end());
  if (args.ranges.empty()) co_return 0;
  CO_RETURN_IF_ERROR(CheckWrite(args));
  CO_RETURN_IF_ERROR(co_await LimitWaiting());
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectState> object, objects_.Acquire(args.object));
  RangeLock::Ranges locked;
  for (const ByteRange& range : args.ranges) {
    locked.push_back({range.offset / kBlockSize, (range.end() - 1) / kBlockSize + 1});
  }
  RangeLock::Guard guard = co_await object->locks.Lock(std::move(locked), true);
  RangeWriter writer(this, object.get(), &args, source, memory);
  co_return co_await writer.Run();
}

}  // namespace nacre::ost
