#include "tests/sim/file_model.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cstring>
#include <ranges>
#include <span>

#include "common/ids.h"

namespace nacre::sim {
namespace {

std::string Where(uint64_t offset, std::byte got, std::byte want) {
  return absl::StrFormat("byte %d (block %d) is 0x%02x instead of 0x%02x", offset, offset / kBlockSize,
                         static_cast<int>(got), static_cast<int>(want));
}

}  // namespace

Bytes Pattern(uint64_t operation, uint64_t offset, uint64_t length) {
  Bytes bytes(length);
  for (uint64_t i = 0; i < length; ++i) {
    const uint64_t word = (operation * 0x9e3779b97f4a7c15u) ^ ((offset + i) * 0xbf58476d1ce4e5b9u);
    bytes[i] = static_cast<std::byte>((word >> 32) | 1);  // never zero: a hole is not data
  }
  return bytes;
}

void FileModel::Apply(const FileChange& change, Bytes* bytes) {
  switch (change.kind) {
    case FileChange::kTruncate:
      bytes->resize(change.offset);
      return;
    case FileChange::kZero: {
      const uint64_t end = std::min<uint64_t>(change.offset + change.length, bytes->size());
      if (change.offset < end) std::fill(bytes->begin() + change.offset, bytes->begin() + end, std::byte{0});
      return;
    }
    case FileChange::kWrite:
      if (change.data.empty()) return;
      if (bytes->size() < change.offset + change.length) bytes->resize(change.offset + change.length);
      std::copy(change.data.begin(), change.data.end(), bytes->begin() + change.offset);
      return;
  }
}

void FileModel::Begin(FileChange change) {
  change.ends.push_back(size());
  change.appends_before = appends_.size();
  if (change.append) appends_.push_back({change.offset, change.offset + change.length});
  recent_.push_back(std::move(change));
}

// Changes of one file that run at once touch different bytes: the order in which they are noted does not
// matter.
void FileModel::Acknowledge(uint64_t operation, Duration now, bool lazy, uint64_t answer) {
  for (FileChange& change : recent_) {
    if (change.operation != operation) continue;
    change.acknowledged = true;
    change.lazy = change.lazy || lazy;
    change.at = now;
    change.answer = answer;
    change.ends.push_back(size());
    Apply(change, &current_);
  }
}

void FileModel::Withdraw(uint64_t operation) {
  std::erase_if(recent_, [&](const FileChange& change) { return change.operation == operation; });
}

void FileModel::MakeDurable(const std::function<bool(const FileChange&)>& durable) {
  for (FileChange& change : recent_) {
    if (change.acknowledged && durable(change)) change.durable = true;
  }
  while (!recent_.empty() && recent_.front().durable) {
    Apply(recent_.front(), &base_);
    recent_.erase(recent_.begin());
  }
}

bool FileModel::MayMissSomethingOf(int client) const {
  return std::any_of(recent_.begin(), recent_.end(), [client](const FileChange& change) {
    return change.client == client && change.lazy && !change.durable;
  });
}

std::vector<uint64_t> FileModel::Acknowledged() const {
  std::vector<uint64_t> operations;
  for (const FileChange& change : recent_) {
    if (change.acknowledged && !change.durable) operations.push_back(change.operation);
  }
  return operations;
}

std::string FileModel::CheckRead(uint64_t offset, uint64_t asked, const Bytes& got) const {
  const uint64_t want = offset >= size() ? 0 : std::min(asked, size() - offset);
  if (got.size() != want) {
    return absl::StrFormat("a read of %d bytes at %d got %d instead of %d (size %d)", asked, offset,
                           got.size(), want, size());
  }
  if (want == 0) return {};
  auto [bad, expected] =
      std::mismatch(got.begin(), got.end(), current_.begin() + static_cast<ptrdiff_t>(offset));
  if (bad == got.end()) return {};
  return Where(offset + static_cast<uint64_t>(bad - got.begin()), *bad, *expected);
}

std::vector<size_t> FileModel::Touching(uint64_t block) const {
  const uint64_t begin = block * kBlockSize, end = begin + kBlockSize;
  std::vector<size_t> touching;
  for (size_t i = 0; i < recent_.size(); ++i) {
    const FileChange& change = recent_[i];
    const bool touches = change.kind == FileChange::kTruncate
                             ? change.offset < end
                             : change.offset < end && change.offset + change.length > begin;
    if (touches) touching.push_back(i);
  }
  return touching;
}

Bytes FileModel::DurableBlock(uint64_t block) const {
  const uint64_t begin = block * kBlockSize;
  Bytes content(kBlockSize);
  if (base_.size() > begin) {
    std::copy_n(base_.begin() + begin, std::min(kBlockSize, base_.size() - begin), content.begin());
  }
  return content;
}

FileModel::BlockPart FileModel::PartIn(uint64_t block, const FileChange& change) {
  const uint64_t begin = block * kBlockSize, end = begin + kBlockSize;
  const uint64_t from = std::max(change.offset, begin);
  const uint64_t to =
      change.kind == FileChange::kTruncate ? end : std::min(change.offset + change.length, end);
  BlockPart part{from - begin, Bytes(to - from)};
  if (change.kind == FileChange::kWrite) {
    std::copy_n(change.data.begin() + (from - change.offset), to - from, part.bytes.begin());
  }
  return part;
}

class FileModel::Explanation {
 public:
  // `there`: what the block reads as, up to the file's end; it must live as long as this does.
  Explanation(uint64_t block, std::span<const std::byte> there)
      : begin_(block * kBlockSize), there_(there), explained_(there.size()), nothing_(there.size()) {}

