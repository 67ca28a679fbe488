#include "daemon/doctor.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>

#include "common/runtime.h"
#include "common/units.h"
#include "daemon/background.h"
#include "daemon/place.h"
#include "daemon/target_directory.h"
#include "rpc/convert.h"
#include "server/kv/rocks_kv.h"
#include "server/metadata/check.h"
#include "server/metadata/keys.h"
#include "server/metadata/records.h"
#include "server/object/check.h"
#include "server/object/uring_block_store.h"

namespace nacre {
namespace {

namespace fs = std::filesystem;

bool IsOst(const fs::path& path) {
  return fs::is_directory(path / "meta") && fs::is_directory(path / "data");
}
bool IsMdt(const fs::path& path) { return LookAtTarget(TargetKind::kMdt, path) == TargetState::kThere; }

struct Targets {
  std::string mdt;  // empty: none
  std::vector<std::string> osts;
};

StatusOr<Targets> FindTargets(const std::string& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return ErrnoError(ENOTDIR, absl::StrFormat("%s is not a directory", directory));
  }
  Targets targets;
  if (IsMdt(directory)) targets.mdt = directory;
  if (IsOst(directory)) targets.osts.push_back(directory);
  if (!targets.mdt.empty() || !targets.osts.empty()) return targets;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (IsOst(entry.path())) targets.osts.push_back(entry.path());
    if (!IsMdt(entry.path())) continue;
    if (!targets.mdt.empty()) {
      return ErrnoError(
          EINVAL, absl::StrFormat("%s holds two MDTs, %s and %s: an OST can be held against one alone. Name "
                                  "one directory, or move one of them elsewhere",
                                  directory, targets.mdt, entry.path().string()));
    }
    targets.mdt = entry.path();
  }
  std::sort(targets.osts.begin(), targets.osts.end());
  if (!targets.mdt.empty() || !targets.osts.empty()) return targets;
  return ErrnoError(ENOENT,
                    absl::StrFormat("%s: neither an MDT nor an OST here, nor one level below", directory));
}

// A server that runs would change what is looked at.
Status CheckStopped(const std::string& directory) {
  for (const char* file : {"/mds.pid", "/oss.pid", "/../local.pid"}) {
    auto pid = FindProcess(directory + file);
    if (!pid.ok()) continue;
    return ErrnoError(EBUSY,
                      absl::StrFormat("%s is being served by process %d: stop it first", directory, *pid));
  }
  return OkStatus();
}

// A copy that is repaired differs from the others, and nothing would tell them.
Status CheckMayRepair(KvStore& store) {
  ASSIGN_OR_RETURN(auto own, store.Scan(mds::kMdtEnd, {}, 1));
  if (own.empty()) return OkStatus();
  return ErrnoError(
      EPERM,
      "this is one of several copies of the MDT, and would differ from the others after a repair. If another "
      "copy has nothing wrong, make this one anew (nacre-mds --format --copy). If all have: stop all MDSes, "
      "run nacre-mds --alone on one, repair that, and begin with it (docs/replication.md)");
}

// A copy that nobody has filled yet has no superblock, and nothing is wrong with that.
StatusOr<bool> IsUnfilled(KvStore& store) {
  ASSIGN_OR_RETURN(auto first, store.Scan({}, {}, 1));
  return !first.empty() && first[0].key >= mds::kMdtEnd;
}

StatusOr<std::unique_ptr<KvStore>> OpenStore(const std::string& directory, bool repair) {
  RocksKvOptions options;
  options.read_only = !repair;
  return OpenRocksKv(directory, options);
}

// Empty: cannot be read (the check itself says why), or never registered.
std::string ClusterOfMdt(const std::string& directory) {
  auto store = OpenStore(directory, false);
  if (!store.ok()) return "";
  auto value = (*store)->Get(mds::TableKey(mds::Table::kSuperblock));
  if (!value.ok()) return "";
  auto superblock = mds::ParseSuperblock(*value);
  return superblock.ok() ? superblock->cluster_uuid : "";
}

