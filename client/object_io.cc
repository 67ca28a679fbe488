#include "client/object_io.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "client/memory_work.h"
#include "common/crc32c.h"
#include "common/log.h"
#include "common/metrics.h"
#include "rpc/convert.h"
#include "rpc/read_messages.h"

namespace nacre::client {
namespace {

constexpr uint64_t kBatchBytes = 1 << 20;
// Where much is read at once, each request of one part may be larger, as long as there are enough of them.
constexpr uint64_t kMostReadBatch = 4 << 20;
constexpr uint64_t kReadBatches = 4;
// Few enough that a long list of small reads keeps several requests busy. Scattered writes go together: the
// OST commits them as one change.
constexpr size_t kReadParts = 64;
constexpr size_t kWriteParts = 256;
constexpr int kReads = 3;  // of a block that does not match its checksum: the transfers may be at fault

Counter& Mismatches() {
  static Counter& counter = GetCounter("client.checksum_mismatches");
  return counter;
}

// Calls f(offset within the part, bytes) for the memory behind [from, to) of a part.
template <typename F>
void ForEachSpan(std::span<const MemorySpan> memory, uint64_t from, uint64_t to, F f) {
  uint64_t at = 0;
  for (const MemorySpan& span : memory) {
    uint64_t begin = std::max(at, from);
    uint64_t end = std::min(at + span.length, to);
    if (begin < end) f(begin, std::span<std::byte>(span.data() + (begin - at), end - begin));
    at += span.length;
  }
}

uint64_t ReadBatchBytes(const std::vector<IoPiece>& pieces) {
  uint64_t total = 0;
  for (const IoPiece& piece : pieces) total += piece.memory.length;
  return std::clamp(total / kReadBatches, kBatchBytes, kMostReadBatch);
}

}  // namespace

struct ObjectIo::Part {
  uint32_t stripe = 0;
  uint64_t file_offset = 0;
  uint64_t object_offset = 0;
  uint64_t length = 0;
  absl::InlinedVector<MemorySpan, 1> memory;
};

struct ObjectIo::Batch {
  OstIndex ost = 0;
  uint64_t bytes = 0;
  std::vector<Part> parts;
  bool of_head = false;  // read from no other member
};

ObjectIo::ObjectIo(Targets& targets, bool verify, Problem problem)
    : targets_(targets), verify_(verify), problem_(std::move(problem)) {}

// Requests of about `batch_bytes`, parts that touch in object and file joined.
std::vector<ObjectIo::Batch> ObjectIo::Plan(const LayoutMap& layout, const std::vector<IoPiece>& pieces,
                                            uint64_t batch_bytes, size_t most_parts) {
  std::vector<Batch> batches;
  std::map<OstIndex, size_t> open;  // the batch of each OST that has room
  const auto is_full = [&](const Batch& batch) {
    return batch.bytes >= (batch.parts.size() > 1 ? kBatchBytes : batch_bytes) ||
           batch.parts.size() >= most_parts;
  };
  for (const IoPiece& piece : pieces) {
    uint64_t done = 0;
    while (done < piece.memory.length) {
      StripePiece place = layout.At(piece.file_offset + done, piece.memory.length - done);
      auto [it, fresh] = open.try_emplace(place.ost, batches.size());
      if (!fresh && is_full(batches[it->second])) {
        it->second = batches.size();
        fresh = true;
      }
      if (fresh) batches.push_back({.ost = place.ost});
      Batch& batch = batches[it->second];
      // Cut between blocks only: each block of an object is touched by one request.
      uint64_t cut = (place.object_offset + batch_bytes - batch.bytes) / kBlockSize * kBlockSize;
      if (cut <= place.object_offset) cut = (place.object_offset / kBlockSize + 1) * kBlockSize;
      place.length = std::min(place.length, cut - place.object_offset);
      MemorySpan memory{piece.memory.region, piece.memory.offset + done, place.length};
      Part* last = batch.parts.empty() ? nullptr : &batch.parts.back();
      if (last != nullptr && last->stripe == place.stripe &&
          last->object_offset + last->length == place.object_offset) {
        last->length += place.length;
      } else {
        batch.parts.push_back({place.stripe, place.file_offset, place.object_offset, place.length, {}});
        last = &batch.parts.back();
      }
      MemorySpan* tail = last->memory.empty() ? nullptr : &last->memory.back();
      if (tail != nullptr && tail->region == memory.region && tail->offset + tail->length == memory.offset) {
        tail->length += memory.length;
      } else {
        last->memory.push_back(std::move(memory));
      }
      batch.bytes += place.length;
      done += place.length;
    }
  }
  return batches;
}

// --- reading ---

Task<Status> ObjectIo::Read(uint64_t epoch, Fid fid, LayoutPtr layout, std::vector<IoPiece> pieces,
                            bool* complete, CancellationPtr cancellation) {
  if (complete != nullptr) *complete = true;
  if (cancellation == nullptr) cancellation = co_await CurrentCancellation();
  std::vector<Batch> batches = Plan(*layout, pieces, ReadBatchBytes(pieces), kReadParts);
  if (batches.empty()) co_return OkStatus();
  if (batches.size() == 1) {
    Batch only = std::move(batches.front());
    co_return co_await ReadBatch(epoch, fid, layout, std::move(only), complete, cancellation);
  }
  std::vector<Task<Status>> reads;
  std::vector<std::unique_ptr<bool>> flags;
  for (Batch& batch : batches) {
    flags.push_back(std::make_unique<bool>(true));
    reads.push_back(ReadBatch(epoch, fid, layout, std::move(batch), flags.back().get(), cancellation));
  }
  std::vector<Status> results = co_await WhenAll(std::move(reads));
  for (const auto& flag : flags) {
    if (complete != nullptr && !*flag) *complete = false;
  }
  for (Status& result : results) CO_RETURN_IF_ERROR(std::move(result));
  co_return OkStatus();
}

Task<Status> ObjectIo::ReadBatch(uint64_t epoch, Fid fid, LayoutPtr layout, Batch batch, bool* complete,
                                 CancellationPtr cancellation) {
  for (int reads = 1;; ++reads) {
    std::vector<size_t> again;
    CO_RETURN_IF_ERROR(
        co_await ReadOnce(epoch, fid, *layout, batch, reads == kReads, &again, complete, cancellation));
    if (again.empty()) co_return OkStatus();
    Batch rest;
    rest.ost = batch.ost;
    rest.of_head = true;  // it may be the way to the other member that changes bytes
    for (size_t index : again) {
      rest.bytes += batch.parts[index].length;
      rest.parts.push_back(std::move(batch.parts[index]));
    }
    batch = std::move(rest);
  }
}

Task<Status> ObjectIo::ReadOnce(uint64_t epoch, Fid fid, const LayoutMap& layout, const Batch& batch,
                                bool last, std::vector<size_t>* again, bool* complete,
                                CancellationPtr cancellation) {
  proto::ObjectRequest request;
  request.set_ost(batch.ost);
  request.set_allocated_read(ReadMessages<proto::ReadObjects>::Take(static_cast<int>(batch.parts.size())));
  std::vector<MemorySpan> memory;
  memory.reserve(batch.parts.size());
  MemoryWork work(batch.parts.front().memory.front().region->device());
  std::vector<Sums> sums(batch.parts.size());
  BlockSumsPtr arriving;
  if (verify_ && batch.parts.front().memory.front().region->device() != nullptr)
    arriving = std::make_shared<BlockSums>();
  uint64_t at = 0;
  for (const Part& part : batch.parts) {
    if (arriving != nullptr) arriving->Add(part.object_offset, part.length);
    proto::ObjectRange* range = request.mutable_read()->add_ranges();
    *range->mutable_object() = ToProto(layout.Object(part.stripe));
    range->set_offset(part.object_offset);
    range->set_length(part.length);
    range->set_memory_offset(at);
    at += part.length;
    memory.insert(memory.end(), part.memory.begin(), part.memory.end());
  }
  Task<StatusOr<proto::ObjectReply>> reading =
      batch.of_head
          ? targets_.Call(epoch, std::move(request), CallMemory::kPutTarget, std::move(memory),
                          std::move(cancellation), arriving)
          : targets_.Read(epoch, std::move(request), std::move(memory), std::move(cancellation), arriving);
  CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await std::move(reading));
  if (reply.read().ranges_size() != static_cast<int>(batch.parts.size())) {
    co_return ErrnoError(EIO, absl::StrFormat("OST %d answered %d ranges of %d", batch.ost,
                                              reply.read().ranges_size(), batch.parts.size()));
  }
  std::vector<std::optional<uint32_t>> made;
  if (arriving != nullptr) made = arriving->Made();
  MadeSums made_behind = made;  // the part that is looked at
  for (size_t i = 0; i < batch.parts.size(); ++i) {
    const proto::ReadRangeResult& result = reply.read().ranges(static_cast<int>(i));
    if (result.status().error() != 0) {
      Status status = FromProto(result.status());
      LogError("reading file %s, object %s on OST %d: %s", fid.ToString(),
               layout.Object(batch.parts[i].stripe).ToString(), batch.ost, std::string(status.message()));
      co_return status;
    }
    if (complete != nullptr && (result.length() < batch.parts[i].length || result.holes_size() > 0))
      *complete = false;
    const size_t blocks =
        arriving == nullptr ? 0 : CrcCount(batch.parts[i].object_offset, batch.parts[i].length);
    Examine(batch.parts[i], result, made_behind.first(blocks), &work, &sums[i]);
    made_behind = made_behind.subspan(blocks);
  }
  CO_RETURN_IF_ERROR(co_await work.Finish());
  for (size_t i = 0; i < batch.parts.size(); ++i) {
    const proto::ReadRangeResult& result = reply.read().ranges(static_cast<int>(i));
    if (Matches(fid, layout, batch.ost, batch.parts[i], result, sums[i], last)) continue;
    if (last) {
      co_return ErrnoError(
          EIO, absl::StrFormat("file %s: data of object %s on OST %d does not match its checksum",
                               fid.ToString(), layout.Object(batch.parts[i].stripe).ToString(), batch.ost));
    }
    again->push_back(i);
  }
  ReadMessages<proto::ReadObjectsReply>::Keep(reply.release_read());
  co_return OkStatus();
}

