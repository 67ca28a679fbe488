// Blocks that go bad on the disk of a member where OSTs have several, and the scrubs that find and mend them
// while everything else goes on. No application sees such a block: another member has it.

#include <algorithm>

#include "common/metrics.h"
#include "server/kv/kv_pages.h"
#include "server/object/format.h"
#include "server/object/object_table.h"
#include "tests/sim/scenario.h"

namespace nacre::sim {
namespace {

constexpr uint64_t kMostBadBlocks = 4;
constexpr Duration kLook = 200ms;

// A written block of an object, as the records of a member have it.
struct WrittenBlock {
  ObjectId object;
  uint64_t block = 0;
  uint64_t physical = 0;
  uint32_t crc = 0;
};

std::vector<WrittenBlock> WrittenBlocksOf(KvStore& store) {
  std::vector<WrittenBlock> blocks;
  (void)ForEachEntry(store, "E", [&](const KvEntry& entry) -> Status {
    ASSIGN_OR_RETURN(const ost::ExtentPlace place, ost::ParseExtentKey(entry.key));
    ost::Chunk chunk;
    RETURN_IF_ERROR(ost::ParseChunk(entry.value, &chunk));
    for (uint32_t i = 0; i < ost::kChunkBlocks; ++i) {
      if (!chunk.is_written(i)) continue;
      blocks.push_back({place.object, place.chunk * ost::kChunkBlocks + i, chunk.physical[i], chunk.crc[i]});
    }
    return OkStatus();
  });
  return blocks;
}

// The object has this block still, and the disk has something else in its place, or would after a loss of
// power.
bool IsBad(Cluster::Disk& disk, const WrittenBlock& block) {
  ost::Chunk chunk;
  if (!ost::LoadChunk(&disk.kv, block.object, block.block / ost::kChunkBlocks, &chunk).ok()) return true;
  const auto i = static_cast<uint32_t>(block.block % ost::kChunkBlocks);
  const bool has = chunk.is_written(i) && chunk.physical[i] == block.physical && chunk.crc[i] == block.crc;
  return has && !disk.blocks->SurelyHas(block.physical, block.crc);
}

// Returns the keys of the first and the last undo record: what they name may come back after a loss of power.
std::pair<std::string, std::string> UndoRecordsOf(KvStore& store) {
  auto records = store.Scan("U", PrefixEnd("U"), SIZE_MAX);
  if (!records.ok() || records->empty()) return {};
  return {records->front().key, records->back().key};
}

}  // namespace

int64_t DifferingObjects() { return GetCounter("ost.differing_objects").Get(); }

// Some blocks of one member; now and then its server ends in the middle of its scrub. Where there are two,
// the head that comes back may have the other one filled anew, which is then the only one that has its bad
// blocks.
void Scenario::BadBlocks() {
  if (!WaitInSync("before blocks go bad")) return;
  const int ost = static_cast<int>(world_.random().Below(static_cast<uint64_t>(cluster_.osts())));
  const std::vector<int> members = cluster_.MembersOf(ost);
  const int oss = members[world_.random().Below(members.size())];
  Cluster::Disk& disk = *cluster_.member(ost, oss);
  const std::vector<WrittenBlock> written = WrittenBlocksOf(disk.kv);
  if (written.empty()) return;
  std::vector<WrittenBlock> bad;
  for (uint64_t left = 1 + world_.random().Below(kMostBadBlocks); left > 0; --left) {
    bad.push_back(written[world_.random().Below(written.size())]);
    world_.Trace("OST %d at oss%d: block %d of object %s goes bad", ost, oss, bad.back().block,
                 bad.back().object.ToString());
    disk.blocks->FlipBit(bad.back().physical, world_.random().Below(kBlockSize));
  }
  if (world_.random().OneIn(4)) {
    Work(UpTo(1s));
    if (failed()) return;
    cluster_.Crash(cluster_.oss(oss), Loss::kProcess);
    cluster_.Boot(cluster_.oss(oss));
    if (!WaitReady("after the end of a server with bad blocks")) return;
  }
  const auto is_bad = [&](const WrittenBlock& block) { return IsBad(disk, block); };
  const auto any_bad = [&] { return std::ranges::any_of(bad, is_bad); };
  for (Duration waited{0}; any_bad() && waited < kPatience && !failed(); waited += kLook) Work(kLook);
  if (!failed() && any_bad())
    return world_.Fail(absl::StrFormat("hang: a bad block of OST %d at oss%d is not mended", ost, oss));
  // Those that have been overwritten, not mended, may come back.
  const std::string newest = UndoRecordsOf(disk.kv).second;
  const auto may_return = [&] {
    const std::string oldest = UndoRecordsOf(disk.kv).first;
    return !oldest.empty() && oldest <= newest;
  };
  for (Duration waited{0}; may_return() && waited < kPatience && !failed(); waited += kLook) Work(kLook);
  if (!failed() && may_return())
    world_.Fail(absl::StrFormat("hang: OST %d at oss%d is not synced", ost, oss));
}

}  // namespace nacre::sim
