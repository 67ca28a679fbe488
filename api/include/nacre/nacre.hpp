// libnacre for C++20: owners and values over nacre.h, which has the meaning of everything here.
//
//   auto client = nacre::Client::from_path("/mnt/nacre/x");
//   if (!client) return fail(client.error());
//   auto file = client->open_file("/mnt/nacre/x");
//   auto buffer = client->register_buffer(pointer, size);  // host or device memory
//   nacre::Result read = file->read(0, buffer->span());
//   nacre::Future next = file->read_async(offset, buffer->span(0, 1 << 20), {.timeout = 2s});
//   std::vector<nacre::Result> many = nacre::readv(extents);  // of any files and buffers
//
// Header-only: the one implementation is the C library, whose ABI is stable. Nothing throws but what the
// standard containers do for want of memory; errors are values (Error, Expected, Result), and who takes the
// value of an Expected that has an error instead ends the program with its words. Client, File,
// Buffer and Future own their handle and can be moved; every method may be called from any thread; the
// destructor of a Buffer waits until nobody writes into it.
#pragma once

#include <nacre/nacre.h>
#include <nacre/expected.hpp>
#include <nacre/owner.hpp>
#include <nacre/queue.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nacre {
inline namespace v1 {

using Nanoseconds = std::chrono::nanoseconds;

enum class Verification {
  none = NACRE_VERIFIED_NONE,
  host = NACRE_VERIFIED_HOST,
  device = NACRE_VERIFIED_DEVICE
};

enum class Memory {
  host = NACRE_MEMORY_HOST,
  pinned = NACRE_MEMORY_PINNED,
  managed = NACRE_MEMORY_MANAGED,
  device = NACRE_MEMORY_DEVICE
};

// How one read or write went.
class [[nodiscard]] Result {
 public:
  Result() : raw_(NACRE_RESULT_INIT) {}
  explicit Result(const nacre_result& raw) : raw_(raw) {}
  explicit Result(const Error& error) : Result() {
    raw_.error = error.code();
    const size_t length = std::min(error.message().size(), sizeof raw_.message - 1);
    std::memcpy(raw_.message, error.message().data(), length);
    message_ = error.message();
  }
  // Of a call that has just returned `code` on this thread: the first error with all of its text.
  static std::vector<Result> all(const std::vector<nacre_result>& raw, int code) {
    std::vector<Result> results(raw.begin(), raw.end());
    for (Result& result : results) {
      if (code == 0 || result.ok()) continue;
      result.message_ = nacre_error_message();
      break;
    }
    return results;
  }

  explicit operator bool() const { return ok(); }
  bool ok() const { return raw_.error == 0; }
  uint64_t bytes() const { return raw_.bytes; }  // less than asked for: end of file
  std::string_view path() const { return raw_.path; }
  Verification verification() const { return static_cast<Verification>(raw_.verification); }
  Error error() const {
    return ok() ? Error() : Error(raw_.error, message_.empty() ? raw_.message : message_);
  }

 private:
  nacre_result raw_;
  std::string message_;  // all of it, if it is known; an array has room for less
};

// Part of a buffer. A value; does not own it.
struct Span {
  nacre_buffer buffer{};
  uint64_t offset = 0;
  uint64_t length = 0;

  Span subspan(uint64_t from) const { return {buffer, offset + from, length - std::min(from, length)}; }
  Span subspan(uint64_t from, uint64_t count) const { return {buffer, offset + from, count}; }
};

// Rows of equal length in a file.
struct Rows {
  uint64_t offset = 0;  // of the first
  uint64_t length = 0;  // of each
  uint64_t count = 1;
  uint64_t stride = 0;  // from one to the next
};

struct IoOptions {
  Nanoseconds timeout{0};  // 0: none

  nacre_io_options raw() const { return {sizeof(nacre_io_options), timeout.count()}; }
};

// One extent of a batch: a run of a file's bytes, or rows of it, and where they are to go.
class Extent {
 public:
  Extent(nacre_file file, uint64_t offset, Span to) : raw_(NACRE_EXTENT_INIT) {
    raw_.file = file;
    raw_.offset = offset;
    raw_.buffer = to.buffer;
    raw_.buffer_offset = to.offset;
    raw_.length = to.length;
  }
  // `stride` between the beginnings of rows in the buffer; 0: side by side. What does not fit into the span
  // is an error.
  Extent(nacre_file file, Rows rows, Span to, uint64_t stride = 0) : Extent(file, rows.offset, to) {
    raw_.length = rows.length;
    raw_.rows = rows.count;
    raw_.file_stride = rows.stride;
    raw_.buffer_stride = stride;
    // Beyond the span is beyond the buffer: the library says which.
    const uint64_t step = stride == 0 ? rows.length : stride;
    const bool fits = rows.count == 0 || (rows.length <= to.length &&
                                          (step == 0 || rows.count - 1 <= (to.length - rows.length) / step));
    if (!fits) raw_.buffer_offset = UINT64_MAX;
  }

 private:
  nacre_extent raw_;
};
static_assert(sizeof(Extent) == sizeof(nacre_extent));

// Reads or writes under way. Dropping it does not end them.
class Future {
 public:
  Future() : error_(EINVAL, "there is no read") {}
  // An error of the start stands in for all results.
  explicit Future(Error error, size_t count = 1) : error_(std::move(error)), count_(count) {}
  Future(nacre_future future, size_t count) : owner_(future), count_(count) {}

  bool ready() const { return wait_for(Nanoseconds(0)); }
  void wait() const { (void)nacre_future_wait(owner_.get(), -1); }
  // Whether it is done.
  bool wait_for(Nanoseconds time) const {
    return nacre_future_wait(owner_.get(), std::max<int64_t>(time.count(), 0)) != EAGAIN;
  }
  void cancel() { (void)nacre_future_cancel(owner_.get()); }
  // Adds 1 to an eventfd(2) when it is done.
  Error notify(int event_fd) const { return Error::last(nacre_future_notify(owner_.get(), event_fd)); }

  // Waits; as often as one likes.
  std::vector<Result> results() const {
    if (!owner_) return std::vector<Result>(count_, Result(error_));
    wait();
    std::vector<nacre_result> raw(count_, NACRE_RESULT_INIT);
    const int code = nacre_future_results(owner_.get(), raw.data(), raw.size());
    return Result::all(raw, code);
  }
  // Of the only extent, or the first that failed, or the first.
  Result get() const {
    std::vector<Result> all = results();
    for (const Result& result : all) {
      if (!result.ok()) return result;
    }
    return all.empty() ? Result() : all.front();
  }

 private:
  detail::Owner<nacre_future, nacre_future_free> owner_;
  Error error_;
  size_t count_ = 1;
};

// Many extents, of any files and buffers of one client, in one go.
inline std::vector<Result> readv(std::span<const Extent> extents, IoOptions options = {}) {
  std::vector<nacre_result> raw(extents.size(), NACRE_RESULT_INIT);
  const nacre_io_options io = options.raw();
  const int code =
      nacre_readv(reinterpret_cast<const nacre_extent*>(extents.data()), extents.size(), &io, raw.data());
  return Result::all(raw, code);
}

inline std::vector<Result> writev(std::span<const Extent> extents, IoOptions options = {}) {
  std::vector<nacre_result> raw(extents.size(), NACRE_RESULT_INIT);
  const nacre_io_options io = options.raw();
  const int code =
      nacre_writev(reinterpret_cast<const nacre_extent*>(extents.data()), extents.size(), &io, raw.data());
  return Result::all(raw, code);
}

namespace detail {

// `call` begins it and fills in the future.
template <typename Call>
Future begin(std::span<const Extent> extents, IoOptions options, Call call) {
  const nacre_io_options io = options.raw();
  nacre_future future{};
  const int code = call(reinterpret_cast<const nacre_extent*>(extents.data()), extents.size(), &io, &future);
  if (code != 0) return Future(Error::last(code), extents.size());
  return Future(future, extents.size());
}

}  // namespace detail

inline Future readv_async(std::span<const Extent> extents, IoOptions options = {}) {
  return detail::begin(extents, options, nacre_readv_async);
}
inline Future writev_async(std::span<const Extent> extents, IoOptions options = {}) {
  return detail::begin(extents, options, nacre_writev_async);
}

// In the order of a CUDA stream (cudaStream_t, CUstream).
inline Future readv_on_stream(void* stream, std::span<const Extent> extents, IoOptions options = {}) {
  return detail::begin(extents, options,
                       [stream](auto... rest) { return nacre_read_on_stream(stream, rest...); });
}
inline Future writev_on_stream(void* stream, std::span<const Extent> extents, IoOptions options = {}) {
  return detail::begin(extents, options,
                       [stream](auto... rest) { return nacre_write_on_stream(stream, rest...); });
}

// Registered memory.
class Buffer {
 public:
  Buffer() = default;
  Buffer(nacre_buffer buffer, size_t size) : owner_(buffer), size_(size) {}

  size_t size() const { return size_; }
  Span span() const { return {owner_.get(), 0, size_}; }
  Span span(uint64_t offset, uint64_t length) const { return {owner_.get(), offset, length}; }

  Expected<nacre_buffer_info> info() const {
    nacre_buffer_info info{};
    info.struct_size = sizeof info;
    if (const int code = nacre_buffer_get_info(owner_.get(), &info); code != 0) return Error::last(code);
    return info;
  }
  // Waits until nobody reads or writes the memory any more.
  Error release() { return owner_.close(); }

 private:
  detail::Owner<nacre_buffer, nacre_buffer_release> owner_;
  size_t size_ = 0;
};

// An open file.
class File {
 public:
  File() = default;
  explicit File(nacre_file file) : owner_(file) {}

  nacre_file handle() const { return owner_.get(); }
  Expected<uint64_t> size() const {
    uint64_t size = 0;
    if (const int code = nacre_file_size(owner_.get(), &size); code != 0) return Error::last(code);
    return size;
  }

  Result read(uint64_t offset, Span to, IoOptions options = {}) const {
    const Extent extent(owner_.get(), offset, to);
    return nacre::readv(std::span(&extent, 1), options).front();
  }
  Result read(Rows rows, Span to, IoOptions options = {}) const {
    const Extent extent(owner_.get(), rows, to);
    return nacre::readv(std::span(&extent, 1), options).front();
  }
  Future read_async(uint64_t offset, Span to, IoOptions options = {}) const {
    const Extent extent(owner_.get(), offset, to);
    return nacre::readv_async(std::span(&extent, 1), options);
  }
  Future read_on_stream(void* stream, uint64_t offset, Span to, IoOptions options = {}) const {
    const Extent extent(owner_.get(), offset, to);
    return nacre::readv_on_stream(stream, std::span(&extent, 1), options);
  }
  Result write(uint64_t offset, Span from) const {
    nacre_result raw = NACRE_RESULT_INIT;
    const int code = nacre_write(owner_.get(), offset, from.buffer, from.offset, from.length, &raw);
    return Result::all({raw}, code).front();
  }
  Future write_async(uint64_t offset, Span from, IoOptions options = {}) const {
    const Extent extent(owner_.get(), offset, from);
    return nacre::writev_async(std::span(&extent, 1), options);
  }
  Future write_on_stream(void* stream, uint64_t offset, Span from, IoOptions options = {}) const {
    const Extent extent(owner_.get(), offset, from);
    return nacre::writev_on_stream(stream, std::span(&extent, 1), options);
  }
  // For a Queue; `user_data` comes back with the completion.
  Request read_request(uint64_t offset, Span to, uint64_t user_data) const {
    return Request(NACRE_REQUEST_READ, owner_.get(), offset, to.buffer, to.offset, to.length, user_data);
  }
  Request write_request(uint64_t offset, Span from, uint64_t user_data) const {
    return Request(NACRE_REQUEST_WRITE, owner_.get(), offset, from.buffer, from.offset, from.length,
                   user_data);
  }
  Extent extent(uint64_t offset, Span to) const { return Extent(owner_.get(), offset, to); }
  Extent extent(Rows rows, Span to) const { return Extent(owner_.get(), rows, to); }

  Error sync() const { return Error::last(nacre_file_sync(owner_.get())); }
  // The error of an earlier write that could not be sent; the destructor drops it.
  Error close() { return owner_.close(); }

 private:
  detail::Owner<nacre_file, nacre_file_close> owner_;
};

struct ClientOptions {
  bool soft = false;      // a server that is away for soft_timeout: EIO
  bool verify = true;     // check what arrives against its checksums
  bool cache = true;      // ask for leases
  std::string name;       // in nacre status
  std::string transport;  // as in nacre.toml(5); "": as the mount, or "auto"
  Nanoseconds soft_timeout{0};
  uint64_t cache_bytes = 0;
  uint64_t threads = 0;
};

struct Capabilities {
  bool read_to_device = false;
  bool streams = false;
  uint64_t gpus = 0;
  std::string device;  // the mechanism, or why there is none
  std::string paths;   // a line for each server
};

// A connection to one filesystem.
class Client {
 public:
  Client() = default;

  static Expected<Client> open(const std::string& mds, const ClientOptions& options = {}) {
    return make(nacre_client_open, mds, options);
  }
  static Expected<Client> from_path(const std::string& path, const ClientOptions& options = {}) {
    return make(nacre_client_from_path, path, options);
  }

  // flags as open(2); O_RDONLY is 0.
  Expected<File> open_file(const std::string& path, int flags = 0, uint32_t mode = 0666) const {
    nacre_file file{};
    if (const int code = nacre_file_open(owner_.get(), path.c_str(), flags, mode, &file); code != 0)
      return Error::last(code);
    return File(file);
  }
  // The file that a descriptor of this process is open on, on a mount of this filesystem.
  Expected<File> file_from_fd(int fd) const {
    nacre_file file{};
    if (const int code = nacre_file_from_fd(owner_.get(), fd, &file); code != 0) return Error::last(code);
    return File(file);
  }
  Expected<Buffer> register_buffer(void* address, size_t size) const {
    nacre_buffer buffer{};
    if (const int code = nacre_buffer_register(owner_.get(), address, size, &buffer); code != 0)
      return Error::last(code);
    return Buffer(buffer, size);
  }
  // Of at most `depth` requests that are submitted and not yet reaped.
  Expected<Queue> open_queue(uint64_t depth) const {
    nacre_queue queue{};
    if (const int code = nacre_queue_open(owner_.get(), depth, &queue); code != 0) return Error::last(code);
    return Queue(queue);
  }
  Expected<Capabilities> capabilities() const {
    nacre_capabilities raw{};
    raw.struct_size = sizeof raw;
    if (const int code = nacre_client_capabilities(owner_.get(), &raw); code != 0) return Error::last(code);
    return Capabilities{(raw.flags & NACRE_CAN_READ_TO_DEVICE) != 0, (raw.flags & NACRE_CAN_USE_STREAMS) != 0,
                        raw.gpus, raw.device, raw.paths};
  }
  // Sends what was written. The error is that of a write which could not be sent; the destructor drops it.
  Error close() { return owner_.close(); }

 private:
  explicit Client(nacre_client client) : owner_(client) {}

  template <typename Open>
  static Expected<Client> make(Open open, const std::string& where, const ClientOptions& options) {
    nacre_client_options raw = NACRE_CLIENT_OPTIONS_INIT;
    raw.flags = (options.soft ? NACRE_CLIENT_SOFT : 0u) | (options.verify ? 0u : NACRE_CLIENT_NO_VERIFY) |
                (options.cache ? 0u : NACRE_CLIENT_NO_CACHE);
    raw.name = options.name.empty() ? nullptr : options.name.c_str();
    raw.transport = options.transport.empty() ? nullptr : options.transport.c_str();
    raw.soft_timeout = options.soft_timeout.count();
    raw.cache_bytes = options.cache_bytes;
    raw.threads = options.threads;
    nacre_client client{};
    if (const int code = open(where.c_str(), &raw, &client); code != 0) return Error::last(code);
    return Client(client);
  }

  detail::Owner<nacre_client, nacre_client_close> owner_;
};

}  // namespace v1
}  // namespace nacre
