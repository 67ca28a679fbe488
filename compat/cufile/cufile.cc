// The functions of libcufile.so.0, as programs call them (NVIDIA's cuFile API reference, CUDA 13). Each does
// no more than to check what it is given and to call the part that does it. Answers follow NVIDIA's library,
// of which programs know the ways: docs/cufile.md says where ours differ.
#include <cerrno>
#include <cstring>

#include "compat/cufile/abi.h"
#include "compat/cufile/batch.h"
#include "compat/cufile/parameters.h"
#include "compat/cufile/state.h"
#include "compat/cufile/streams.h"
#include "compat/cufile/transfer.h"

using namespace nacre::cufile;

namespace {

constexpr int kVersion = 1150;  // 1000 * major + 10 * minor: of the library whose answers these are

CUfileError_t IfOpen() { return Answer(State::Get().use_count() > 0 ? kSuccess : kDriverNotInitialized); }

CUfileError_t OnStream(CUfileHandle_t handle, bool writes, void* base, LateArguments arguments,
                       CUstream stream) {
  if (handle == nullptr || base == nullptr || arguments.size == nullptr || arguments.offset == nullptr ||
      arguments.memory_offset == nullptr || arguments.done == nullptr)
    return Answer(kInvalidValue);
  const FilePtr file = State::Get().Find(handle);
  if (file == nullptr) return Answer(kHandleNotRegistered);
  CUfileError_t foreign;
  if (file->Async(writes, base, arguments.size, arguments.offset, arguments.memory_offset, arguments.done,
                  stream, &foreign) != nullptr)
    return foreign;
  return TransferOnStream(file, handle, writes, base, arguments, stream);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// --- the driver ---

CUfileError_t cuFileDriverOpen() {
  State::Get().Open();
  return Answer(kSuccess);
}
CUfileError_t cuFileDriverClose() { return State::Get().Close(); }
CUfileError_t cuFileDriverClose_v2() { return State::Get().Close(); }
long cuFileUseCount() { return State::Get().use_count(); }

CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t* properties) {
  if (properties == nullptr) return Answer(kInvalidValue);
  State::Get().OpenIfNobodyHas();
  *properties = Properties();
  return Answer(kSuccess);
}
CUfileError_t cuFileDriverSetPollMode(bool, size_t) { return IfOpen(); }
CUfileError_t cuFileDriverSetMaxDirectIOSize(size_t kib) {
  if (kib == 0) return Answer(kDriverUnsupportedLimit);
  return IfOpen();
}
CUfileError_t cuFileDriverSetMaxCacheSize(size_t) { return IfOpen(); }
CUfileError_t cuFileDriverSetMaxPinnedMemSize(size_t) { return IfOpen(); }
CUfileError_t cuFileDriverSetP2PFlags(unsigned) { return IfOpen(); }
CUfileError_t cuFileDriverGetP2PFlags(unsigned* flags) {
  if (flags == nullptr) return Answer(kInvalidValue);
  *flags = 0;
  return Answer(kSuccess);
}

CUfileError_t cuFileGetVersion(int* version) {
  if (version == nullptr) return Answer(kInvalidValue);
  *version = kVersion;
  return Answer(kSuccess);
}

CUfileError_t cuFileGetBARSizeInKB(int gpu, size_t* kib) {
  if (kib == nullptr || gpu < 0) return Answer(kInvalidValue);
  *kib = 0;
  return Answer(kSuccess);
}

CUfileError_t cuFileExportPCIeTopology(const char*) { return Answer(kIoNotSupported); }

// --- files and memory ---

CUfileError_t cuFileHandleRegister(CUfileHandle_t* handle, CUfileDescr_t* descriptor) {
  if (handle == nullptr || descriptor == nullptr) return Answer(kInvalidValue);
  State::Get().OpenIfNobodyHas();
  return State::Get().Register(*descriptor, handle);
}
void cuFileHandleDeregister(CUfileHandle_t handle) { State::Get().Deregister(handle); }

CUfileError_t cuFileBufRegister(const void* base, size_t size, int) {
  State::Get().OpenIfNobodyHas();
  return State::Get().RegisterMemory(base, size);
}
CUfileError_t cuFileBufDeregister(const void* base) { return State::Get().DeregisterMemory(base); }

ssize_t cuFileRead(CUfileHandle_t handle, void* base, size_t size, off_t offset, off_t memory_offset) {
  return Transfer(handle, {false, base, memory_offset, size, offset});
}
ssize_t cuFileWrite(CUfileHandle_t handle, const void* base, size_t size, off_t offset, off_t memory_offset) {
  return Transfer(handle, {true, const_cast<void*>(base), memory_offset, size, offset});
}

// --- batches ---

CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t* batch, unsigned capacity) {
  State::Get().OpenIfNobodyHas();
  return Batch::Make(capacity, batch);
}
CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t handle, unsigned count, CUfileIOParams_t* entries,
                                  unsigned) {
  const std::shared_ptr<Batch> batch = Batch::Find(handle);
  return batch == nullptr ? Answer(kInternalBatchSubmitError) : batch->Submit(entries, count);
}
CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t handle, unsigned least, unsigned* count,
                                     CUfileIOEvents_t* events, timespec* timeout) {
  const std::shared_ptr<Batch> batch = Batch::Find(handle);
  return batch == nullptr ? Answer(kInternalBatchGetStatusError) : batch->Reap(least, count, events, timeout);
}
CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t handle) {
  if (const std::shared_ptr<Batch> batch = Batch::Find(handle)) batch->Cancel();
  return Answer(kSuccess);
}
void cuFileBatchIODestroy(CUfileBatchHandle_t handle) { Batch::Destroy(handle); }

