#include "api/completions.h"

#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "api/call.h"

namespace nacre::api {
namespace {

Status Closed() { return ErrnoError(EBADF, "the queue was closed"); }

}  // namespace

Completions::~Completions() {
  if (event_fd_ >= 0) ::close(event_fd_);
}

StatusOr<size_t> Completions::Admit(size_t count) {
  std::lock_guard lock(mutex_);
  if (closed_) return Closed();
  count = std::min(count, ring_.size() - filled_ - under_way_);
  under_way_ += count;
  return count;
}

void Completions::Add(std::vector<Completed> done) {
  std::lock_guard lock(mutex_);
  const bool was_empty = filled_ == 0;
  for (Completed& one : done) ring_[(first_ + filled_++) % ring_.size()] = std::move(one);
  under_way_ -= done.size();
  if (was_empty && filled_ > 0) Signal();
  if (!wanted_.empty() && (filled_ >= *wanted_.begin() || under_way_ == 0)) some_.notify_all();
  if (under_way_ == 0) idle_.notify_all();
}

Status Completions::Reap(size_t least, Duration timeout, std::span<nacre_completion> out, size_t* taken,
                         Status* error) {
  least = std::min(least, out.size());
  std::unique_lock lock(mutex_);
  auto enough = [&] { return closed_ || filled_ >= least || under_way_ == 0; };
  if (!enough()) {
    const auto place = wanted_.insert(least);
    if (timeout < Duration(0))
      some_.wait(lock, enough);
    else
      some_.wait_for(lock, std::min<Duration>(timeout, kLongWait), enough);
    wanted_.erase(place);
  }
  if (closed_) return Closed();
  const bool in_time = enough();
  *taken = Take(out, error);
  if (in_time) return OkStatus();
  return ErrnoError(EAGAIN,
                    absl::StrFormat("%d of the %d requests waited for are done by now", *taken, least));
}

size_t Completions::Take(std::span<nacre_completion> out, Status* error) {
  const size_t count = std::min(out.size(), filled_);
  for (size_t i = 0; i < count; ++i) {
    Completed& one = ring_[first_];
    out[i] = one.raw;
    if (error->ok()) *error = std::move(one.status);
    one.status = OkStatus();
    first_ = (first_ + 1) % ring_.size();
  }
  filled_ -= count;
  if (count > 0 && filled_ == 0) Silence();
  return count;
}

StatusOr<int> Completions::Descriptor() {
  std::lock_guard lock(mutex_);
  if (closed_) return Closed();
  if (event_fd_ < 0) {
    event_fd_ = ::eventfd(filled_ > 0 ? 1 : 0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (event_fd_ < 0) return ErrnoError(errno, absl::StrFormat("eventfd: %s", std::strerror(errno)));
  }
  const int own = ::fcntl(event_fd_, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return ErrnoError(errno, absl::StrFormat("eventfd: %s", std::strerror(errno)));
  return own;
}

void Completions::Signal() const {
  const uint64_t one = 1;
  if (event_fd_ >= 0) (void)!::write(event_fd_, &one, sizeof one);
}

void Completions::Silence() const {
  uint64_t count = 0;
  if (event_fd_ >= 0) (void)!::read(event_fd_, &count, sizeof count);  // the program may have read it itself
}

void Completions::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  Signal();
  some_.notify_all();
}

void Completions::AwaitIdle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return under_way_ == 0; });
}

}  // namespace nacre::api
