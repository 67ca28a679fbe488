#include "server/metadata/ost_removal.h"

#include <cerrno>

#include "common/log.h"
#include "server/metadata/eviction.h"
#include "server/metadata/ost_files.h"

namespace nacre::mds {
namespace {

using cluster::OstUse;

constexpr Duration kPlacersPatience = std::chrono::seconds(10);
constexpr Duration kPlacersPause = std::chrono::milliseconds(10);
constexpr size_t kRecordsAtOnce = 1024;

Task<Status> EraseAll(MdsPtr mds, std::string prefix) {
  for (KvPages<Tables> pages(*mds->tables, std::move(prefix), kRecordsAtOnce); pages.more();) {
    CO_ASSIGN_OR_RETURN(std::vector<KvEntry> entries, pages.Next());
    KvBatch batch;
    for (KvEntry& entry : entries) batch.Erase(std::move(entry.key));
    if (!batch.empty()) CO_RETURN_IF_ERROR(co_await mds->tables->CommitBatch(std::move(batch)));
  }
  co_return OkStatus();
}

// The second step. A record that somebody adds behind it (a file of a lost OST is removed) is the
// destroyer's.
Task<Status> Forget(MdsPtr mds, OstIndex ost) {
  CO_RETURN_IF_ERROR(co_await ForgetFences(mds, ost));
  std::string destroys = DestroyAtPrefix(ost);
  CO_RETURN_IF_ERROR(co_await EraseAll(mds, std::move(destroys)));
  KvBatch batch;
  batch.Erase(SizesKnownKey(ost));
  CO_RETURN_IF_ERROR(co_await mds->tables->CommitBatch(std::move(batch)));
  mds->writer_recovery.Forget(ost);
  co_return OkStatus();
}

Task<bool> AwaitPlacers(MdsPtr mds, OstIndex ost) {
  const Duration until = mds->env.clock.Now() + kPlacersPatience;
  while (mds->osts.MayYetPlaceOn(ost)) {
    if (mds->closed || mds->env.clock.Now() >= until) co_return false;
    co_await mds->env.clock.Sleep(kPlacersPause);
  }
  co_return true;
}

// Objects that are being written there for files that have none yet.
StatusOr<uint64_t> CountMovesTo(Mds& mds, OstIndex ost) {
  uint64_t count = 0;
  RETURN_IF_ERROR(ForEachEntry(*mds.tables, TableKey(Table::kNewObjects), [&](KvEntry& entry) -> Status {
    ASSIGN_OR_RETURN(NewObjectsRecord record, ParseNewObjects(entry.value));
    if (std::ranges::find(record.groups, ost) != record.groups.end()) ++count;
    return OkStatus();
  }));
  return count;
}

// EBUSY unless nothing is there, and nothing can come.
Task<Status> CheckEmpty(MdsPtr mds, OstIndex ost) {
  const bool nobody_places = co_await AwaitPlacers(mds, ost);
  if (!nobody_places)
    co_return ErrnoError(EBUSY, absl::StrFormat("a file is being made on OST %d just now: try again", ost));
  CO_ASSIGN_OR_RETURN(const uint64_t moves, CountMovesTo(*mds, ost));
  if (moves > 0)
    co_return ErrnoError(EBUSY, absl::StrFormat("%d files are being moved to OST %d: try again", moves, ost));
  CO_ASSIGN_OR_RETURN(const uint64_t files, co_await CountFilesOn(mds, ost));
  if (files == 0) co_return OkStatus();
  co_return ErrnoError(
      EBUSY, absl::StrFormat("%d file%s on OST %d: move %s off first, with nacre ost drain %d; "
                             "or, if the OST is gone for good, nacre ost remove %d --lost",
                             files, files == 1 ? " is" : "s are", ost, files == 1 ? "it" : "them", ost, ost));
}

// One removal at a time of each OST, and nobody drains or undrains it meanwhile
// (OstRegistry::BeginUseChange).
Task<Status> Remove(MdsPtr mds, OstIndex ost, OstUse how) {
  CO_RETURN_IF_ERROR(co_await mds->osts.Remove(ost, how));
  co_return co_await Forget(mds, ost);
}

}  // namespace

Task<Status> RemoveOst(MdsPtr mds, OstIndex ost) {
  const OstUse before = mds->osts.UseOf(ost);
  if (cluster::IsGone(before)) co_return co_await Forget(mds, ost);
  CO_RETURN_IF_ERROR(co_await mds->osts.SetUse(ost, OstUse::kDraining));
  Status empty = co_await CheckEmpty(mds, ost);
  if (empty.ok()) co_return co_await Remove(mds, ost, OstUse::kRemoved);
  if (before != OstUse::kDraining) {
    Status restored = co_await mds->osts.SetUse(ost, before);
    if (!restored.ok()) LogError("OST %d stays without new files: %s", ost, std::string(restored.message()));
  }
  co_return empty;
}

Task<StatusOr<uint64_t>> RemoveLostOst(MdsPtr mds, OstIndex ost) {
  if (!cluster::IsGone(mds->osts.UseOf(ost))) {
    // ENODEV if there is none. It stays so if this fails: nobody wants new files on an OST that is lost.
    CO_RETURN_IF_ERROR(co_await mds->osts.SetUse(ost, OstUse::kDraining));
    const bool outlived = co_await mds->osts.AwaitOutlived(ost);
    if (mds->closed) co_return absl::UnavailableError("the metadata server is stopping");
    if (!outlived) {
      co_return ErrnoError(EBUSY,
                           absl::StrFormat("OST %d is up, so it is not lost: nacre ost drain %d moves its "
                                           "files off; or stop its server first",
                                           ost, ost));
    }
    (void)co_await AwaitPlacers(mds, ost);
    if (mds->osts.IsUp(ost)) co_return ErrnoError(EBUSY, absl::StrFormat("OST %d has just come back", ost));
    CO_RETURN_IF_ERROR(co_await Remove(mds, ost, OstUse::kLost));
  }
  CO_RETURN_IF_ERROR(co_await Forget(mds, ost));
  co_return co_await CountFilesOn(mds, ost);
}

Task<Status> ForgetRemovedOsts(MdsPtr mds) {
  for (OstIndex ost : mds->osts.Removed()) CO_RETURN_IF_ERROR(co_await Forget(mds, ost));
  co_return OkStatus();
}

}  // namespace nacre::mds