// --- streams ---

CUfileError_t cuFileReadAsync(CUfileHandle_t handle, void* base, size_t* size, off_t* offset,
                              off_t* memory_offset, ssize_t* done, CUstream stream) {
  return OnStream(handle, false, base, {size, offset, memory_offset, done}, stream);
}
CUfileError_t cuFileWriteAsync(CUfileHandle_t handle, void* base, size_t* size, off_t* offset,
                               off_t* memory_offset, ssize_t* done, CUstream stream) {
  return OnStream(handle, true, base, {size, offset, memory_offset, done}, stream);
}
// The flags promise properties of the arguments, which saves NVIDIA's library work. Ours has no use for them.
CUfileError_t cuFileStreamRegister(CUstream, unsigned flags) {
  return Answer((flags & ~0xfu) == 0 ? kSuccess : kInvalidValue);
}
CUfileError_t cuFileStreamDeregister(CUstream) { return Answer(kSuccess); }

// --- settings and statistics ---

CUfileError_t cuFileGetParameterSizeT(int parameter, size_t* value) { return GetSize(parameter, value); }
CUfileError_t cuFileSetParameterSizeT(int parameter, size_t value) { return SetSize(parameter, value); }
CUfileError_t cuFileGetParameterMinMaxValue(int parameter, size_t* least, size_t* most) {
  return GetSizeRange(parameter, least, most);
}
CUfileError_t cuFileGetParameterBool(int parameter, bool* value) { return GetBool(parameter, value); }
CUfileError_t cuFileSetParameterBool(int parameter, bool value) { return SetBool(parameter, value); }
CUfileError_t cuFileGetParameterString(int parameter, char* text, int room) {
  return GetString(parameter, text, room);
}
CUfileError_t cuFileSetParameterString(int parameter, const char* text) { return SetString(parameter, text); }
CUfileError_t cuFileGetParameterPosixPoolSlabArray(size_t*, size_t*, int) { return Answer(kInvalidValue); }
CUfileError_t cuFileSetParameterPosixPoolSlabArray(const size_t*, const size_t*, int) {
  return Answer(kSuccess);
}

// None are counted: level 0, which is NVIDIA's default, is the only one. `nacre status` counts for all
// clients.
CUfileError_t cuFileSetStatsLevel(int level) { return Answer(level == 0 ? kSuccess : kInvalidValue); }
CUfileError_t cuFileGetStatsLevel(int* level) {
  if (level == nullptr) return Answer(kInvalidValue);
  *level = 0;
  return Answer(kSuccess);
}
CUfileError_t cuFileStatsStart() { return Answer(kSuccess); }
CUfileError_t cuFileStatsStop() { return Answer(kSuccess); }
CUfileError_t cuFileStatsReset() { return Answer(kSuccess); }
CUfileError_t cuFileGetStatsL1(void*) { return Answer(kInvalidValue); }
CUfileError_t cuFileGetStatsL2(void*) { return Answer(kInvalidValue); }
CUfileError_t cuFileGetStatsL3(void*) { return Answer(kInvalidValue); }

}  // extern "C"
#pragma GCC visibility pop