// Zeros what was not put and sums up what was.
void ObjectIo::Examine(const Part& part, const proto::ReadRangeResult& result, MadeSums made,
                       MemoryWork* work, Sums* sums) const {
  auto zero = [&](uint64_t from, uint64_t to) {
    ForEachSpan(part.memory, from, to, [&](uint64_t, std::span<std::byte> bytes) { work->Zero(bytes); });
  };
  const uint64_t length = std::min(result.length(), part.length);
  zero(length, part.length);
  for (const proto::Hole& hole : result.holes()) {
    uint64_t from = std::min(hole.offset(), length);
    zero(from, from + std::min(hole.length(), length - from));
  }
  if (!verify_) return;
  sums->resize(CrcCount(part.object_offset, length));
  if (made.empty())
    SumBlocks(part, length, work, sums);
  else
    SumTheRest(part, length, made, work, sums);
}

// The transport's checksum of a block counts where all of the block was asked for and has come.
void ObjectIo::SumTheRest(const Part& part, uint64_t length, MadeSums made, MemoryWork* work, Sums* sums) {
  const uint64_t first = part.object_offset / kBlockSize, end = part.object_offset + length;
  const size_t came_whole = length == part.length ? sums->size() : end / kBlockSize - first;
  for (size_t i = 0; i < sums->size(); ++i) {
    if (made[i].has_value() && i < came_whole) {
      (*sums)[i] = *made[i];
      continue;
    }
    const uint64_t from = std::max((first + i) * kBlockSize, part.object_offset) - part.object_offset;
    const uint64_t to = std::min((first + i + 1) * kBlockSize, end) - part.object_offset;
    ForEachSpan(part.memory, from, to, [&](uint64_t within, std::span<std::byte> bytes) {
      work->Sum(part.object_offset + within, bytes, &(*sums)[i]);
    });
  }
}

