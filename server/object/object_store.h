// One OST: objects over a KvStore and a BlockStore (docs/architecture.md "Objects", proto/FORMAT.md "OST").
//
// Copy on write: data goes into free blocks, then one batch makes it visible. Requests on one object that
// overlap are ordered by locks; all others run side by side. Reads and writes pass through the buffer pool,
// which is also the cache; memory does not grow with the number of objects. Devices and pool outlive the
// store; the store outlives its requests. Thread-safe.
//
// Errors: EINVAL (bad arguments), ENOSPC, EIO (device or checksum; logged and listed in problems()),
// ESHUTDOWN after Close.
#pragma once

#include <absl/container/inlined_vector.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/crc32c.h"
#include "common/random.h"
#include "common/task.h"
#include "server/object/chunk_cache.h"
#include "server/object/journal.h"
#include "server/object/object_server.h"
#include "server/object/object_table.h"
#include "server/object/pool.h"
#include "server/object/problems.h"
#include "server/object/space.h"

namespace nacre::ost {

inline constexpr uint64_t kMaxRequestBytes = 64 << 20;  // of one read or write
inline constexpr uint64_t kMostDigestBlocks = 16384;    // of one Digest: 64 MiB of an object
inline constexpr uint64_t kPieceBlocks =
    (1 << 20) / kBlockSize;  // moved between device and network at a time

// Where a write's bytes come from and a read's go to. Offsets count from the first range's beginning, unless
// a RangeToRead says where its bytes go. Called by one coroutine at a time.
class DataSource {
 public:
  virtual ~DataSource() = default;
  virtual Task<Status> Fetch(uint64_t offset, std::span<const std::span<std::byte>> buffers) = 0;
};
class DataSink {
 public:
  virtual ~DataSink() = default;
  // The buffers stay as they are until the task has returned and `keep` is gone.
  virtual Task<Status> Deliver(uint64_t offset, std::span<const std::span<const std::byte>> buffers,
                               std::shared_ptr<void> keep) = 0;
};

struct StoreOptions {
  size_t cached_objects = 16384;
  size_t max_waiting_records = 200'000;   // undo records; beyond, writes wait for a sync
  std::string boot;                       // ObjectOptions
  bool plant_commit_before_data = false;  // ObjectOptions
  bool plant_early_sync = false;
  bool plant_blind_mend = false;
};

struct HoleRange {
  uint64_t offset = 0;  // from the start of the range
  uint64_t length = 0;
};

struct RangeRead {
  Status status;
  uint64_t length = 0;        // bytes that exist
  std::vector<uint32_t> crc;  // one per block touched; 0 in holes
  std::vector<HoleRange> holes;
  ObjectVersion version;  // of the object that this is of; 0.0: there is none
};

// One of several ranges that are read in one go.
struct RangeToRead {
  ObjectId object;
  uint64_t offset = 0;
  uint64_t length = 0;
  uint64_t sink_offset = 0;  // of its first byte
  RangeRead result = {};

  uint64_t first_block() const { return offset / kBlockSize; }
  uint64_t end_block() const { return (offset + length - 1) / kBlockSize + 1; }
};

struct ByteRange {
  uint64_t offset = 0;
  uint64_t length = 0;
  uint64_t end() const { return offset + length; }
};

// The bytes come from the source in the order of the ranges. All become visible in one commit.
struct WriteArgs {
  ObjectId object;
  // Ascending and disjoint. Between the first one's begin and the last one's end whole blocks.
  absl::InlinedVector<ByteRange, 1> ranges;
  Fid parent;
  std::vector<uint32_t> crc;  // one per block touched, cut at the ends
  GrantUse* grant = nullptr;
  Originator* by = nullptr;  // as in ObjectChange; outlives the write
  bool ends_request = false;
};

// A change of one object that another member of the chain hands on.
struct ApplyArgs {
  ObjectId object;
  Fid parent;
  Applied applied;
  bool destroy = false;
  struct Edit {
    uint64_t first = 0;
    uint64_t count = 0;
    enum Kind { kWritten, kUnwritten, kHole } kind = kWritten;
  };
  std::vector<Edit> edits;    // ascending and disjoint
  std::vector<uint32_t> crc;  // of the written blocks, in the order of the edits
  std::vector<uint32_t> bad;  // the numbers, ascending, of those that are taken though they do not match
  Originator* by = nullptr;
  bool ends_request = false;
};

struct StoreSpace {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t available_bytes = 0;
  uint64_t objects = 0;
};

class ObjectStore {
 public:
  // Formats an empty store, recovers, scans. `slot` tells the OSTs of one pool apart. FAILED_PRECONDITION:
  // another format version or another OST's index; DATA_LOSS: damaged.
  static Task<StatusOr<std::unique_ptr<ObjectStore>>> Open(OstDevices devices,
                                                           std::shared_ptr<BufferPool> pool, uint32_t slot,
                                                           Random* random, StoreOptions options);

