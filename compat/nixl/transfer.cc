#include "compat/nixl/transfer.h"

#include <algorithm>
#include <cerrno>

#include "compat/nixl/answers.h"

namespace nacre::nixl {
namespace {

constexpr size_t kDepth = 4096;  // requests under way; more wait until there is room
constexpr size_t kReaped = 128;  // in one go

}  // namespace

Transfer::~Transfer() {
  if (active_) (void)queue_.cancel_all();
}

void Transfer::Add(const FileSegment& file, uint64_t offset, Span memory) {
  const uint64_t index = requests_.size();
  if (operation_ == NIXL_READ)
    requests_.push_back(file.file.read_request(offset, memory, index));
  else
    requests_.push_back(file.file.write_request(offset, memory, index));
  lengths_.push_back(memory.length);
  if (operation_ == NIXL_WRITE && file.sync) to_sync_.insert(&file.file);
}

Error Transfer::Open(const Client& client) {
  auto queue = client.open_queue(std::clamp<size_t>(requests_.size(), 1, kDepth));
  if (!queue) return queue.error();
  queue_ = *std::move(queue);
  return {};
}

nixl_status_t Transfer::Post() {
  if (active_) return NIXL_ERR_REPOST_ACTIVE;
  submitted_ = done_ = 0;
  given_up_ = false;
  outcome_ = NIXL_SUCCESS;
  active_ = true;
  return Submit();
}

// As many as there is room for.
nixl_status_t Transfer::Submit() {
  if (submitted_ == requests_.size() || given_up_) return NIXL_IN_PROG;
  auto taken = queue_.submit(std::span(requests_).subspan(submitted_));
  submitted_ += taken.value_or(0);
  if (taken || taken.error().code() == EAGAIN) return NIXL_IN_PROG;
  outcome_ = Fail(taken.error(), "a transfer");
  given_up_ = true;  // the others do not begin any more
  return NIXL_IN_PROG;
}

nixl_status_t Transfer::Check() {
  if (!active_) return outcome_;
  const nixl_status_t reaped = Reap();
  if (reaped != NIXL_SUCCESS) return reaped;
  if (done_ < submitted_) return Submit();
  if (submitted_ < requests_.size() && !given_up_) return Submit();
  if (outcome_ == NIXL_SUCCESS) SyncFiles();
  active_ = false;
  return outcome_;
}

// All that there is.
nixl_status_t Transfer::Reap() {
  for (;;) {
    Completion done[kReaped];
    auto count = queue_.reap(0, done, std::chrono::nanoseconds(0));
    if (!count) {
      active_ = false;
      return outcome_ = Fail(count.error(), "a transfer");
    }
    const std::string words = nacre_error_message();
    for (const Completion& one : std::span(done).first(*count)) Note(one, words.c_str());
    done_ += *count;
    if (*count < kReaped) return NIXL_SUCCESS;
  }
}

// The first error counts. `words` are those of the first one among its neighbours.
void Transfer::Note(const Completion& one, const char* words) {
  if (outcome_ != NIXL_SUCCESS) return;
  const uint64_t wanted = lengths_[one.user_data()];
  if (!one.ok())
    outcome_ = Fail(Error(one.error(), words), "a transfer");
  else if (one.bytes() < wanted)
    outcome_ = Fail(NIXL_ERR_BACKEND, "a transfer: " + std::to_string(one.bytes()) + " of " +
                                          std::to_string(wanted) + " bytes: the file ends there");
}

void Transfer::SyncFiles() {
  for (const File* file : to_sync_) {
    if (const Error error = file->sync()) outcome_ = Fail(error, "a transfer's sync");
  }
}

}  // namespace nacre::nixl