void ObjectIo::SumBlocks(const Part& part, uint64_t length, MemoryWork* work, Sums* sums) {
  const uint64_t first = part.object_offset / kBlockSize;
  ForEachSpan(part.memory, 0, length, [&](uint64_t within, std::span<std::byte> bytes) {
    const uint64_t offset = part.object_offset + within;
    work->Sum(offset, bytes, &(*sums)[offset / kBlockSize - first]);
  });
}

// False: a block does not match.
bool ObjectIo::Matches(Fid fid, const LayoutMap& layout, OstIndex ost, const Part& part,
                       const proto::ReadRangeResult& result, const Sums& sums, bool last) {
  if (sums.empty() || std::ranges::equal(sums, result.crc())) return true;
  bool good = static_cast<size_t>(result.crc_size()) == sums.size();
  uint64_t bad_offset = 0;
  const uint64_t first_block = part.object_offset / kBlockSize;
  auto in_hole = [&](uint64_t block) {
    uint64_t start = std::max(block * kBlockSize, part.object_offset) - part.object_offset;
    for (const proto::Hole& hole : result.holes()) {
      if (hole.offset() <= start && start < hole.offset() + hole.length()) return true;
    }
    return false;
  };
  for (size_t i = 0; i < sums.size() && good; ++i) {
    if (sums[i] == result.crc(static_cast<int>(i)) || in_hole(first_block + i)) continue;
    good = false;
    bad_offset = (first_block + i) * kBlockSize;
  }
  if (good) return true;
  Mismatches().Add();
  std::string what =
      absl::StrFormat("file %s: block at %d of object %s from OST %d does not match its checksum%s",
                      fid.ToString(), bad_offset, layout.Object(part.stripe).ToString(), ost,
                      last ? ", however often it is read" : "; reading it once more");
  LogError("%s", what);
  if (last) problem_(fid, what);
  return false;
}

