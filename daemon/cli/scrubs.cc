#include "daemon/cli/scrubs.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>

#include "common/units.h"
#include "daemon/cli/osts.h"

namespace nacre::cli {
namespace {

std::string Counted(uint64_t count, const char* what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

std::string Findings(const proto::ScrubState& scrub) {
  if (scrub.bad_blocks() == 0 && scrub.differing_objects() == 0) return "nothing is wrong";
  std::string text;
  if (scrub.bad_blocks() > 0) {
    text = Counted(scrub.bad_blocks(), "bad block");
    const uint64_t lost = scrub.bad_blocks() - std::min(scrub.repaired_blocks(), scrub.bad_blocks());
    absl::StrAppend(&text, lost == 0                    ? ", repaired"
                           : lost == scrub.bad_blocks() ? ", LOST"
                                                        : absl::StrFormat(", %d of them LOST", lost));
  }
  if (scrub.differing_objects() > 0) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", Counted(scrub.differing_objects(), "object"),
                    " differed at another member, which is filled anew");
  }
  return text;
}

uint64_t Since(int64_t then, int64_t now) { return static_cast<uint64_t>(std::max<int64_t>(now - then, 0)); }

}  // namespace

std::vector<ScrubbedStore> ScrubbedStores(const proto::ClusterStatus& status) {
  std::vector<ScrubbedStore> stores;
  for (const proto::OstState& ost : status.map().osts()) {
    for (const proto::MemberState& member : ost.members())
      stores.push_back({ost.info().index(), member.address(), member.up(), member.in_sync(), member.info()});
    if (ost.members().empty())
      stores.push_back({ost.info().index(), ost.address(), ost.up(), /*in_sync=*/true, ost.info()});
  }
  return stores;
}

bool FoundLoss(const proto::ScrubState& scrub) { return scrub.bad_blocks() > scrub.repaired_blocks(); }

uint64_t NewOrderNumber(const std::vector<ScrubbedStore>& stores, uint64_t clock) {
  for (const ScrubbedStore& store : stores) clock = std::max(clock, store.info.scrub().order() + 1);
  return clock;
}

bool HasDone(const ScrubbedStore& store, uint64_t order) {
  return store.info.scrub().order() >= order && !store.info.scrub().running();
}

bool IsThrough(const ScrubbedStore& store, uint64_t order) {
  return !store.up || !store.in_sync || !store.info.has_scrub() || HasDone(store, order);
}

std::string ScrubText(const proto::ScrubState& scrub, int64_t now) {
  if (scrub.running() && scrub.began() == 0) return "is about to be scrubbed";
  if (scrub.running()) {
    std::string text =
        absl::StrFormat("is being scrubbed: %s of about %s read, %s so far", HumanSize(scrub.read_bytes()),
                        HumanSize(std::max(scrub.total_bytes(), scrub.read_bytes())), Findings(scrub));
    return text;
  }
  if (scrub.began() == 0) return "never scrubbed";
  const std::string read = HumanSize(scrub.read_bytes());
  if (!scrub.stopped())
    return absl::StrFormat("scrubbed %s ago: %s read, %s", Ago(Since(scrub.finished(), now)), read,
                           Findings(scrub));
  return absl::StrFormat("the scrub begun %s ago was stopped: %s read, %s", Ago(Since(scrub.began(), now)),
                         read, Findings(scrub));
}

Json ScrubToJson(const proto::ScrubState& scrub) {
  return {{"running", scrub.running()},
          {"stopped", scrub.stopped()},
          {"began", scrub.began()},
          {"finished", scrub.finished()},
          {"read_bytes", scrub.read_bytes()},
          {"total_bytes", scrub.total_bytes()},
          {"bad_blocks", scrub.bad_blocks()},
          {"repaired_blocks", scrub.repaired_blocks()},
          {"differing_objects", scrub.differing_objects()}};
}

}  // namespace nacre::cli
