#include "client/scope.h"

#include <algorithm>

namespace nacre::client {
namespace {

constexpr int kShare = 8;

// By which the kernel may take over an answer later than it was given: the reply is under way, and whoever
// asked is woken.
constexpr Duration kLate = std::chrono::milliseconds(200);

// The time is noted in such steps: most promises find that they need not note it.
constexpr Duration kStep = std::chrono::milliseconds(16);

}  // namespace

Duration Scope::Promise(Duration now, Duration quiet, Duration most) {
  if (of_file()) return Duration(0);
  const Duration age = now - quiet_since;
  if (age < quiet) return Duration(0);
  const Duration valid = std::min(most, age / kShare);
  if (valid <= Duration(0)) return Duration(0);
  PromiseUntil(now + valid + kLate);
  return CoversFiles() ? now + valid : Duration(0);
}

void Scope::PromiseUntil(Duration time) {
  Duration promised = promised_.load();
  if (time <= promised) return;
  time += kStep;
  while (time > promised && !promised_.compare_exchange_weak(promised, time)) {
  }
}

// The thread that ends the scope reads paged_ afterwards: it finds the file, or this returns false.
bool Scope::NotePages(const Fid& fid) {
  std::lock_guard lock(mutex_);
  paged_.insert(fid);
  return good();
}

// As with the pages.
bool Scope::NoteData(const Fid& fid) {
  std::lock_guard lock(mutex_);
  with_data_.insert(fid);
  return good();
}

void Scope::Inherit(Scope& ended) {
  PromiseUntil(ended.promised());
  const std::vector<Fid> pages = ended.paged(), data = ended.with_data();
  std::lock_guard lock(mutex_);
  paged_.insert(pages.begin(), pages.end());
  with_data_.insert(data.begin(), data.end());
}

std::vector<Fid> Scope::with_data() {
  std::lock_guard lock(mutex_);
  return {with_data_.begin(), with_data_.end()};
}

std::vector<Fid> Scope::paged() {
  std::lock_guard lock(mutex_);
  return {paged_.begin(), paged_.end()};
}

}  // namespace nacre::client