// --- writing ---

Task<WriteResult> ObjectIo::Write(uint64_t epoch, Fid fid, LayoutPtr layout, std::vector<IoPiece> pieces,
                                  WriteMode mode) {
  std::vector<Batch> batches = Plan(*layout, pieces, kBatchBytes, kWriteParts);
  if (batches.size() == 1) {
    Batch only = std::move(batches.front());
    co_return co_await WriteBatch(epoch, fid, layout, std::move(only), mode);
  }
  std::vector<Task<WriteResult>> writes;
  for (Batch& batch : batches) writes.push_back(WriteBatch(epoch, fid, layout, std::move(batch), mode));
  std::vector<WriteResult> results = co_await WhenAll(std::move(writes));
  WriteResult all;
  for (WriteResult& result : results) {
    if (all.status.ok()) all.status = std::move(result.status);
    all.blocks_delta += result.blocks_delta;
    all.osts.merge(result.osts);
  }
  co_return all;
}

Task<WriteResult> ObjectIo::WriteBatch(uint64_t epoch, Fid fid, LayoutPtr layout, Batch batch,
                                       WriteMode mode) {
  proto::ObjectRequest request;
  request.set_ost(batch.ost);
  proto::WriteObjects* write = request.mutable_write();
  write->set_sync(mode.sync);
  MemoryWork work(nullptr);
  std::vector<MemorySpan> memory;
  uint64_t at = 0;
  uint64_t blocks = 0;
  for (const Part& part : batch.parts) {
    proto::WriteRange* range = write->add_ranges();
    *range->mutable_parent() = ToProto(fid);
    *range->mutable_range()->mutable_object() = ToProto(layout->Object(part.stripe));
    range->mutable_range()->set_offset(part.object_offset);
    range->mutable_range()->set_length(part.length);
    range->mutable_range()->set_memory_offset(at);
    at += part.length;
    size_t count = CrcCount(part.object_offset, part.length);
    uint64_t first = part.object_offset / kBlockSize;
    bool shared = &part != &batch.parts.front() && (&part)[-1].stripe == part.stripe &&
                  ((&part)[-1].object_offset + (&part)[-1].length - 1) / kBlockSize == first;
    blocks += count - (shared ? 1 : 0);
    Sums sums(count);
    SumBlocks(part, part.length, &work, &sums);
    range->mutable_crc()->Assign(sums.begin(), sums.end());
    memory.insert(memory.end(), part.memory.begin(), part.memory.end());
  }
  if (mode.reserved) write->set_grant_used(blocks * kBlockSize);
  WriteResult result;
  auto reply = co_await targets_.Call(epoch, std::move(request), CallMemory::kGetSource, std::move(memory));
  if (mode.reserved) targets_.Used(batch.ost, blocks * kBlockSize);
  if (!reply.ok()) {
    result.status = reply.status();
    co_return result;
  }
  result.blocks_delta = reply->write().blocks_delta();
  result.osts.emplace(batch.ost, reply->losses());
  co_return result;
}

Task<StatusOr<proto::ObjectReply>> ObjectIo::Send(uint64_t epoch, proto::ObjectRequest request) {
  std::vector<MemorySpan> none;
  co_return co_await targets_.Call(epoch, std::move(request), CallMemory::kNone, std::move(none));
}

Task<StatusOr<Losses>> ObjectIo::Sync(uint64_t epoch, std::set<OstIndex> osts) {
  std::vector<Task<StatusOr<proto::ObjectReply>>> syncs;
  for (OstIndex ost : osts) {
    proto::ObjectRequest request;
    request.set_ost(ost);
    request.mutable_sync();
    syncs.push_back(Send(epoch, std::move(request)));
  }
  auto replies = co_await WhenAll(std::move(syncs));
  Losses losses;
  auto reply = replies.begin();
  for (OstIndex ost : osts) {
    const auto synced = reply++;
    if (!synced->ok() && targets_.LeftWhole(ost)) continue;
    CO_RETURN_IF_ERROR(synced->status());
    losses.emplace(ost, (*synced)->losses());
  }
  co_return losses;
}

}  // namespace nacre::client