  // Waits until there are pages for a call that is to touch so many blocks in its reads or writes. To be
  // asked for once, before the first of them; `client` tells those who share the pool apart.
  Task<Allotment> Admit(SessionId client, uint64_t blocks) {
    return pool_->admission().Admit(client, slot_, blocks);
  }
  // Which a read or write of this range touches; one that is too long is refused, however much it has.
  static uint64_t CountBlocks(uint64_t offset, uint64_t length) {
    return CrcCount(offset % kBlockSize, std::min(length, kMaxRequestBytes + 1));
  }

  // Reads them, each by itself as far as its result goes: for small ones much cheaper than one after the
  // other. kPieceBlocks in all at most (CountBlocks), unless it is one. Where the sink's offsets go on the
  // bytes are delivered together.
  Task<void> ReadTogether(std::span<RangeToRead> ranges, DataSink* sink, Allotment* memory);
  // One range, which lies at the sink's offset 0.
  Task<RangeRead> Read(ObjectId id, uint64_t offset, uint64_t length, DataSink* sink, Allotment* memory);
  // The same while changes of the range, which other members wait for, may go on: nothing is locked while the
  // sink takes bytes. `memory` is whole. EAGAIN: it was changed meanwhile, or is not all there yet, or
  // had a bad block, which has been repaired from any other member.
  Task<RangeRead> ReadBesideChanges(ObjectId id, uint64_t offset, uint64_t length, DataSink* sink,
                                    Allotment* memory);
  // Of the object when no change of the range is under way.
  Task<StatusOr<ObjectVersion>> VersionAt(ObjectId id, uint64_t offset, uint64_t length);

  // These return the change of allocated space in blocks. `by` as in ObjectChange; it outlives the call. All
  // but Write and Destroy are all that their request does: the last change records its answer.
  Task<StatusOr<int64_t>> Write(WriteArgs args, DataSource* source, Allotment* memory);
  Task<StatusOr<int64_t>> Truncate(ObjectId id, uint64_t size, Originator* by = nullptr);
  Task<StatusOr<int64_t>> Punch(ObjectId id, uint64_t offset, uint64_t length, Originator* by = nullptr);
  Task<StatusOr<int64_t>> Preallocate(ObjectId id, Fid parent, uint64_t offset, uint64_t length,
                                      Originator* by = nullptr);
  Task<StatusOr<int64_t>> Destroy(ObjectId id, Originator* by = nullptr, const Applied* applied = nullptr);
  // The source has the written blocks, whole, in the order of the edits; `memory` is of `pool`. EBADMSG: the
  // object has another version here than the change begins from.
  Task<Status> Apply(ApplyArgs args, DataSource* source, BufferPool* pool, Allotment* memory);
  // The written blocks of edits that belong to this store, in pages of another pool, for the network.
  struct Gathered {
    std::vector<BufferPool::Pages> pages;
    std::vector<MemorySpan> memory;
    std::vector<uint32_t> bad;  // the numbers, ascending, of those that do not match their checksums
  };
  // A block that cannot be read, or does not match its checksum: EIO, or it is taken as it is (zeros, if it
  // cannot be read).
  enum class BadBlocks { kRefused, kTaken };
  Task<StatusOr<Gathered>> Gather(const std::vector<ExtentEdit>& edits, std::shared_ptr<BufferPool> pool,
                                  BadBlocks bad = BadBlocks::kRefused);
  // Objects that are being walked through (server/object/filling.h).
  StatusOr<std::shared_ptr<ObjectState>> Acquire(ObjectId id) { return objects_.Acquire(id); }
  // Which of the blocks [first, first + count) are mapped, as edits that make another store's so; `physical`
  // and `crc` hold what they point to.
  struct Mapping {
    std::vector<ExtentEdit> edits;
    std::vector<uint64_t> physical;
    std::vector<uint32_t> crc;
  };
  StatusOr<Mapping> MapOf(const ObjectId& id, uint64_t first, uint64_t count);
  // The first chunk with extents at or behind this block; none: there is none.
  StatusOr<std::optional<uint64_t>> NextChunk(const ObjectId& id, uint64_t block);

