#include "common/guests.h"

namespace nacre {
namespace {

// By which the guests are found from an executor.
class GuestService : public asio::execution_context::service {
 public:
  static inline asio::execution_context::id id;

  explicit GuestService(asio::execution_context& context)
      : service(context), guests(std::make_shared<Guests>()) {}

  const std::shared_ptr<Guests> guests;

 private:
  void shutdown() override {}
};

}  // namespace

std::shared_ptr<Guests> Guests::MakeFor(asio::io_context* context) {
  return asio::make_service<GuestService>(*context).guests;
}

std::shared_ptr<Guests> Guests::Of(const Executor& executor) {
  asio::execution_context& context = executor.context();
  if (!asio::has_service<GuestService>(context)) return nullptr;
  return asio::use_service<GuestService>(context).guests;
}

bool Guests::TryEnter() {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  ++inside_;
  return true;
}

void Guests::Leave() {
  std::lock_guard lock(mutex_);
  if (--inside_ == 0) left_.notify_all();
}

void Guests::Close() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  left_.wait(lock, [this] { return inside_ == 0; });
}

}  // namespace nacre
