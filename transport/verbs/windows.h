// Memory windows (type 2B): what a client shows of its memory to a server for the time of one call and in one
// direction. A window belongs to the queue pair that it is bound through; its key changes with each binding.
// A WindowPool is guarded by its owner.
#pragma once

#include <memory>
#include <vector>

#include "transport/verbs/channel.h"
#include "transport/verbs/domain.h"
#include "transport/verbs/message.h"

namespace nacre::verbs {

// A piece of registered memory.
struct RegisteredPiece {
  ibv_mr* region = nullptr;
  uint64_t address = 0;
  uint64_t length = 0;
};

// The stretches of memory that the windows of a call show, and in which of them each piece lies.
struct WindowPlan {
  std::vector<RegisteredPiece> stretches;
  std::vector<size_t> stretch_of;  // by piece
};

// Devices bind no more in one window: 2 GiB with mlx5. A quarter of that is far more than any call needs, and
// bounds what of the memory between its pieces a server can reach.
inline constexpr uint64_t kLongestWindow = 512 << 20;

// Few stretches that hold all pieces: `most`, or one for each region if there are more of these. Where pieces
// outnumber them, those with the least between them share one, as long as that is not longer than `longest`;
// so there may be more than `most`. A piece that is longer by itself has a stretch of its length.
WindowPlan PlanWindows(const std::vector<RegisteredPiece>& pieces, size_t most,
                       uint64_t longest = kLongestWindow);

class WindowPool {
 public:
  // UNAVAILABLE: the device has not so many left.
  static StatusOr<std::unique_ptr<WindowPool>> Make(std::shared_ptr<Domain> domain, size_t count);
  // Frees them; UNAVAILABLE is not told.
  ~WindowPool() { (void)Free(); }
  WindowPool(const WindowPool&) = delete;
  WindowPool& operator=(const WindowPool&) = delete;

  size_t available() const { return free_.size(); }
  // Unbinds and frees all: before the queue pair goes (a device waits for them, or refuses) and the memory
  // does. Nothing else is called afterwards. UNAVAILABLE: the device refuses, and memory may still be open.
  Status Free();

  // There must be one.
  ibv_mw* Take();
  void Return(ibv_mw* window) { free_.push_back(window); }

 private:
  explicit WindowPool(std::shared_ptr<Domain> domain) : domain_(std::move(domain)) {}

  const std::shared_ptr<Domain> domain_;
  std::vector<ibv_mw*> all_;
  std::vector<ibv_mw*> free_;
};

// With the next key of the window.
WindowBinding BindTo(ibv_mw* window, const RegisteredPiece& stretch, unsigned access);

}  // namespace nacre::verbs