  // --- for the scrubber ---

  // A written block whose content on the disk is not what its checksum says, or cannot be read.
  struct Damaged {
    uint64_t block = 0;  // of the object
    uint64_t physical = 0;
    uint32_t crc = 0;  // that it should have
    std::string why;
  };
  struct Verified {
    uint64_t blocks = 0;  // that were read
    std::vector<Damaged> damaged;
  };
  // Reads the written blocks of [first, first + count) from the disk, past the cache. `memory` has room for
  // `count` blocks and is aligned to one.
  Task<StatusOr<Verified>> Verify(ObjectId id, uint64_t first, uint64_t count, std::byte* memory);
  enum class Mended {
    kRepaired,  // it holds again what it should
    kGone,      // the object has another block there now, or none
    kNot,       // neither the cache nor another member has its content
  };
  // Writes the block anew; `page` has room for it. It lasts as of the next FlushRewritten.
  Task<StatusOr<Mended>> Mend(ObjectId id, Damaged damaged, std::span<std::byte> page);
  // Reads the blocks past the cache and writes anew those that are bad. False: none is. EIO: nobody has what
  // one of them should hold, and that has been reported.
  Task<StatusOr<bool>> MendRange(ObjectId id, uint64_t first, uint64_t count);
  // Blocks that were bad and have been written anew in their places survive a loss of power from here on.
  Task<Status> FlushRewritten();
  // Makes it known that the block is bad and cannot be repaired.
  void Report(ObjectId id, const Damaged& damaged);
  // Sums up which blocks of [first, first + count), both multiples of kChunkBlocks, are mapped and with which
  // checksums (MemberDigest in proto/object.proto). The range is locked by the caller.
  StatusOr<uint32_t> Digest(ObjectId id, uint64_t first, uint64_t count);

  // Records the answer of a request whose end has changed nothing.
  Task<Status> Record(Originator* by) { return journal_.Record(by); }

  // None: there is no such object.
  StatusOr<std::optional<ObjectRecord>> Stat(ObjectId id);
  // The next data (or hole) at or behind `offset`; none: no data there.
  Task<StatusOr<std::optional<uint64_t>>> Seek(ObjectId id, uint64_t offset, bool hole);
  struct Listed {
    ObjectId id;
    ObjectRecord record;
  };
  StatusOr<std::vector<Listed>> List(std::optional<ObjectId> after, size_t limit);

  // Objects that a session (0: any) has made longer, and for which nobody has said since that the MDT knows
  // of it (Settle). In the order of (session, object).
  struct Grown {
    Growth growth;
    std::optional<ObjectRecord> record;  // as it is now; none: it is gone
  };
  StatusOr<std::vector<Grown>> ListGrown(SessionId session, std::optional<Growth> after, size_t limit);
  // The MDT knows the object's end as of this version. Does nothing if the object has changed since.
  Task<Status> Settle(Growth growth, uint64_t version);

  // Everything answered so far is on stable storage.
  Task<Status> Sync();
  // The periodic work: a sync if there is something to sync or a block was written anew, and space back to
  // the disk below.
  Task<Status> Maintain();

  // Not OK: the disk may not have what it has taken (Journal::flush_failure). Then this store is of no use
  // any more, and is to be opened anew behind SuspectLoss.
  Status flush_failure() const { return journal_.flush_failure(); }
  // So that the next start verifies everything that was not synced, and counts a loss.
  Task<Status> SuspectLoss();

  // A session has made the object longer, as another member of the chain says.
  Task<Status> LearnGrowth(std::vector<Growth> growths);

  // Behind the last sync of an orderly end.
  Task<Status> EndClean();
  // How often it may have lost what had been answered and not synced.
  uint64_t losses() const { return losses_.load(); }
  // As another member of the chain counts them, whose data this store has now.
  Task<Status> TakeLosses(uint64_t losses);

  StoreSpace GetSpace() const;
  Space& space() { return space_; }
  Journal& journal() { return journal_; }
  const Superblock& superblock() const { return superblock_; }
  // EINVAL if it belongs to another cluster already.
  Task<Status> JoinCluster(std::string cluster_uuid);
  const std::string& directory() const { return devices_.directory; }
  KvStore& kv() { return *devices_.store; }
  Problems& problems() { return problems_; }
  Status CheckPlace() { return devices_.blocks->CheckPlace(); }

  // Nothing has an effect on the devices' metadata any more.
  void Close() { journal_.Close(); }