  // Takes the change for made if its bytes are there wherever no newer one has explained what is. Returns
  // whether it did.
  bool Take(const BlockPart& part) { return Take(part, nothing_); }

  // Likewise, as if it had been made before the last of these appends, or before the last two, …
  void TakeUnder(const BlockPart& part, std::span<const Appended> appends) {
    std::vector<bool> hidden = nothing_;
    for (const Appended& append : appends | std::views::reverse) {
      const uint64_t end = std::min(append.end, begin_ + there_.size());
      for (uint64_t at = std::max(append.begin, begin_); at < end; ++at) hidden[at - begin_] = true;
      if (Take(part, hidden)) return;
    }
  }

 private:
  // The change need not show where it is hidden.
  bool Take(const BlockPart& part, const std::vector<bool>& hidden) {
    const uint64_t end = std::min<uint64_t>(part.end(), there_.size());
    for (uint64_t at = part.from; at < end; ++at) {
      if (!explained_[at] && !hidden[at] && there_[at] != part.bytes[at - part.from]) return false;
    }
    for (uint64_t at = part.from; at < end; ++at) explained_[at] = explained_[at] || !hidden[at];
    return true;
  }

  const uint64_t begin_;
  const std::span<const std::byte> there_;
  std::vector<bool> explained_;
  const std::vector<bool> nothing_;  // is hidden
};

// Goes from the newest change to the oldest, and takes every one for made whose bytes are there wherever no
// newer one has explained what is. That finds an explanation if there is any: to take such a change for
// missing would leave more for the older ones to explain.
std::string FileModel::SettleBlock(uint64_t block, const Bytes& observed,
                                   const std::function<bool(const FileChange&)>& may_be_lost) const {
  const uint64_t begin = block * kBlockSize, length = std::min(kBlockSize, observed.size() - begin);
  const std::span<const std::byte> there(observed.data() + begin, length);
  const Bytes durable = DurableBlock(block);
  Bytes newest = durable;
  const std::vector<size_t> touching = Touching(block);
  for (size_t i : touching) {
    const BlockPart part = PartIn(block, recent_[i]);
    std::copy(part.bytes.begin(), part.bytes.end(), newest.begin() + static_cast<ptrdiff_t>(part.from));
  }
  Explanation explanation(block, there);
  bool possible = true;
  size_t optional = 0;
  for (size_t i : touching | std::views::reverse) {
    const FileChange& change = recent_[i];
    const BlockPart part = PartIn(block, change);
    const bool may_miss = may_be_lost(change);
    if (may_miss) ++optional;
    if (explanation.Take(part)) continue;
    possible = possible && may_miss;
    if (may_miss && change.kind != FileChange::kTruncate)
      explanation.TakeUnder(part, std::span(appends_).first(change.appends_before));
  }
  if (possible && explanation.Take({0, durable})) return {};
  const auto [bad, want] = std::mismatch(there.begin(), there.end(), newest.begin());
  return absl::StrFormat("%s, and no choice of the %d changes that may be lost explains the block",
                         Where(begin + static_cast<uint64_t>(bad - there.begin()), *bad, *want), optional);
}

bool FileModel::SizeAllowed(uint64_t size, const std::function<bool(const FileChange&)>& may_be_lost) const {
  std::vector<uint64_t> sizes = {base_.size()};  // all sizes that some choice leads to
  for (const FileChange& change : recent_) {
    std::vector<uint64_t> next;
    for (uint64_t before : sizes) {
      uint64_t after = before;
      if (change.kind == FileChange::kTruncate) after = change.offset;
      if (change.kind == FileChange::kWrite) after = std::max(before, change.offset + change.length);
      next.push_back(after);
      if (may_be_lost(change)) next.push_back(before);
      // A write that was not answered, or was held back, may have come as far as any of its blocks.
      if (change.kind == FileChange::kWrite && may_be_lost(change) && size > before && size < after) {
        next.push_back(size);
      }
    }
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    sizes = std::move(next);
  }
  return std::find(sizes.begin(), sizes.end(), size) != sizes.end();
}

void FileModel::MayHaveMoved() {
  std::vector<FileChange> parts;
  for (FileChange& change : recent_) {
    if (!change.acknowledged) change.ends.push_back(size());
    std::sort(change.ends.begin(), change.ends.end());
    for (const uint64_t end : change.ends) {
      if (change.kind != FileChange::kWrite || end <= change.offset || end >= change.offset + change.length)
        continue;
      const uint64_t before = end - change.offset;
      FileChange part = change;
      part.length = before;
      part.data.resize(before);
      parts.push_back(std::move(part));
      change.offset = end;
      change.length -= before;
      change.data.erase(change.data.begin(), change.data.begin() + static_cast<ptrdiff_t>(before));
    }
    parts.push_back(std::move(change));
  }
  recent_ = std::move(parts);
}

std::string FileModel::Settle(const Bytes& observed,
                              const std::function<bool(const FileChange&)>& surely_may_be_lost,
                              const std::function<bool(const FileChange&)>& may_wait) {
  auto may_be_lost = [&](const FileChange& change) {
    if (surely_may_be_lost(change)) return true;
    const bool cut = change.kind == FileChange::kTruncate && change.offset == 0;
    if (!cut || !may_wait || !may_wait(change)) return false;
    const auto later =
        std::find_if(recent_.begin(), recent_.end(), [&](const FileChange& one) { return &one == &change; });
    return std::all_of(std::next(later), recent_.end(), surely_may_be_lost);
  };
  if (!SizeAllowed(observed.size(), may_be_lost)) {
    return absl::StrFormat("the size is %d, %d was acknowledged, and no loss that is allowed explains it",
                           observed.size(), size());
  }
  for (uint64_t block = 0; block * kBlockSize < observed.size(); ++block) {
    std::string wrong = SettleBlock(block, observed, may_be_lost);
    if (!wrong.empty()) return wrong;
  }
  base_ = current_ = observed;
  recent_.clear();
  appends_.clear();
  return {};
}

}  // namespace nacre::sim