std::string ClusterOfOst(const std::string& directory) {
  auto store = OpenStore(directory + "/meta", false);
  if (!store.ok()) return "";
  auto value = (*store)->Get(ost::kSuperblockKey);
  if (!value.ok()) return "";
  auto superblock = ost::ParseSuperblock(*value);
  return superblock.ok() ? superblock->cluster_uuid : "";
}

// Targets of different clusters must not be compared, and even less repaired by each other.
Status CheckOneCluster(const Targets& targets) {
  if (targets.mdt.empty()) return OkStatus();
  const std::string cluster = ClusterOfMdt(targets.mdt);
  for (const std::string& ost : targets.osts) {
    const std::string other = ClusterOfOst(ost);
    if (cluster.empty() || other.empty() || other == cluster) continue;
    return ErrnoError(
        EINVAL, absl::StrFormat("%s belongs to cluster %s, the MDT in %s to cluster %s: name one directory",
                                ost, other, targets.mdt, cluster));
  }
  return OkStatus();
}

void Take(TargetReport* out, const mds::CheckReport& report) {
  out->problems = report.problems;
  out->problem_count = report.problem_count;
  out->left = report.problem_count;
}

void Take(TargetReport* out, const ost::CheckReport& report) {
  out->target = absl::StrCat("OST ", report.superblock.index);
  out->summary =
      absl::StrFormat("%d objects, %s used", report.objects, HumanSize(report.blocks * kBlockSize));
  if (report.verified_blocks > 0) {
    absl::StrAppend(&out->summary, ", ", HumanSize(report.verified_blocks * kBlockSize), " read");
  }
  for (const ost::CheckProblem& problem : report.problems) {
    out->problems.push_back(problem.text + (problem.repaired ? " (repaired)" : ""));
  }
  out->problem_count = report.problem_count;
  out->left = report.problem_count;
}

class Doctor {
 public:
  Doctor(Targets targets, const DoctorOptions& options) : targets_(std::move(targets)), options_(options) {}

  std::vector<TargetReport> Run() {
    if (!targets_.mdt.empty())
      Keep("MDT", targets_.mdt, [this](TargetReport* out) { return ExamineMdt(out); });
    for (const std::string& ost : targets_.osts) {
      Keep("OST", ost, [&](TargetReport* out) { return ExamineOst(ost, out); });
    }
    if (!targets_.mdt.empty() && !targets_.osts.empty() && !failed_) {
      const std::string name = absl::StrFormat("MDT against %d OSTs", targets_.osts.size());
      Keep(name, targets_.mdt, [this](TargetReport* out) { return Compare(out); });
    }
    return std::move(reports_);
  }

 private:
  void Keep(const std::string& target, const std::string& directory,
            const std::function<Status(TargetReport*)>& examine) {
    TargetReport report;
    report.target = target;
    report.directory = directory;
    report.failure = CheckStopped(directory);
    if (report.failure.ok()) report.failure = examine(&report);
    failed_ |= !report.failure.ok();
    reports_.push_back(std::move(report));
  }

  // After a repair what is left counts, which a second look tells.
  Status ExamineMdt(TargetReport* out) {
    ASSIGN_OR_RETURN(std::unique_ptr<KvStore> store, OpenStore(targets_.mdt, options_.repair));
    if (options_.repair) RETURN_IF_ERROR(CheckMayRepair(*store));
    ASSIGN_OR_RETURN(const bool unfilled, IsUnfilled(*store));
    if (unfilled) {
      out->summary = "a blank copy that no other MDS has filled yet";
      return OkStatus();
    }
    ASSIGN_OR_RETURN(mds::CheckReport report, runtime_.Run(mds::CheckMdt(*store, options_.repair)));
    Take(out, report);
    out->summary = absl::StrFormat("%d inodes, %d entries", report.inodes, report.entries);
    if (!options_.repair || report.clean()) return OkStatus();
    ASSIGN_OR_RETURN(mds::CheckReport again, runtime_.Run(mds::CheckMdt(*store, false)));
    out->left = again.problem_count;
    return OkStatus();
  }