 private:
  friend class ChangeApplier;
  friend class PieceReader;
  friend class RangeWriter;

  ObjectStore(OstDevices devices, std::shared_ptr<BufferPool> pool, uint32_t slot, StoreOptions options);

  Task<Status> LoadSuperblock(Random* random);
  Status ScanExtents();
  Status MarkChunkUsed(const KvEntry& entry);
  Status CheckRange(uint64_t offset, uint64_t length) const;
  Status CheckWrite(const WriteArgs& args) const;

  Task<Status> StoreBlocks(std::span<const uint64_t> physical, const BufferPool::Pages* pages);
  Task<Status> LoadBlocks(std::span<const uint64_t> physical, const BufferPool::Pages& pages);
  Task<Status> LoadReadable(std::span<const uint64_t> physical, const BufferPool::Pages& pages);
  Task<Status> StoreRun(uint64_t physical, std::vector<std::span<const std::byte>> buffers);
  // The whole block, verified, in a page of its own.
  Task<Status> ReadBlock(ObjectState* object, uint64_t block, const Chunk* chunk, std::byte* page);
  // A copy of a written block with zeros in [from, to), not committed yet.
  struct Rewritten {
    uint64_t block = 0;
    uint64_t physical = 0;
    uint32_t crc = 0;
  };
  Task<StatusOr<std::optional<Rewritten>>> ZeroPart(ObjectState* object, uint64_t block, uint32_t from,
                                                    uint32_t to, Allotment* memory);
  // Unmaps [first, end) of the object chunk by chunk from its end, `last` being the final batch's other
  // changes.
  Task<StatusOr<int64_t>> Unmap(ObjectState* object, uint64_t first, uint64_t end, ObjectChange last);
  Task<StatusOr<int64_t>> PreallocatePart(ObjectState* object, Fid parent, uint64_t first, uint64_t end,
                                          Originator* by, bool is_last);
  StatusOr<std::vector<uint64_t>> LastChunks(const ObjectId& id, uint64_t first, uint64_t end, size_t limit);
  Task<Status> LimitWaiting();
  Status CheckRead(uint64_t offset, uint64_t length) const;
  std::shared_ptr<ObjectState> Find(RangeToRead* range);
  static bool BeginRead(const std::optional<ObjectRecord>& record, RangeToRead* range);
  Task<void> ReadAlone(RangeToRead* range, DataSink* sink, Allotment* memory);
  Task<void> TryBesideChanges(RangeToRead* range, DataSink* sink, Allotment* memory,
                              std::vector<Damaged>* damaged);
  Task<Status> MendAll(ObjectId id, std::vector<Damaged> damaged);

  // A block that does not match its checksum or cannot be read, with a page for its content.
  struct Suspect {
    uint64_t block = 0;  // of the object
    uint64_t physical = 0;
    uint32_t crc = 0;  // that it should have
    std::byte* page = nullptr;
  };
  // Fills the page from another member and writes the block anew; else as BadBlock.
  Task<Status> Repair(ObjectState* object, Suspect suspect, std::string why);
  // Logs, counts and lists a block that does not match its checksum or cannot be read.
  Status BadBlock(ObjectState* object, uint64_t block, uint64_t physical, std::string_view why);
  // The bug that can be planted: the block's checksum becomes that of what the disk has.
  Task<StatusOr<Mended>> TakeForGood(ObjectId id, Damaged damaged, std::span<std::byte> page);

  const OstDevices devices_;
  const std::shared_ptr<BufferPool> pool_;
  const uint32_t slot_;
  const StoreOptions options_;
  Superblock superblock_;
  std::atomic<uint64_t> losses_{0};
  Space space_;
  ObjectTable objects_;
  ChunkCache chunks_;
  Journal journal_;
  Problems problems_;
  AsyncMutex flushing_;                 // of rewritten blocks
  std::atomic<bool> rewritten_{false};  // a block has been written anew in its place since the last flush
  std::atomic<uint64_t> object_count_{0};
};

// Buffers that lie one behind the other in memory become one.
template <typename Byte>
void AppendBuffer(std::vector<std::span<Byte>>* buffers, Byte* data, size_t size) {
  if (size == 0) return;
  if (!buffers->empty() && buffers->back().data() + buffers->back().size() == data) {
    buffers->back() = std::span<Byte>(buffers->back().data(), buffers->back().size() + size);
    return;
  }
  buffers->emplace_back(data, size);
}

}  // namespace nacre::ost
