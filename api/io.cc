// nacre.h: reading, writing, futures.
#include <absl/strings/str_format.h>

#include <cerrno>

#include "api/call.h"
#include "api/devices.h"
#include "api/operation.h"
#include "transport/memory_device.h"

namespace nacre::api {
namespace {

constexpr uint64_t kWriteStep = 4 << 20;  // given to the client in one go

// With the status as well, so that it is the answer and the thread's message.
Status NoteIn(nacre_result* result, const nacre_result& outcome) {
  if (result == nullptr) return OkStatus();
  nacre_result known = NACRE_RESULT_INIT;
  RETURN_IF_ERROR(ReadStruct(result, result->struct_size, &known));
  WriteStruct(outcome, result->struct_size, result);
  return OkStatus();
}

// An error of the arguments as a whole is that of each extent.
void NoteInAll(const Status& status, nacre_result* results, size_t count) {
  if (results == nullptr || count == 0) return;
  const uint64_t stride = results->struct_size;
  if (stride < sizeof(uint64_t) || stride > kMaxStructSize) return;
  nacre_result result = NACRE_RESULT_INIT;
  SetError(status, &result);
  for (size_t i = 0; i < count; ++i)
    WriteStruct(result, stride, reinterpret_cast<std::byte*>(results) + i * stride);
}

Status ReadAll(const nacre_extent* extents, size_t count, const nacre_io_options* options,
               nacre_result* results) {
  if (results == nullptr && count > 0) return ErrnoError(EINVAL, "results is null");
  StatusOr<std::shared_ptr<Operation>> operation = Operation::Make(extents, count, options);
  if (!operation.ok()) {
    NoteInAll(operation.status(), results, count);
    return operation.status();
  }
  (*operation)->Begin();
  (*operation)->Wait(Duration(-1));
  return (*operation)->Results(results, count);
}

nacre_extent OneRun(nacre_file file, uint64_t offset, nacre_buffer buffer, uint64_t buffer_offset,
                    uint64_t length) {
  nacre_extent extent = NACRE_EXTENT_INIT;
  extent.file = file;
  extent.offset = offset;
  extent.buffer = buffer;
  extent.buffer_offset = buffer_offset;
  extent.length = length;
  return extent;
}

Status ReadOne(const nacre_extent& extent, nacre_result* result) {
  nacre_result outcome = NACRE_RESULT_INIT;
  const Status read = ReadAll(&extent, 1, nullptr, &outcome);
  RETURN_IF_ERROR(NoteIn(result, outcome));
  return read;
}

// --- writing ---

Task<StatusOr<size_t>> WriteStep(client::FileSystem* filesystem, client::HandlePtr handle, uint64_t offset,
                                 MemorySpan from) {
  const std::shared_ptr<MemoryDevice> device = from.region->device();
  StagingBuffer staged;
  std::span<const std::byte> bytes;
  if (device == nullptr) {
    bytes = std::span(from.data(), from.length);
  } else {
    CO_ASSIGN_OR_RETURN(staged, co_await device->Stage(from.length));
    const size_t size = std::min<size_t>(from.length, staged.bytes.size());
    std::vector<iovec> target(1, iovec{staged.bytes.data(), size});
    std::vector<iovec> source(1, iovec{from.data(), size});
    CO_RETURN_IF_ERROR(co_await device->CopyOut(std::move(target), std::move(source)));
    bytes = staged.bytes.first(size);
  }
  co_return co_await filesystem->Write(std::move(handle), offset, std::span(&bytes, 1));
}

Task<Status> WriteRun(CheckedExtent extent, uint64_t* written) {
  client::FileSystem* filesystem = &extent.file->client()->filesystem();
  while (*written < extent.raw.length) {
    const MemorySpan from{extent.buffer->region(), extent.raw.buffer_offset + *written,
                          std::min(extent.raw.length - *written, kWriteStep)};
    CO_ASSIGN_OR_RETURN(size_t size, co_await WriteStep(filesystem, extent.file->handle(),
                                                        extent.raw.offset + *written, from));
    *written += size;
  }
  co_return OkStatus();
}

Status WriteOne(const nacre_extent& raw, uint64_t* written) {
  ASSIGN_OR_RETURN(CheckedExtent extent, CheckExtent(raw));
  RETURN_IF_ERROR(CheckStillThere(*extent.buffer));
  const std::shared_ptr<Buffer> buffer = extent.buffer;
  if (!buffer->Begin()) return ErrnoError(EBADF, "the buffer is being released");
  Connection& connection = extent.file->client()->connection();
  const Status status = connection.Run(WriteRun(std::move(extent), written));
  buffer->End();
  return status;
}

Status Write(const nacre_extent& extent, nacre_result* result) {
  nacre_result outcome = NACRE_RESULT_INIT;
  uint64_t written = 0;
  const Status status = WriteOne(extent, &written);
  if (!status.ok()) SetError(status, &outcome);
  outcome.bytes = written;
  RETURN_IF_ERROR(NoteIn(result, outcome));
  return status;
}

// --- futures ---

Status BeginReading(const nacre_extent* extents, size_t count, const nacre_io_options* options,
                    nacre_future* future) {
  if (future == nullptr) return ErrnoError(EINVAL, "no place for the future is given");
  ASSIGN_OR_RETURN(std::shared_ptr<Operation> operation, Operation::Make(extents, count, options));
  operation->Begin();
  future->id = AllTables().futures.Add(std::move(operation));
  return OkStatus();
}

Status BeginOnStream(void* stream, const nacre_extent* extents, size_t count, const nacre_io_options* options,
                     nacre_future* future) {
  if (future == nullptr) return ErrnoError(EINVAL, "no place for the future is given");
  ASSIGN_OR_RETURN(std::shared_ptr<Operation> operation, Operation::Make(extents, count, options));
  ASSIGN_OR_RETURN(std::shared_ptr<gpu::StreamOrder> order, JoinStream(stream, *operation));
  operation->Begin(std::move(order));
  future->id = AllTables().futures.Add(std::move(operation));
  return OkStatus();
}

StatusOr<std::shared_ptr<Operation>> FindFuture(nacre_future future) {
  RETURN_IF_ERROR(CheckProcess());
  std::shared_ptr<Operation> operation = AllTables().futures.Find(future.id);
  if (operation != nullptr) return operation;
  return ErrnoError(EBADF, absl::StrFormat("future %d is not there: it was freed, or never made", future.id));
}

Status Await(nacre_future future, int64_t timeout) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Operation> operation, FindFuture(future));
  if (operation->Wait(std::chrono::nanoseconds(timeout))) return OkStatus();
  return ErrnoError(EAGAIN, "the reads are still under way");
}