  Status ExamineOst(const std::string& directory, TargetReport* out) {
    ASSIGN_OR_RETURN(ost::CheckReport report, CheckOst(directory, options_.repair, options_.data, nullptr));
    Take(out, report);
    if (!options_.repair || report.problem_count == 0) return OkStatus();
    ASSIGN_OR_RETURN(ost::CheckReport again, CheckOst(directory, false, options_.data, nullptr));
    out->left = again.problem_count;
    return OkStatus();
  }

  Status Compare(TargetReport* out) {
    ASSIGN_OR_RETURN(std::unique_ptr<KvStore> store, OpenStore(targets_.mdt, options_.repair));
    if (options_.repair) RETURN_IF_ERROR(CheckMayRepair(*store));
    ASSIGN_OR_RETURN(mds::CheckReport report, CompareWith(*store, options_.repair));
    Take(out, report);
    if (!options_.repair || report.clean()) return OkStatus();
    ASSIGN_OR_RETURN(mds::CheckReport again, CompareWith(*store, false));
    out->left = again.problem_count;
    return OkStatus();
  }

  StatusOr<mds::CheckReport> CompareWith(KvStore& store, bool repair) {
    mds::ObjectCheck check(store);
    for (const std::string& ost : targets_.osts) {
      RETURN_IF_ERROR(CheckOst(ost, false, false, &check).status());
    }
    return runtime_.Run(check.Finish(repair));
  }

  // `compare`: every object of the OST is shown to it.
  StatusOr<ost::CheckReport> CheckOst(const std::string& directory, bool repair, bool data,
                                      mds::ObjectCheck* compare) {
    ASSIGN_OR_RETURN(std::unique_ptr<KvStore> store, OpenStore(directory + "/meta", repair));
    UringBlockStoreOptions disk;
    disk.read_only = !repair;
    ASSIGN_OR_RETURN(std::unique_ptr<BlockStore> blocks, OpenUringBlockStore(directory + "/data", disk));
    ASSIGN_OR_RETURN(std::string value, store->Get(ost::kSuperblockKey));
    ASSIGN_OR_RETURN(ost::Superblock superblock, ost::ParseSuperblock(value));
    OstDevices devices{superblock.index, store.get(), blocks.get(), directory};
    Status compared = OkStatus();
    if (compare != nullptr) RETURN_IF_ERROR(compare->AddOst(superblock.index, superblock.uuid));
    ost::CheckOptions options;
    options.verify_data = data;
    options.repair = repair;
    options.boot = BootName();
    options.on_progress = [this, &directory](uint64_t records) {
      if (options_.on_progress)
        options_.on_progress(absl::StrCat(directory, ", ", records, " records checked"));
    };
    if (compare != nullptr) {
      options.on_object = [&](const ost::CheckedObject& object) {
        proto::ListedObject listed;
        *listed.mutable_object() = ToProto(object.id);
        *listed.mutable_parent() = ToProto(object.parent);
        listed.set_size(object.size);
        listed.set_blocks(object.blocks);
        compared.Update(compare->AddObject(superblock.index, listed));
      };
    }
    Runtime runtime(1);
    auto report = runtime.Run(ost::CheckOst(devices, std::move(options)));
    runtime.Stop();
    RETURN_IF_ERROR(compared);
    return report;
  }

  const Targets targets_;
  const DoctorOptions& options_;
  std::vector<TargetReport> reports_;
  bool failed_ = false;
  Runtime runtime_{1};
};

}  // namespace

StatusOr<std::vector<TargetReport>> Examine(const std::string& directory, const DoctorOptions& options) {
  ASSIGN_OR_RETURN(Targets targets, FindTargets(directory));
  RETURN_IF_ERROR(CheckOneCluster(targets));
  return Doctor(std::move(targets), options).Run();
}

}  // namespace nacre
