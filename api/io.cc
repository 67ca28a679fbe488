// nacre.h: reading, writing, futures.
#include <absl/strings/str_format.h>

#include <cerrno>

#include "api/call.h"
#include "api/devices.h"
#include "api/operation.h"

namespace nacre::api {
namespace {

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
  const nacre_result result = Failed(status).Result();
  for (size_t i = 0; i < count; ++i)
    WriteStruct(result, stride, reinterpret_cast<std::byte*>(results) + i * stride);
}

Status TransferAll(Transfer transfer, const nacre_extent* extents, size_t count,
                   const nacre_io_options* options, nacre_result* results) {
  if (results == nullptr && count > 0) return ErrnoError(EINVAL, "results is null");
  StatusOr<std::shared_ptr<Operation>> operation = Operation::Make(transfer, extents, count, options);
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

Status TransferOne(Transfer transfer, const nacre_extent& extent, nacre_result* result) {
  nacre_result outcome = NACRE_RESULT_INIT;
  const Status done = TransferAll(transfer, &extent, 1, nullptr, &outcome);
  RETURN_IF_ERROR(NoteIn(result, outcome));
  return done;
}

// --- futures ---

Status BeginTransfer(Transfer transfer, const nacre_extent* extents, size_t count,
                     const nacre_io_options* options, nacre_future* future) {
  if (future == nullptr) return ErrnoError(EINVAL, "no place for the future is given");
  ASSIGN_OR_RETURN(std::shared_ptr<Operation> operation, Operation::Make(transfer, extents, count, options));
  operation->Begin();
  future->id = AllTables().futures.Add(std::move(operation));
  return OkStatus();
}

Status BeginOnStream(Transfer transfer, void* stream, const nacre_extent* extents, size_t count,
                     const nacre_io_options* options, nacre_future* future) {
  if (future == nullptr) return ErrnoError(EINVAL, "no place for the future is given");
  ASSIGN_OR_RETURN(std::shared_ptr<Operation> operation, Operation::Make(transfer, extents, count, options));
  ASSIGN_OR_RETURN(std::shared_ptr<gpu::StreamOrder> order, JoinStream(stream, *operation));
  operation->Begin(std::move(order));
  future->id = AllTables().futures.Add(std::move(operation));
  return OkStatus();
}

Status NoFuture(nacre_future future) {
  return ErrnoError(EBADF, absl::StrFormat("future %d is not there: it was freed, or never made", future.id));
}

StatusOr<std::shared_ptr<Operation>> FindFuture(nacre_future future) {
  RETURN_IF_ERROR(CheckProcess());
  std::shared_ptr<Operation> operation = AllTables().futures.Find(future.id);
  if (operation != nullptr) return operation;
  return NoFuture(future);
}

Status Await(Operation& operation, int64_t timeout) {
  if (operation.Wait(std::chrono::nanoseconds(timeout))) return OkStatus();
  return ErrnoError(EAGAIN, "it is still under way");
}

Status Await(nacre_future future, int64_t timeout) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Operation> operation, FindFuture(future));
  return Await(*operation, timeout);
}

Status NotifyAt(nacre_future future, int event_fd) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Operation> operation, FindFuture(future));
  ASSIGN_OR_RETURN(std::shared_ptr<EventFd> event, EventFd::Duplicate(event_fd));
  operation->Notify(std::move(event));
  return OkStatus();
}

Status Cancel(nacre_future future) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Operation> operation, FindFuture(future));
  operation->Cancel(ErrnoError(ECANCELED, "it was cancelled"));
  return OkStatus();
}

Status TakeResults(nacre_future future, nacre_result* results, size_t count) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Operation> operation, FindFuture(future));
  RETURN_IF_ERROR(Await(*operation, 0));
  return operation->Results(results, count);
}

Status Free(nacre_future future) {
  RETURN_IF_ERROR(CheckProcess());
  return AllTables().futures.Take(future.id) != nullptr ? OkStatus() : NoFuture(future);
}

}  // namespace
}  // namespace nacre::api

using nacre::api::Answer;
using nacre::api::Transfer;

extern "C" {

int nacre_read(nacre_file file, uint64_t offset, nacre_buffer buffer, uint64_t buffer_offset, uint64_t length,
               nacre_result* result) {
  const nacre_extent run = nacre::api::OneRun(file, offset, buffer, buffer_offset, length);
  return Answer(nacre::api::TransferOne(Transfer::kRead, run, result));
}

int nacre_write(nacre_file file, uint64_t offset, nacre_buffer buffer, uint64_t buffer_offset,
                uint64_t length, nacre_result* result) {
  const nacre_extent run = nacre::api::OneRun(file, offset, buffer, buffer_offset, length);
  return Answer(nacre::api::TransferOne(Transfer::kWrite, run, result));
}

int nacre_readv(const nacre_extent* extents, size_t count, const nacre_io_options* options,
                nacre_result* results) {
  return Answer(nacre::api::TransferAll(Transfer::kRead, extents, count, options, results));
}

int nacre_writev(const nacre_extent* extents, size_t count, const nacre_io_options* options,
                 nacre_result* results) {
  return Answer(nacre::api::TransferAll(Transfer::kWrite, extents, count, options, results));
}

int nacre_readv_async(const nacre_extent* extents, size_t count, const nacre_io_options* options,
                      nacre_future* future) {
  return Answer(nacre::api::BeginTransfer(Transfer::kRead, extents, count, options, future));
}

int nacre_writev_async(const nacre_extent* extents, size_t count, const nacre_io_options* options,
                       nacre_future* future) {
  return Answer(nacre::api::BeginTransfer(Transfer::kWrite, extents, count, options, future));
}

int nacre_read_on_stream(void* stream, const nacre_extent* extents, size_t count,
                         const nacre_io_options* options, nacre_future* future) {
  return Answer(nacre::api::BeginOnStream(Transfer::kRead, stream, extents, count, options, future));
}

int nacre_write_on_stream(void* stream, const nacre_extent* extents, size_t count,
                          const nacre_io_options* options, nacre_future* future) {
  return Answer(nacre::api::BeginOnStream(Transfer::kWrite, stream, extents, count, options, future));
}

int nacre_future_wait(nacre_future future, int64_t timeout) {
  return Answer(nacre::api::Await(future, timeout));
}

int nacre_future_notify(nacre_future future, int event_fd) {
  return Answer(nacre::api::NotifyAt(future, event_fd));
}

int nacre_future_cancel(nacre_future future) { return Answer(nacre::api::Cancel(future)); }

int nacre_future_results(nacre_future future, nacre_result* results, size_t count) {
  return Answer(nacre::api::TakeResults(future, results, count));
}

int nacre_future_free(nacre_future future) { return Answer(nacre::api::Free(future)); }

}  // extern "C"