Status Cancel(nacre_future future) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Operation> operation, FindFuture(future));
  operation->Cancel(ErrnoError(ECANCELED, "the read was cancelled"));
  return OkStatus();
}

Status TakeResults(nacre_future future, nacre_result* results, size_t count) {
  RETURN_IF_ERROR(Await(future, 0));
  ASSIGN_OR_RETURN(const std::shared_ptr<Operation> operation, FindFuture(future));
  return operation->Results(results, count);
}

Status Free(nacre_future future) {
  RETURN_IF_ERROR(FindFuture(future).status());
  AllTables().futures.Take(future.id);
  return OkStatus();
}

}  // namespace
}  // namespace nacre::api

using nacre::api::Answer;

extern "C" {

int nacre_read(nacre_file file, uint64_t offset, nacre_buffer buffer, uint64_t buffer_offset, uint64_t length,
               nacre_result* result) {
  return Answer(nacre::api::ReadOne(nacre::api::OneRun(file, offset, buffer, buffer_offset, length), result));
}

int nacre_write(nacre_file file, uint64_t offset, nacre_buffer buffer, uint64_t buffer_offset,
                uint64_t length, nacre_result* result) {
  return Answer(nacre::api::Write(nacre::api::OneRun(file, offset, buffer, buffer_offset, length), result));
}

int nacre_readv(const nacre_extent* extents, size_t count, const nacre_io_options* options,
                nacre_result* results) {
  return Answer(nacre::api::ReadAll(extents, count, options, results));
}

int nacre_readv_async(const nacre_extent* extents, size_t count, const nacre_io_options* options,
                      nacre_future* future) {
  return Answer(nacre::api::BeginReading(extents, count, options, future));
}

int nacre_read_on_stream(void* stream, const nacre_extent* extents, size_t count,
                         const nacre_io_options* options, nacre_future* future) {
  return Answer(nacre::api::BeginOnStream(stream, extents, count, options, future));
}

int nacre_future_wait(nacre_future future, int64_t timeout) {
  return Answer(nacre::api::Await(future, timeout));
}

int nacre_future_cancel(nacre_future future) { return Answer(nacre::api::Cancel(future)); }

int nacre_future_results(nacre_future future, nacre_result* results, size_t count) {
  return Answer(nacre::api::TakeResults(future, results, count));
}

int nacre_future_free(nacre_future future) { return Answer(nacre::api::Free(future)); }

}  // extern "C"
