#include "server/metadata/backup.h"

#include <absl/strings/str_format.h>

#include <cerrno>

#include "common/log.h"
#include "server/metadata/backup_format.h"
#include "server/metadata/keys.h"
#include "server/metadata/records.h"

namespace nacre {
namespace {

class MdtBackup : public BackupSource {
 public:
  MdtBackup(std::unique_ptr<KvSnapshot> snapshot, mds::BackupHeader header, uint64_t expected_bytes,
            std::atomic<int>* under_way)
      : snapshot_(std::move(snapshot)),
        header_(std::move(header)),
        expected_bytes_(expected_bytes),
        under_way_(under_way) {}
  ~MdtBackup() override { --*under_way_; }

  uint64_t expected_bytes() const override { return expected_bytes_; }

  StatusOr<std::optional<std::string>> Next() override {
    if (ended_) return std::nullopt;
    if (!begun_) {
      begun_ = true;
      return encoder_.Begin(header_);
    }
    ASSIGN_OR_RETURN(std::vector<KvEntry> entries, snapshot_->Read(from_, mds::kBackupBlockBytes));
    while (!entries.empty() && entries.back().key >= mds::kMdtEnd) entries.pop_back();
    if (entries.empty()) {
      ended_ = true;
      LogInfo("a backup of the MDT has been sent");
      return encoder_.End();
    }
    from_ = entries.back().key + '\0';
    return encoder_.Block(entries);
  }

 private:
  const std::unique_ptr<KvSnapshot> snapshot_;
  const mds::BackupHeader header_;
  const uint64_t expected_bytes_;
  std::atomic<int>* const under_way_;
  mds::BackupEncoder encoder_;
  std::string from_;
  bool begun_ = false, ended_ = false;
};

StatusOr<mds::BackupHeader> MakeHeader(KvSnapshot& snapshot, const WallTime& now) {
  const std::string key = mds::TableKey(mds::Table::kSuperblock);
  ASSIGN_OR_RETURN(std::vector<KvEntry> first, snapshot.Read(key, 1));
  if (first.empty() || first[0].key != key) return absl::DataLossError("no superblock: this is no MDT");
  ASSIGN_OR_RETURN(mds::Superblock superblock, mds::ParseSuperblock(first[0].value));
  mds::BackupHeader header;
  header.cluster_uuid = superblock.cluster_uuid;
  header.mdt_version = superblock.version;
  header.made_seconds = now.seconds;
  header.mds_version = NACRE_VERSION;
  return header;
}

}  // namespace

StatusOr<std::unique_ptr<BackupSource>> MdtBackups::BeginBackup() {
  // From here on it is counted, and from the source's end on no more.
  if (++under_way_ > kAtOnce) {
    --under_way_;
    return ErrnoError(
        EBUSY,
        absl::StrFormat("%d backups of this MDT are being made already: wait for one to end", kAtOnce));
  }
  auto begin = [this]() -> StatusOr<std::unique_ptr<BackupSource>> {
    ASSIGN_OR_RETURN(std::unique_ptr<KvSnapshot> snapshot, store_.Snapshot());
    ASSIGN_OR_RETURN(mds::BackupHeader header, MakeHeader(*snapshot, clock_.Wall()));
    return std::make_unique<MdtBackup>(std::move(snapshot), std::move(header), store_.UsedBytes(),
                                       &under_way_);
  };
  auto source = begin();
  if (source.ok()) {
    LogInfo("a backup of the MDT begins");
  } else {
    --under_way_;
  }
  return source;
}

}  // namespace nacre
