#include "client/directory_names.h"

namespace nacre::client {
namespace {

constexpr size_t kRoomOfFew = 1024;  // is not given back one by one

// A slot of the table, which is two thirds full on average, and the name where it does not fit in there.
uint64_t BytesOf(const std::string& name) {
  constexpr uint64_t kSlot = (sizeof(std::pair<std::string, Fid>) + 1) * 3 / 2;
  constexpr size_t kWithin = 15;
  return kSlot + (name.size() > kWithin ? name.size() + 16 : 0);
}

}  // namespace

NameKnown DirectoryNames::Find(const std::string& name) const {
  auto it = names_.find(name);
  if (it == names_.end()) return {complete_ ? NameKnown::Answer::kAbsent : NameKnown::Answer::kUnknown, {}};
  if (!it->second) return {NameKnown::Answer::kAbsent, {}};
  return {NameKnown::Answer::kPresent, it->second};
}

void DirectoryNames::Put(const std::string& name, Fid fid) {
  auto [it, fresh] = names_.try_emplace(name);
  if (it->second) --present_;
  if (fid) ++present_;
  it->second = fid;
  if (!fresh) return;
  bytes_ += BytesOf(name);
  budget_.CountNames(static_cast<int64_t>(BytesOf(name)));
}

void DirectoryNames::Erase(const std::string& name) {
  auto it = names_.find(name);
  if (it == names_.end()) return;
  if (it->second) --present_;
  names_.erase(it);
  bytes_ -= BytesOf(name);
  budget_.CountNames(-static_cast<int64_t>(BytesOf(name)));
  if (names_.empty() && names_.capacity() > kRoomOfFew) names_ = {};
}

void DirectoryNames::Set(const std::string& name, Fid fid) {
  if (!fid && complete_) return Erase(name);
  if (full() && !names_.contains(name)) Forget();
  Put(name, fid);
}

bool DirectoryNames::TryAdd(const std::string& name, Fid fid) {
  if (full() && !names_.contains(name)) return false;
  Put(name, fid);
  return true;
}

void DirectoryNames::Distrust(const std::string& name) {
  Erase(name);
  complete_ = false;
  ++drops_;
}

void DirectoryNames::Forget() {
  budget_.CountNames(-static_cast<int64_t>(bytes_));
  bytes_ = 0;
  present_ = 0;
  names_ = {};
  complete_ = false;
  ++drops_;
}

}  // namespace nacre::client
