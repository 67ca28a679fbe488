// Buffers that requests are read into. One holds a request of any size; the data of a WRITE lies in it at a
// page boundary. A thread keeps its buffer unless the request's task takes it for its data: then the thread
// takes another. Thread-safe. A few freed ones are kept for the next.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace nacre::fuse {

class BufferPool {
 public:
  explicit BufferPool(size_t keep = 8) : state_(std::make_shared<State>()) { state_->keep = keep; }

  // Room for `size` bytes (always the same size). The last owner gives it back.
  std::shared_ptr<std::byte> Take(size_t size);
  // How many have not been given back.
  size_t taken() const;

 private:
  struct State {
    std::mutex mutex;
    size_t keep = 0;
    size_t taken = 0;
    std::vector<void*> free;
    ~State();
  };
  std::shared_ptr<State> state_;
};

}  // namespace nacre::fuse
