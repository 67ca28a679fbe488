// Reading past the cache into memory of the reader's own, which may be a device's: it is touched by the data
// plane and by its device, never from here. Much is read in slices, some at once; each passes the gate by
// itself, so that a lease can be given up in the middle of a long read.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <set>

#include "client/core.h"
#include "transport/memory_device.h"

namespace nacre::client {
namespace {

constexpr uint64_t kSliceBytes = 16 << 20;
// The first slice of a long read is short, so that a device has something to copy while the rest is asked
// for.
constexpr uint64_t kFirstSliceBytes = 1 << 20;
constexpr uint64_t kLongRead = 8 << 20;
constexpr size_t kSlicePieces = 1024;
constexpr size_t kReadLanes = 16;  // slices under way: with 8 a GPU waits a fifth of the time

Status Aborted(const CancellationPtr& cancellation) {
  return cancellation == nullptr ? OkStatus() : cancellation->status();
}

// A byte of a device's memory that may come alone: requests and copies are cut between blocks.
struct SingleByte {
  size_t part;
  MemorySpan target;
  std::byte value{};
};

// Together with its neighbour in the piece, as that is by now. While a stream waits for the read, a GPU may
// have to be idle before it takes a copy of one byte; one of two it takes at once
// (docs/decisions/0028-waiting-streams.md). Nobody else may write the neighbour: the piece is the reader's.
Task<Status> PutSingleByte(SingleByte* byte, MemorySpan piece) {
  MemoryDevice* device = byte->target.region->device().get();
  CO_ASSIGN_OR_RETURN(StagingBuffer buffer, co_await device->Stage(2));
  const size_t place = byte->target.offset > piece.offset ? 1 : 0, count = piece.length > 1 ? 2 : 1;
  std::byte* begin = byte->target.data() - place;
  if (count > 1) {
    std::vector<iovec> host(1, iovec{&buffer.bytes[1 - place], 1});
    std::vector<iovec> neighbour(1, iovec{begin + 1 - place, 1});
    CO_RETURN_IF_ERROR(co_await device->CopyOut(std::move(host), std::move(neighbour)));
  }
  buffer.bytes[place] = byte->value;
  std::vector<iovec> target(1, iovec{begin, count});
  std::vector<iovec> source(1, iovec{buffer.bytes.data(), count});
  co_return co_await device->CopyIn(std::move(target), std::move(source));
}

}  // namespace

struct Core::ReadIntoJob {
  HandlePtr handle;
  CancellationPtr cancellation;
  std::vector<ReadPiece> parts;  // the pieces, none longer than a slice
  std::vector<size_t> piece_of;  // each part
  std::vector<uint64_t> sizes;   // read of each part
  std::vector<size_t> slices;    // where each begins among the parts; the end
  std::atomic<size_t> next{0};   // slice

  std::mutex mutex;
  std::set<std::string> paths;
  bool from_objects = false;
  std::list<SingleByte> single_bytes;

  void Cut(const std::vector<ReadPiece>& pieces);
  Status TakeSingleBytes(Targets& targets, size_t part, IoPiece* piece, std::vector<IoPiece>* host);
  PiecesRead Result(size_t pieces, bool verify);
};

// Between slices of the file, so that no block is asked for twice.
void Core::ReadIntoJob::Cut(const std::vector<ReadPiece>& pieces) {
  uint64_t total = 0;
  for (const ReadPiece& piece : pieces) total += piece.memory.length;
  uint64_t bytes = 0, most = total < kLongRead ? kSliceBytes : kFirstSliceBytes;  // of the last slice
  slices.push_back(0);
  for (size_t i = 0; i < pieces.size(); ++i) {
    uint64_t done = 0;
    do {
      const uint64_t at = pieces[i].offset + done;
      const auto next = [&] {
        const uint64_t end = (at + most) / kBlockSize * kBlockSize;
        return std::min({pieces[i].memory.length - done, end - at, kSliceBytes - at % kSliceBytes});
      };
      const bool full = bytes + next() > most || parts.size() - slices.back() >= kSlicePieces;
      if (full && parts.size() > slices.back()) {
        slices.push_back(parts.size());
        bytes = 0;
        most = kSliceBytes;
      }
      const uint64_t take = next();
      parts.push_back({at, {pieces[i].memory.region, pieces[i].memory.offset + done, take}});
      piece_of.push_back(i);
      bytes += take;
      done += take;
    } while (done < pieces[i].memory.length);
  }
  slices.push_back(parts.size());
  sizes.resize(parts.size());
}

// From a piece of a device's memory; they come to the host.
Status Core::ReadIntoJob::TakeSingleBytes(Targets& targets, size_t part, IoPiece* piece,
                                          std::vector<IoPiece>* host) {
  auto take = [&](uint64_t at) -> Status {
    std::lock_guard lock(mutex);
    SingleByte& byte = single_bytes.emplace_back(SingleByte{part, piece->memory});
    byte.target.offset += at;
    byte.target.length = 1;
    ASSIGN_OR_RETURN(auto region, targets.Register(&byte.value, 1));
    host->push_back({piece->file_offset + at, {std::move(region), 0, 1}});
    return OkStatus();
  };
  uint64_t& length = piece->memory.length;
  if (length == 1 || (piece->file_offset + length - 1) % kBlockSize == 0) {
    RETURN_IF_ERROR(take(length - 1));
    --length;
  }
  if (length > 0 && (piece->file_offset + 1) % kBlockSize == 0) {
    RETURN_IF_ERROR(take(0));
    ++piece->file_offset;
    ++piece->memory.offset;
    --length;
  }
  return OkStatus();
}

// Bytes behind a part that is short do not count: the file may have grown meanwhile.
PiecesRead Core::ReadIntoJob::Result(size_t pieces, bool verify) {
  PiecesRead result;
  result.sizes.resize(pieces);
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool gap = i > 0 && piece_of[i - 1] == piece_of[i] && sizes[i - 1] < parts[i - 1].memory.length;
    if (gap) sizes[i] = 0;
    result.sizes[piece_of[i]] += sizes[i];
  }
  for (const std::string& path : paths) result.path += (result.path.empty() ? "" : ",") + path;
  result.verified = verify && from_objects;
  return result;
}

