#include "compat/cufile/transfer.h"

#include <fcntl.h>

#include <cerrno>

namespace nacre::cufile {

nacre_extent ExtentOf(nacre_file file, const void* base, off_t memory_offset, size_t size, off_t offset) {
  nacre_extent extent = NACRE_EXTENT_INIT;
  extent.file = file;
  extent.offset = static_cast<uint64_t>(offset);
  extent.buffer_offset = reinterpret_cast<uint64_t>(base) + static_cast<uint64_t>(memory_offset);
  extent.length = size;
  return extent;
}

int Check(const File& file, const Request& request) {
  if (request.base == nullptr) return EINVAL;
  if (request.size == 0) return 0;
  if (request.offset < 0) return kInvalidValue;
  if (request.memory_offset < 0) return kInternalError;
  const int access = file.flags & O_ACCMODE;
  if (!request.writes && access == O_WRONLY) return kInvalidFileOpenFlag;
  if (request.writes && access == O_RDONLY) return EIO;
  if (!State::Get().Fits(request.base, request.memory_offset, request.size)) return kInvalidMappingRange;
  return 0;
}

ssize_t Transfer(CUfileHandle_t handle, const Request& request) {
  const FilePtr file = handle == nullptr ? nullptr : State::Get().Find(handle);
  if (file == nullptr) {
    errno = State::Get().WasDeregistered(handle) ? static_cast<int>(kHandleNotRegistered) : EINVAL;
    return -1;
  }
  if (const int error = Check(*file, request); error != 0) {
    errno = error;
    return -1;
  }
  if (request.size == 0) return 0;
  if (request.writes) return file->Write(request.base, request.memory_offset, request.size, request.offset);
  return file->Read(request.base, request.memory_offset, request.size, request.offset);
}

}  // namespace nacre::cufile
