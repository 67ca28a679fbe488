#include "daemon/mdt_compare.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "daemon/background.h"
#include "daemon/target_directory.h"
#include "server/kv/rocks_kv.h"
#include "server/metadata/keys.h"

namespace nacre {
namespace {

constexpr size_t kPageEntries = 1024;
constexpr size_t kMaxPlaces = 10;

StatusOr<std::unique_ptr<KvStore>> OpenStopped(const std::string& directory) {
  if (LookAtTarget(TargetKind::kMdt, directory) != TargetState::kThere)
    return ErrnoError(ENOENT, absl::StrFormat("there is no MDT in %s", directory));
  if (auto pid = FindProcess(directory + "/mds.pid"); pid.ok()) {
    return ErrnoError(EBUSY,
                      absl::StrFormat("%s is being served by process %d: stop it first", directory, *pid));
  }
  RocksKvOptions options;
  options.read_only = true;
  return OpenRocksKv(directory, options);
}

// The entries of an MDT, one after the other.
class Walk {
 public:
  explicit Walk(KvStore& store) : store_(store) {}

  // The one that the walk stands at; null: behind the last.
  StatusOr<const KvEntry*> Get() {
    if (at_ == page_.size() && more_) {
      ASSIGN_OR_RETURN(page_, store_.Scan(from_, mds::kMdtEnd, kPageEntries));
      at_ = 0;
      more_ = page_.size() == kPageEntries;
      if (more_) from_ = page_.back().key + '\0';
    }
    return at_ < page_.size() ? &page_[at_] : nullptr;
  }
  void Advance() { ++at_; }

 private:
  KvStore& store_;
  std::vector<KvEntry> page_;
  std::string from_;
  size_t at_ = 0;
  bool more_ = true;
};

void Note(const char* what, const std::string& key, MdtDifferences::Other* out) {
  ++out->differences;
  if (out->places.size() < kMaxPlaces) {
    out->places.push_back(absl::StrFormat("record %s %s", std::string(absl::BytesToHexString(key)), what));
  }
}

Status Compare(KvStore& first, KvStore& second, uint64_t* records, MdtDifferences::Other* out) {
  Walk ours(first), theirs(second);
  *records = 0;
  while (true) {
    ASSIGN_OR_RETURN(const KvEntry* one, ours.Get());
    ASSIGN_OR_RETURN(const KvEntry* other, theirs.Get());
    if (one == nullptr && other == nullptr) return OkStatus();
    const int order = one == nullptr ? 1 : other == nullptr ? -1 : one->key.compare(other->key);
    if (order < 0) {
      Note("is missing", one->key, out);
    } else if (order > 0) {
      Note("is too much", other->key, out);
    } else if (one->value != other->value) {
      Note("is another", one->key, out);
    }
    if (order <= 0) {
      ours.Advance();
      ++*records;
    }
    if (order >= 0) theirs.Advance();
  }
}

}  // namespace

bool MdtDifferences::equal() const {
  return std::all_of(others.begin(), others.end(), [](const Other& other) { return other.differences == 0; });
}

StatusOr<MdtDifferences> CompareMdts(const std::vector<std::string>& directories) {
  MdtDifferences out;
  ASSIGN_OR_RETURN(std::unique_ptr<KvStore> first, OpenStopped(directories.front()));
  for (size_t i = 1; i < directories.size(); ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<KvStore> second, OpenStopped(directories[i]));
    MdtDifferences::Other& other = out.others.emplace_back();
    other.directory = directories[i];
    RETURN_IF_ERROR(Compare(*first, *second, &out.records, &other));
  }
  return out;
}

}  // namespace nacre