Task<StatusOr<PiecesRead>> Core::ReadInto(HandlePtr handle, std::vector<ReadPiece> pieces,
                                          CancellationPtr cancellation) {
  if (!handle->readable()) co_return ErrnoError(EBADF, "read: the file is open for writing only");
  for (const ReadPiece& piece : pieces) {
    if (piece.offset > INT64_MAX || piece.memory.length > INT64_MAX - piece.offset)
      co_return ErrnoError(EINVAL, absl::StrFormat("read at %d: too far", piece.offset));
  }
  ReadIntoJob job;
  job.handle = std::move(handle);
  job.cancellation = std::move(cancellation);
  job.Cut(pieces);
  const size_t slices = job.slices.size() - 1;
  if (slices == 1) {
    CO_RETURN_IF_ERROR(co_await ReadLane(&job));
  } else {
    std::vector<Task<Status>> lanes;
    for (size_t i = 0; i < std::min(slices, kReadLanes); ++i) lanes.push_back(ReadLane(&job));
    std::vector<Status> results = co_await WhenAll(std::move(lanes), Begin::kByTurns);
    for (Status& result : results) CO_RETURN_IF_ERROR(std::move(result));
  }
  for (SingleByte& byte : job.single_bytes) {
    MemorySpan piece = pieces[job.piece_of[byte.part]].memory;
    CO_RETURN_IF_ERROR(co_await PutSingleByte(&byte, std::move(piece)));
  }
  co_return job.Result(pieces.size(), options_.verify);
}

Task<Status> Core::ReadLane(ReadIntoJob* job) {
  for (;;) {
    const size_t slice = job->next.fetch_add(1);
    if (slice + 1 >= job->slices.size()) co_return OkStatus();
    Status read = co_await ReadSlice(job, job->slices[slice], job->slices[slice + 1]);
    if (read.ok()) continue;
    job->next = job->slices.size();  // nobody begins another one
    co_return read;
  }
}

Task<Status> Core::ReadSlice(ReadIntoJob* job, size_t begin, size_t end) {
  NACRE_ENTER(pass);
  CO_RETURN_IF_ERROR(entrance_.Check(*job->handle));
  if (!ReadsCached(*job->handle->inode) && WantsContentLease(*job->handle))
    co_await LeaseContent(job->handle);
  for (int attempt = 0;; ++attempt) {
    CO_RETURN_IF_ERROR(Aborted(job->cancellation));
    CO_ASSIGN_OR_RETURN(bool done, co_await TryReadSlice(job, begin, end, attempt >= kRaces));
    if (done) co_return OkStatus();
  }
}

