// Queues of nacre.hpp: hundreds of reads and writes under way, each of which ends by itself.
//
//   auto queue = client->open_queue(256);
//   std::vector<nacre::Request> requests;  // file.read_request(offset, span, user_data), ...
//   auto taken = queue->submit(requests);
//   nacre::Completion done[256];
//   auto count = queue->reap(32, done);  // waits until 32 are there
#pragma once

#include <nacre/nacre.h>
#include <nacre/expected.hpp>
#include <nacre/owner.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace nacre {
inline namespace v1 {

// One read or write of a queue. A value.
class Request {
 public:
  Request(nacre_request_operation operation, nacre_file file, uint64_t offset, nacre_buffer buffer,
          uint64_t buffer_offset, uint64_t length, uint64_t user_data)
      : raw_(NACRE_REQUEST_INIT) {
    raw_.user_data = user_data;
    raw_.operation = operation;
    raw_.file = file;
    raw_.offset = offset;
    raw_.buffer = buffer;
    raw_.buffer_offset = buffer_offset;
    raw_.length = length;
  }

 private:
  nacre_request raw_;
};
static_assert(sizeof(Request) == sizeof(nacre_request));

// How one of them went.
class [[nodiscard]] Completion {
 public:
  uint64_t user_data() const { return raw_.user_data; }
  bool ok() const { return raw_.result >= 0; }
  explicit operator bool() const { return ok(); }
  uint64_t bytes() const { return ok() ? static_cast<uint64_t>(raw_.result) : 0; }
  int error() const { return ok() ? 0 : static_cast<int>(-raw_.result); }  // an errno value

 private:
  nacre_completion raw_{};
};
static_assert(sizeof(Completion) == sizeof(nacre_completion));

// Owns its handle and can be moved; any threads may submit and reap at once. The destructor ends the reads
// and returns when nobody touches the memory of a request any more.
class Queue {
 public:
  Queue() = default;
  explicit Queue(nacre_queue queue) : owner_(queue) {}

  nacre_queue handle() const { return owner_.get(); }
  // How many were taken, the first ones; EAGAIN: there is room for none. `timeout` is that of each; 0: none.
  Expected<size_t> submit(std::span<const Request> requests,
                          std::chrono::nanoseconds timeout = std::chrono::nanoseconds(0)) const {
    const nacre_io_options options{sizeof(nacre_io_options), timeout.count()};
    size_t taken = 0;
    const auto* raw = reinterpret_cast<const nacre_request*>(requests.data());
    const int code = nacre_queue_submit(owner_.get(), raw, requests.size(), &options, &taken);
    if (code != 0) return Error::last(code);
    return taken;
  }
  // Waits until `least` are done, or all that are under way; fewer after `timeout` (negative: none). How many
  // were filled in.
  Expected<size_t> reap(size_t least, std::span<Completion> done,
                        std::chrono::nanoseconds timeout = std::chrono::nanoseconds(-1)) const {
    size_t count = 0;
    auto* raw = reinterpret_cast<nacre_completion*>(done.data());
    const int code = nacre_queue_reap(owner_.get(), least, timeout.count(), raw, done.size(), &count);
    if (code != 0 && code != EAGAIN) return Error::last(code);
    return count;
  }
  // Of poll(2): readable as long as there is something to reap. The caller's, to close.
  Expected<int> event_fd() const {
    int fd = -1;
    if (const int code = nacre_queue_event_fd(owner_.get(), &fd); code != 0) return Error::last(code);
    return fd;
  }
  Error cancel(uint64_t user_data) const { return Error::last(nacre_queue_cancel(owner_.get(), &user_data)); }
  Error cancel_all() const { return Error::last(nacre_queue_cancel(owner_.get(), nullptr)); }
  Error close() { return owner_.close(); }

 private:
  detail::Owner<nacre_queue, nacre_queue_close> owner_;
};

}  // namespace v1
}  // namespace nacre