// False: the objects were replaced meanwhile, by a truncation; once more.
Task<StatusOr<bool>> Core::TryReadSlice(ReadIntoJob* job, size_t begin, size_t end, bool last) {
  InodePtr inode = job->handle->inode;
  {
    std::lock_guard lock(job->mutex);
    std::erase_if(job->single_bytes,
                  [=](const SingleByte& byte) { return byte.part >= begin && byte.part < end; });
  }
  const Duration began = environment_.clock.Now();
  CO_ASSIGN_OR_RETURN(FileContent content, co_await ContentForReading(inode));
  for (size_t i = begin; i < end; ++i) {
    const ReadPiece& part = job->parts[i];
    job->sizes[i] = std::min(part.memory.length, content.size - std::min(content.size, part.offset));
    const uint64_t until = part.offset + job->sizes[i];
    if (content.layout != nullptr && HoldsData(*inode) && cache_->IsDirty(inode->data, part.offset, until))
      CO_RETURN_IF_ERROR(co_await data_->Send(inode, part.offset, until));
  }
  Cancellation::Use use;
  if (job->cancellation != nullptr) {
    use = job->cancellation->Begin();
    if (!use) co_return job->cancellation->status();
  }
  if (content.layout == nullptr) {
    CO_RETURN_IF_ERROR(co_await CopyInline(job, begin, end, content.inline_bytes));
    co_return true;
  }
  auto read = co_await ReadParts(job, begin, end, content.layout);
  if (ToErrno(read.status()) == ESTALE && !last) co_return false;  // its objects have been moved
  CO_ASSIGN_OR_RETURN(const bool complete, std::move(read));
  if (last || (complete && session_->ObjectsKeptSince(began))) co_return true;
  const bool replaced = co_await Replaced(inode, content);
  co_return !replaced;
}

// A device copies by itself.
Task<Status> Core::CopyInline(ReadIntoJob* job, size_t begin, size_t end,
                              std::shared_ptr<std::string> bytes) {
  for (size_t i = begin; i < end; ++i) {
    const ReadPiece& part = job->parts[i];
    if (job->sizes[i] == 0) continue;
    std::byte* from = reinterpret_cast<std::byte*>(bytes->data()) + part.offset;
    MemoryDevice* device = part.memory.region->device().get();
    if (device == nullptr) {
      std::memcpy(part.memory.data(), from, job->sizes[i]);
      continue;
    }
    if (job->sizes[i] == 1) {
      std::lock_guard lock(job->mutex);
      job->single_bytes.push_back({i, part.memory, *from});
      continue;
    }
    std::vector<iovec> target(1, iovec{part.memory.data(), job->sizes[i]});
    std::vector<iovec> source(1, iovec{from, job->sizes[i]});
    CO_RETURN_IF_ERROR(co_await device->CopyIn(std::move(target), std::move(source)));
  }
  std::lock_guard lock(job->mutex);
  job->paths.insert("mds");
  co_return OkStatus();
}

// False: not all of it was in the objects.
Task<StatusOr<bool>> Core::ReadParts(ReadIntoJob* job, size_t begin, size_t end, LayoutPtr layout) {
  std::map<MemoryDevice*, std::vector<IoPiece>> pieces;  // a request's memory is all of one kind
  std::set<const MemoryRegion*> regions;
  for (size_t i = begin; i < end; ++i) {
    const ReadPiece& part = job->parts[i];
    if (job->sizes[i] == 0) continue;
    regions.insert(part.memory.region.get());
    MemoryDevice* device = part.memory.region->device().get();
    IoPiece piece{part.offset, {part.memory.region, part.memory.offset, job->sizes[i]}};
    if (device != nullptr) CO_RETURN_IF_ERROR(job->TakeSingleBytes(*targets_, i, &piece, &pieces[nullptr]));
    if (piece.memory.length > 0) pieces[device].push_back(std::move(piece));
  }
  if (regions.empty()) co_return true;
  bool complete = true;
  for (auto& [device, some] : pieces) {
    if (some.empty()) continue;
    bool all = true;
    CO_RETURN_IF_ERROR(co_await io_->Read(entrance_.epoch(), job->handle->inode->fid, layout, std::move(some),
                                          &all, job->cancellation));
    complete = complete && all;
  }
  std::lock_guard lock(job->mutex);
  job->from_objects = true;
  for (uint32_t stripe = 0; stripe < layout->stripe_count(); ++stripe) {
    for (const MemoryRegion* region : regions) {
      std::string path = targets_->PathTo(layout->Ost(stripe), *region);
      if (!path.empty()) job->paths.insert(std::move(path));
    }
  }
  co_return complete;
}

// As this client sees it, what it holds back included.
Task<StatusOr<FileContent>> Core::ContentForReading(InodePtr inode) {
  CO_ASSIGN_OR_RETURN(FileContent content, co_await mds_->LoadContent(inode));
  if (content.inline_bytes != nullptr) {
    content.size = content.inline_bytes->size();
  } else if (HoldsData(*inode)) {
    std::lock_guard lock(inode->mutex);
    content.size = inode->Size();
  }
  co_return content;
}

// After a read that met holes, or took long: they are rare enough to make sure that they are none that a
// truncation has just torn, and that the file is where it was.
Task<bool> Core::Replaced(InodePtr inode, const FileContent& content) {
  if (HoldsData(*inode)) {
    std::lock_guard lock(inode->mutex);
    co_return inode->layout == nullptr ||
        inode->layout->object_sequence() != content.layout->object_sequence();
  }
  Caller system;
  auto now = co_await mds_->Refresh(system, inode->fid, false);
  co_return now.ok() && now->attr.change() != content.change;
}

}  // namespace nacre::client
